"""The rate at which a policy collapses: where goodput leaves its plateau.

Separate from the comparison because it searches: what it runs next depends on what came out. Both
"Calibrate then route" and BalanceRoute measure there, since below it every policy looks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from router.studies.compare import Task, cell
from router.studies.confidence import estimate
from router.studies.metrics import RunFigures

_WIDEN = 1.6
_MOST_STEPS = 24
_SLOWDOWN = 5.0
"""Without targets a policy has collapsed when calls take so many times as long as in an idle fleet."""
_IDLE_SHARE = 0.05


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried.

    Attributes:
        worth: goodput, or without targets 1 while calls take at most five times as long as in an idle fleet.
    """

    rate: float
    worth: float
    e2e_s: float
    ttft_p99_s: float


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found.

    Attributes:
        rate: the highest rate (calls/s) at which the policy was worth at least `least`.
        points: everything that was tried, by rate.
    """

    policy: str
    workload: str
    least: float
    rate: float
    points: list[Point]


def saturate(
    task: Task,
    least: float,
    seeds: Sequence[int],
    *,
    precision: float = 0.03,
    told: Callable[[Point], None] | None = None,
) -> Saturation:
    """Searches from the rate of the task, by widening and then by halving.

    Args:
        least: goodput (0 to 1) that counts as holding.
        precision: relative width at which the search ends.

    Raises:
        ValueError: the policy does not hold at any rate, or at every one that was tried.
    """
    tried: dict[float, Point] = {}
    idle_s = _idle_s(task, seeds)

    def holds(rate: float) -> bool:
        if rate not in tried:
            tried[rate] = _point(task, rate, seeds, idle_s)
            if told is not None:
                told(tried[rate])
        return tried[rate].worth >= least

    low, high = _bracket(task.rate or 1.0, holds)
    while high / low > 1.0 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Saturation(
        policy=task.policy,
        workload=task.workload,
        least=least,
        rate=low,
        points=[tried[rate] for rate in sorted(tried)],
    )


def _bracket(start: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """A rate that holds, and a higher one that does not."""
    rate, up = start, holds(start)
    for _ in range(_MOST_STEPS):
        further = rate * _WIDEN if up else rate / _WIDEN
        if holds(further) is not up:
            return (rate, further) if up else (further, rate)
        rate = further
    word = "every" if up else "no"
    raise ValueError(f"the policy holds at {word} rate between {start:.3g} and {rate:.3g} calls per second")


def _idle_s(task: Task, seeds: Sequence[int]) -> float:
    """Mean end-to-end time in a fleet that is hardly used."""
    rate = (task.rate or 1.0) * _IDLE_SHARE
    return estimate([figure.mean_e2e_s for figure in _runs(task, rate, seeds[:1])]).mean


def _point(task: Task, rate: float, seeds: Sequence[int], idle_s: float) -> Point:
    runs = _runs(task, rate, seeds)
    e2e_s = estimate([each.mean_e2e_s for each in runs]).mean
    goodputs = [each.goodput for each in runs if each.goodput is not None]
    worth = estimate(goodputs).mean if goodputs else float(e2e_s <= _SLOWDOWN * idle_s)
    late = [each.latencies.ttft_s.p99 for each in runs if each.latencies.ttft_s is not None]
    return Point(rate=rate, worth=worth, e2e_s=e2e_s, ttft_p99_s=estimate(late).mean if late else e2e_s)


def _runs(task: Task, rate: float, seeds: Sequence[int]) -> list[RunFigures]:
    return [cell(msgspec.structs.replace(task, rate=rate, seed=seed)).figures for seed in seeds]
