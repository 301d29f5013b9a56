"""One policy on one workload over the seeds: means with their confidence, and differences on the same calls.

Separate from the comparison, which makes the runs, and from the tables, which show some of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from router.studies.compare import Cell
from router.studies.confidence import Estimate, estimate, paired
from router.studies.metrics import RunFigures
from router.studies.traces.trace import Distribution

Read = Callable[[RunFigures], float | None]
"""One figure of a run; None where it has none."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload at one rate, over the seeds.

    Attributes:
        setup: its fleet; workers: that answer, where that is not the fleet's own number.
        runs, firsts: figures of every seed, and those of the first policy on the same calls.
        is_first: it is the first policy itself.
    """

    workload: str
    setup: str
    rate: float | None
    workers: int | None
    policy: str
    runs: list[RunFigures]
    firsts: list[RunFigures]
    is_first: bool

    def mean(self, read: Read) -> Estimate | None:
        """Of one figure; None where no run has it."""
        known = [value for run in self.runs if (value := read(run)) is not None]
        return estimate(known) if known else None

    def against_first(self, read: Read) -> Estimate | None:
        """Mean difference to the first policy, seed by seed; None for itself, and where no run has it."""
        pairs = [
            (one, other)
            for mine, theirs in zip(self.runs, self.firsts, strict=True)
            if (one := read(mine)) is not None and (other := read(theirs)) is not None
        ]
        if self.is_first or not pairs:
            return None
        return paired([one for one, _ in pairs], [other for _, other in pairs])

    @property
    def unanswered(self) -> int:
        """Calls that an engine could have answered, and none did."""
        return sum(run.calls - run.answered - run.too_long for run in self.runs)

    @property
    def too_long(self) -> int:
        """Calls that no engine takes."""
        return sum(run.too_long for run in self.runs)


def lines(made: Sequence[Cell]) -> list[Line]:
    """Results by workload, fleet, rate and policy, in the order in which they were asked for."""
    groups: dict[tuple[tuple[object, ...], str], list[Cell]] = {}
    for each in made:
        task = each.task
        where = (task.workload, task.setup, task.workers, task.rate)
        groups.setdefault((where, each.policy), []).append(each)
    firsts = {where: groups[where, policy] for where, policy in reversed(groups)}
    return [_line(group, firsts[where]) for (where, _), group in groups.items()]


def _line(group: Sequence[Cell], first: Sequence[Cell]) -> Line:
    task = group[0].task
    return Line(
        workload=task.workload,
        setup=task.setup,
        rate=task.rate,
        workers=task.workers,
        policy=group[0].policy,
        runs=[each.figures for each in group],
        firsts=[each.figures for each in first],
        is_first=group is first,
    )


# --- what can be read -------------------------------------------------------------------------------------


def of_latency(field: str, which: str = "mean", *, none: float | None = None) -> Read:
    """One word of the distribution of a latency.

    Args:
        none: of a run without it; infinite where nothing was answered, say.
    """

    def read(run: RunFigures) -> float | None:
        found: Distribution | None = getattr(run.latencies, field)
        return none if found is None else float(getattr(found, which))

    return read


def of_groups(field: str) -> Read:
    """Mean over the barrier groups of a run."""

    def read(run: RunFigures) -> float | None:
        values = [float(getattr(group, field)) for group in run.barriers.values()]
        return math.fsum(values) / len(values) if values else None

    return read


def goodput(run: RunFigures) -> float | None:
    """None without targets."""
    return run.goodput


def hit_rate(run: RunFigures) -> float | None:
    """Of a run."""
    return run.hit_rate


def regret(run: RunFigures) -> float | None:
    """Per decision, over all pools that have the same judge; None without one."""
    decisions = sum(each.decisions for each in run.regrets.values())
    return sum(each.total for each in run.regrets.values()) / decisions if decisions else None


e2e_s = of_latency("e2e_s", none=math.inf)
ttft_p99_s = of_latency("ttft_s", "p99", none=math.inf)
