"""Which policy each pool runs, and what the policies in its shadow say of it.

Separate from the other gauges because it is about decisions and not about load: nothing here is a measure of
what the router carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from router.telemetry.exposition import SampleFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSample:
    """One policy in the shadow of a pool.

    Attributes:
        verdicts: decisions by what it said of them.
        regret: sum over all decisions of what was chosen less its own best, in `unit`.
        busy_s: time that it took.
    """

    policy: str
    unit: str
    verdicts: Mapping[str, int]
    regret: float
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingSample:
    """One pool.

    Attributes:
        shape: how its policy decides: one at a time, in pairs, in batches.
    """

    pool: str
    policy: str
    shape: str
    shadows: Sequence[ShadowSample] = ()


def choosing_gauges(pools: Sequence[ChoosingSample]) -> Iterator[SampleFamily]:
    """The families, those without samples included."""
    policy = SampleFamily(
        "pointsman_pool_policy_info", "1 for the policy that the pool runs.", ("pool", "policy", "shape")
    )
    for pool in pools:
        policy.set(1, pool.pool, pool.policy, pool.shape)
    yield policy
    yield from _shadows([(pool.pool, shadow) for pool in pools for shadow in pool.shadows])


def _shadows(shadows: Sequence[tuple[str, ShadowSample]]) -> Iterator[SampleFamily]:
    decisions = SampleFamily(
        "pointsman_shadow_decisions_total",
        "Decisions of the pool by what its shadow says: agreed, equal, dearer, outranked, refused.",
        ("pool", "shadow", "verdict"),
        "counter",
    )
    regret = SampleFamily(
        "pointsman_shadow_regret_total",
        "Cost of what was chosen less that of the shadow's own best, summed, in the shadow's unit.",
        ("pool", "shadow", "unit"),
        "counter",
    )
    busy = SampleFamily(
        "pointsman_shadow_busy_seconds_total",
        "Time that a policy in the shadow took, all of it while requests were being placed.",
        ("pool", "shadow"),
        "counter",
    )
    for pool, shadow in shadows:
        for verdict, count in shadow.verdicts.items():
            decisions.set(count, pool, shadow.policy, verdict)
        regret.set(shadow.regret, pool, shadow.policy, shadow.unit)
        busy.set(shadow.busy_s, pool, shadow.policy)
    yield from (decisions, regret, busy)
