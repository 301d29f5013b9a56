"""The same fleet with more workers, or fewer.

Separate from the fleets themselves, which have the size that was published: how a figure changes with the
number of replicas is a question that any of them can be asked.
"""

from __future__ import annotations

from dataclasses import replace

from router.core.worker import Role
from router.studies.queueing import QueuePlan
from router.studies.setups import Choosing, Setup
from router.studies.simulation.fleet import FleetPlan, PoolPlan

_ANY_POLICY = Choosing(policy="round_robin")


def natural_size(setup: Setup) -> int:
    """Workers that answer, as the fleet was published."""
    if setup.plain:
        return QueuePlan(policy=_ANY_POLICY.policy, params={}).servers
    return answering(setup.plan(_ANY_POLICY))


def answering(plan: FleetPlan) -> int:
    """Workers that answer: all but those that prefill for others."""
    return sum(len(pool.workers) for pool in plan.pools if pool.role is not Role.PREFILL)


def resized(plan: FleetPlan, workers: int) -> FleetPlan:
    """The fleet with so many workers that answer; those that prefill for them keep their proportion.

    New workers are copies of those that are there, in turn. Troubles of workers that are gone fall away.
    """
    share = workers / answering(plan)
    pools = tuple(
        _of_size(pool, max(1, round(len(pool.workers) * share)) if pool.role is Role.PREFILL else workers)
        for pool in plan.pools
    )
    names = {worker.name for pool in pools for worker in pool.workers}
    troubles = tuple(trouble for trouble in plan.troubles if trouble.worker in names)
    return replace(plan, pools=pools, troubles=troubles)


def _of_size(pool: PoolPlan, count: int) -> PoolPlan:
    there = pool.workers
    copies = tuple(
        replace(there[index % len(there)], name=f"{there[index % len(there)].name}+{index // len(there)}")
        for index in range(len(there), count)
    )
    return replace(pool, workers=(there + copies)[:count])
