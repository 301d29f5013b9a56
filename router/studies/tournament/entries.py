"""What a tournament is: every policy on every workload at three loads, and what came of each.

Separate from running it, which takes an hour, and from the page, which is made from the entries alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from router.policies import POLICIES, Shape
from router.studies.compare import Cell, Task
from router.studies.confidence import Estimate, paired
from router.studies.setups import SETUPS, Setup
from router.studies.workloads import workload_named

CHALLENGER = "joint"
"""The policy that is to be near the best of the others everywhere."""
LEVELS = (0.6, 0.8, 1.0)
"""Loads, in parts of the rate that a setup has for a workload."""
GOODPUT_POINTS = 2.0
"""So much less goodput than the best of the others is still near it."""
E2E_RATIO = 1.05
"""So much more mean end-to-end time than the best of the others is still near it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload at one load.

    Attributes:
        level: share of the setup's rate; rate: calls per second.
        goodput: share of calls within their targets, seed by seed; empty where there are no targets.
        e2e_s: mean end-to-end time, seed by seed.
        unanswered: calls of all seeds that were not answered whole.
    """

    workload: str
    level: float
    rate: float
    policy: str
    goodput: list[float]
    e2e_s: list[float]
    unanswered: int

    @property
    def mean_goodput(self) -> float | None:
        """Over the seeds; None without targets."""
        return math.fsum(self.goodput) / len(self.goodput) if self.goodput else None

    @property
    def mean_e2e_s(self) -> float:
        """Over the seeds."""
        return math.fsum(self.e2e_s) / len(self.e2e_s)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one workload, and how long each run was."""

    workload: str
    setup: str
    calls: int
    seeds: int
    entries: list[Entry]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one load: the challenger against the others.

    Attributes:
        by_goodput, by_e2e: the best of the others in each; None without targets.
        goodput_gain: of the challenger over that, in points, on the same calls.
        e2e_ratio: of its mean time to the least.
    """

    workload: str
    level: float
    rate: float
    challenger: Entry
    by_goodput: Entry | None
    by_e2e: Entry
    goodput_gain: Estimate | None
    e2e_ratio: float

    @property
    def near_goodput(self) -> bool:
        """Whether its goodput is near the best."""
        return self.goodput_gain is None or self.goodput_gain.mean >= -GOODPUT_POINTS

    @property
    def near_e2e(self) -> bool:
        """Whether its mean time is near the best."""
        return self.e2e_ratio <= E2E_RATIO

    @property
    def holds(self) -> bool:
        """Whether both are."""
        return self.near_goodput and self.near_e2e


def policies_for(setup: Setup) -> list[str]:
    """All that can be run on a fleet, in the order of their names; on plain servers those that need no queue
    in the router."""
    return [name for name, spec in POLICIES.items() if not setup.plain or spec.shape is not Shape.BATCH]


def tasks_of(workload: str, calls: int, seeds: int, levels: Sequence[float] = LEVELS) -> list[Task]:
    """Every run of one workload, in the order of the entries."""
    setup = SETUPS[workload_named(workload).setup]
    return [
        Task(
            workload=workload,
            setup=setup.name,
            policy=policy,
            params={},
            rate=setup.rates[workload] * level,
            calls=calls,
            seed=seed,
        )
        for level in levels
        for policy in policies_for(setup)
        for seed in range(1, seeds + 1)
    ]


def merged(old: Sequence[Entry], new: Sequence[Entry]) -> list[Entry]:
    """Entries with those of some policies made anew: one policy's change moves no other's figures."""
    fresh = {(entry.level, entry.policy): entry for entry in new}
    kept = [fresh.pop((entry.level, entry.policy), entry) for entry in old]
    return [*kept, *fresh.values()]


def entries_of(made: Sequence[Cell]) -> list[Entry]:
    """Runs by load and policy, in the order in which they came."""
    groups: dict[tuple[float, str], list[Cell]] = {}
    for each in made:
        groups.setdefault((each.task.rate or 0.0, each.policy), []).append(each)
    return [_entry(rate, policy, group) for (rate, policy), group in groups.items()]


def _entry(rate: float, policy: str, group: Sequence[Cell]) -> Entry:
    task = group[0].task
    runs = [each.figures for each in group]
    return Entry(
        workload=task.workload,
        level=round(rate / SETUPS[task.setup].rates[task.workload], 6),
        rate=rate,
        policy=policy,
        goodput=[round(each.goodput, 5) for each in runs if each.goodput is not None],
        e2e_s=[float(f"{each.mean_e2e_s:.6g}") for each in runs],
        unanswered=sum(each.calls - each.answered for each in runs),
    )


def rounds_of(entries: Sequence[Entry], challenger: str = CHALLENGER) -> list[Round]:
    """The challenger against the best of the others, load by load."""
    return [_round(group, challenger) for group in _by_round(entries)]


def _by_round(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Those that met the same calls."""
    groups: dict[tuple[str, float], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.workload, entry.level), []).append(entry)
    return list(groups.values())


def _round(group: Sequence[Entry], challenger: str) -> Round:
    own = next(entry for entry in group if entry.policy == challenger)
    others = [entry for entry in group if entry.policy != challenger]
    by_e2e = min(others, key=lambda entry: entry.mean_e2e_s)
    judged = [entry for entry in others if entry.goodput]
    by_goodput = max(judged, key=lambda entry: entry.mean_goodput or 0.0, default=None)
    return Round(
        workload=own.workload,
        level=own.level,
        rate=own.rate,
        challenger=own,
        by_goodput=by_goodput,
        by_e2e=by_e2e,
        goodput_gain=None if by_goodput is None else _points(own.goodput, by_goodput.goodput),
        e2e_ratio=own.mean_e2e_s / by_e2e.mean_e2e_s,
    )


def _points(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    return paired([100 * each for each in values], [100 * each for each in baseline])


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far one policy is from the best of the others, over all workloads and loads.

    Attributes:
        near: rounds in which it is near the best; rounds: all that it was in.
        worst_goodput, mean_goodput: points by which it is ahead; negative: behind.
        worst_e2e, mean_e2e: ratio of its mean time to the least; the mean is the geometric one.
    """

    policy: str
    near: int
    rounds: int
    worst_goodput: float
    mean_goodput: float
    worst_e2e: float
    mean_e2e: float


def standings(entries: Sequence[Entry]) -> list[Standing]:
    """All policies, the one that is near the best most often first."""
    names = dict.fromkeys(entry.policy for entry in entries)
    groups = _by_round(entries)
    found = []
    for name in names:
        met = [group for group in groups if any(entry.policy == name for entry in group)]
        found.append(_standing(name, [_round(group, name) for group in met]))
    return sorted(found, key=lambda each: (-each.near / each.rounds, each.mean_e2e))


def _standing(policy: str, met: Sequence[Round]) -> Standing:
    gains = [each.goodput_gain.mean for each in met if each.goodput_gain is not None]
    ratios = [each.e2e_ratio for each in met]
    return Standing(
        policy=policy,
        near=sum(each.holds for each in met),
        rounds=len(met),
        worst_goodput=min(gains, default=0.0),
        mean_goodput=math.fsum(gains) / len(gains) if gains else 0.0,
        worst_e2e=max(ratios),
        mean_e2e=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)),
    )
