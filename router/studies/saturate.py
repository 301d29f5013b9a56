"""The rate at which a policy collapses: where goodput leaves its plateau.

Separate from the comparison because it searches: what it runs next depends on what came out. Both
"Calibrate then route" and BalanceRoute measure there, since below it every policy looks alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from router.studies.compare import Task, cell
from router.studies.confidence import estimate
from router.studies.metrics import RunFigures

_WIDEN = 1.6
_MOST_STEPS = 24
_SLOWDOWN = 5.0
"""Without targets a policy has collapsed when calls take so many times as long as in an idle fleet."""
_IDLE_SHARES = (0.05, 0.005)
"""Of the rate at which the search starts: calls hardly meet, and then never."""


class NeverHolds(ValueError):
    """No rate is low enough: too many calls miss their targets even alone.

    Attributes:
        ceiling: goodput (0 to 1) of calls that have the fleet for themselves.
    """

    def __init__(self, least: float, ceiling: float, rate: float) -> None:
        super().__init__(
            f"no rate holds {100 * least:.4g} %: at {rate:.2g} calls per second, where calls hardly meet, "
            f"{100 * ceiling:.1f} % are within their targets and all others miss them even alone; "
            f"{_advice(ceiling)}"
        )
        self.ceiling = ceiling


def _advice(ceiling: float) -> str:
    """A round share well below the ceiling, where there is one."""
    share = math.floor(19 * ceiling) / 20
    if share <= 0:
        return "this fleet is too slow for these targets"
    return f"ask for less, say --goodput {share:g}"


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
        NeverHolds: too few calls meet their targets even in an idle fleet.
        ValueError: the policy holds at every rate that was tried.
    """
    tried: dict[float, Point] = {}
    start, idle_s = task.rate or 1.0, math.inf

    def holds(rate: float) -> bool:
        if rate not in tried:
            tried[rate] = _point(task, rate, seeds, idle_s)
            if told is not None:
                told(tried[rate])
        return tried[rate].worth >= least

    idle = [start * share for share in _IDLE_SHARES]
    if not any(map(holds, idle)):
        best = max((tried[rate] for rate in idle), key=lambda point: point.worth)
        raise NeverHolds(least, best.worth, best.rate)
    idle_s = next(iter(tried.values())).e2e_s
    low, high = _bracket(start, holds)
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
    if up:
        raise ValueError(
            f"the policy holds at every rate between {start:.3g} and {rate:.3g} calls per second, where "
            "all calls come nearly at once: so few of them are no load; ask for more with --requests"
        )
    raise ValueError(f"the policy holds at no rate between {start:.3g} and {rate:.3g} calls per second")


def _point(task: Task, rate: float, seeds: Sequence[int], idle_s: float) -> Point:
    runs = _runs(task, rate, seeds)
    e2e_s = estimate([each.mean_e2e_s for each in runs]).mean
    goodputs = [each.goodput for each in runs if each.goodput is not None]
    alike = math.isfinite(e2e_s) and e2e_s <= _SLOWDOWN * idle_s
    worth = estimate(goodputs).mean if goodputs else float(alike)
    late = [each.latencies.ttft_s.p99 for each in runs if each.latencies.ttft_s is not None]
    return Point(rate=rate, worth=worth, e2e_s=e2e_s, ttft_p99_s=estimate(late).mean if late else e2e_s)


def _runs(task: Task, rate: float, seeds: Sequence[int]) -> list[RunFigures]:
    return [cell(msgspec.structs.replace(task, rate=rate, seed=seed)).figures for seed in seeds]
