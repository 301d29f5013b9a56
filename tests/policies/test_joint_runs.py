"""Joint beside the policy that was made for each kind of traffic, on the same simulated calls.

Small runs, so the bands are wide enough for their noise and no wider; `pointsman compare` makes long ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from router.studies.metrics import RunFigures, figures
from router.studies.setups import SETUPS, Choosing, balanceroute
from router.studies.simulation.fleet import FleetPlan
from router.studies.simulation.run import Simulation
from router.studies.workloads import WORKLOADS


def without_calibration(plan: FleetPlan) -> FleetPlan:
    """The same fleet before a router that was told no coefficients."""
    pools = tuple(
        replace(pool, workers=tuple(replace(worker, calibrated=None) for worker in pool.workers))
        for pool in plan.pools
    )
    return replace(plan, pools=pools)


@cache
def run(policy: str, workload: str, count: int, load: float, *, blind: bool = False) -> RunFigures:
    """So many calls at a share of what the fleet of the workload can take; `blind`: it is not calibrated."""
    family = WORKLOADS[workload]
    setup = SETUPS[family.setup]
    plan = setup.plan(Choosing(policy=policy))
    calls = family.calls(count, load * setup.rates[workload], seed=1)
    return figures(
        Simulation(without_calibration(plan) if blind else plan, calls, seed=1).run(), setup.targets
    )


@pytest.mark.parametrize(("workload", "blind"), [("toolbench", True), ("preble_mixed", False)])
def test_it_does_not_lose_to_cache_aware_where_prompts_share(workload: str, blind: bool) -> None:
    joint, other = (run(name, workload, 250, 0.9, blind=blind) for name in ("joint", "cache_aware"))
    assert joint.answered == other.answered == 250
    assert joint.mean_e2e_s <= 1.03 * other.mean_e2e_s
    assert joint.hit_rate >= 0.95 * other.hit_rate


def test_it_does_not_lose_to_least_work_where_nothing_is_shared() -> None:
    joint, other = (run(name, "mixed_bursty", 200, 0.8) for name in ("joint", "least_work"))
    assert joint.answered == other.answered == 200
    assert joint.mean_e2e_s <= 1.02 * other.mean_e2e_s
    assert (joint.goodput or 0.0) >= (other.goodput or 0.0) - 0.02


def _group(policy: str) -> FleetPlan:
    """Four ranks of 12 slots that step together."""
    return balanceroute(workers=4, slots=12)(Choosing(policy=policy))


@pytest.mark.parametrize(("count", "rate"), [(100, 0.6), (240, 2.0)])
def test_it_does_not_lose_to_balance_route_in_a_barrier_group(count: int, rate: float) -> None:
    """While slots are free, and while more wait than there are slots."""
    calls = WORKLOADS["balanceroute_proprietary"].calls(count, rate, seed=1)
    joint, other = (
        figures(Simulation(_group(name), calls, seed=1).run()) for name in ("joint", "balance_route_0")
    )
    assert joint.answered == other.answered == count
    assert joint.mean_e2e_s <= 1.02 * other.mean_e2e_s
    assert joint.output_tokens_per_s >= 0.97 * other.output_tokens_per_s
