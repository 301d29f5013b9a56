"""Fleets of the papers are pools as the live router would have them."""

from __future__ import annotations

import pytest

from router.core.binding import Mode
from router.core.local_queue import LocalQueue, Order
from router.policies import POLICIES, Shape, build
from router.settings import PoolSettings
from router.studies.setups import SETUPS, Choosing, balanceroute
from router.studies.simulation.fleet import PoolPlan

PLANS = [
    pytest.param(pool, id=f"{setup.name}-{policy}-{pool.name}")
    for setup in SETUPS.values()
    if not setup.plain
    for policy in POLICIES
    for pool in setup.plan(Choosing(policy=policy)).pools
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_pool_binds_and_holds_back_as_a_configured_one_does(plan: PoolPlan) -> None:
    written = PoolSettings(
        role=plan.role,
        policy=plan.policy,
        slots=plan.workers[0].slots,
        barrier_group=plan.workers[0].barrier_group,
        workers=tuple({"url": f"http://{worker.name}:8000"} for worker in plan.workers),  # type: ignore[arg-type]  # as it is written
    )
    assert plan.mode is written.mode
    held = [LocalQueue(rules, build(plan.policy, {}, 0)) for rules in (plan.local, written.local_rules(256))]
    assert held[0].order is held[1].order
    assert plan.local.max_dispatched is written.max_dispatched


def test_whoever_steps_together_is_worth_waiting_for_under_every_policy() -> None:
    pools = [SETUPS["balanceroute_8"].plan(Choosing(policy=policy)).pools[0] for policy in POLICIES]
    assert {pool.mode for pool in pools} == {Mode.LATE}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_papers_baselines_choose_as_calls_come(policy: str) -> None:
    [pool] = balanceroute(4, 12, early=True)(Choosing(policy=policy)).pools
    assert (pool.mode is Mode.LATE) is (POLICIES[policy].shape is Shape.BATCH)


def test_only_preble_wants_turns() -> None:
    wanted = {
        policy
        for policy in POLICIES
        for pool in SETUPS["preble_a6000"].plan(Choosing(policy=policy)).pools
        if LocalQueue(pool.local, build(pool.policy, {}, 0)).order is not Order.OFF
    }
    assert wanted == {"preble"}
