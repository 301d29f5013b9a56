"""The pools of a fleet, made as `router.app` makes those of a configuration.

Separate from the run, which lets time pass: here the plan's settings become the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.core.calibration_online import OnlineCalibration
from router.core.health import Health
from router.core.partners import Partners
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.prefill_budget import STALE_PERIODS, BudgetSettings, PrefillBudget
from router.core.request import Request
from router.core.roster import Change, Roster
from router.core.split_rule import SplitRule
from router.core.splitting import Splitting
from router.core.worker import Role, Worker
from router.policies import build
from router.studies.simulation.courses import Pair
from router.studies.simulation.fleet import FleetPlan, PoolPlan, WorkerPlan
from router.studies.simulation.rounds import Rounds


def pool_of(
    fleet: FleetPlan,
    plan: PoolPlan,
    budgets: PoolBudgets,
    expect: Callable[[Request], int],
    *,
    seed: int,
    on_change: Callable[[Change], None],
) -> Pool:
    """One pool with its workers, none of which was asked anything yet."""
    split, patience = fleet.split, fleet.patience
    rules = PoolRules(
        name=plan.name,
        policy=plan.policy,
        role=plan.role,
        mode=plan.mode,
        max_transfers=split.max_transfers if split is not None else 4,
        max_queued=fleet.max_queued,
        max_wait_s=fleet.max_wait_s,
        stall_min_s=patience.stall_min_s,
        stall_max_s=patience.stall_max_s,
        prefix_index=fleet.prefix_index,
        local=plan.local,
    )
    roster = Roster(min_share=patience.min_share, on_change=on_change)
    pool = Pool(rules, build(plan.policy, dict(plan.params), seed), budgets, expect, roster)
    if fleet.online is not None:
        pool.ledger.online = OnlineCalibration(fleet.online)
    for worker in plan.workers:
        _join(pool, fleet, plan, worker)
    return pool


def _join(pool: Pool, fleet: FleetPlan, plan: PoolPlan, worker: WorkerPlan) -> None:
    made = Worker(
        name=worker.name,
        role=worker.role or plan.role,
        slots=worker.slots,
        capacity=worker.capacity,
        barrier_group=worker.barrier_group,
        may_prefill=plan.role is Role.DECODE and worker.may_prefill,
        label=worker.revision,
        revision=worker.revision,
        process=worker.process,
        health=Health(fleet.patience.health),
    )
    pool.roster.add(made, 0.0)
    pool.roster.learn_models(worker.name, {fleet.model: worker.engine.max_model_len})
    transfers = {} if fleet.split is None else fleet.split.known.get(worker.name, {})
    if worker.calibrated is not None or transfers:
        pool.roster.calibrate(worker.name, worker.calibrated, transfers, "plan")


def pair_of(fleet: FleetPlan, pools: Sequence[Rounds]) -> Pair | None:
    """Makes the two pools of a pair work together; None where there is one pool."""
    plan, delays = fleet.split, fleet.delays
    if plan is None:
        return None
    by_role = {rounds.pool.rules.role: rounds for rounds in pools}
    prefill, decode = by_role[Role.PREFILL], by_role[Role.DECODE]
    period_s = min(delays.prefill_scrape_s, delays.scrape_s)
    budget = BudgetSettings(plan.budget_high, plan.budget_low, stale_s=STALE_PERIODS * period_s)
    partners = Partners(prefill.pool.roster, decode.pool.roster, PrefillBudget(budget))
    decode.pool.join(prefill.pool, partners)
    decode.beside = prefill.turns
    splitting = Splitting(
        prefill.pool,
        decode.pool,
        partners,
        SplitRule(plan.min_tokens, plan.fallback),
        sequences_on_handle=plan.sequences_on_handle,
        takes_whole=plan.takes_whole,
    )
    return Pair(prefill, decode, splitting, plan)
