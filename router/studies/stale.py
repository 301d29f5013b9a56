"""A policy that sees workers as they were some time ago.

Separate from the studies that use it: it is how polled loads differ from a ledger, for any policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.policy import Choice, Policy
from router.core.request import Request
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role, WorkerView


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker as it was; implements WorkerView."""

    name: str
    role: Role
    model: str
    revision: str
    barrier_group: str | None
    incarnation: int
    in_flight: int
    sequences: int
    queued_tokens: int
    kv_tokens: int
    remaining_tokens: int
    kv_capacity_tokens: int | None
    free_slots: int | None
    capacity: float
    warmup: float
    step: StepModel | None
    transfers: Mapping[str, TransferModel]
    residents: Collection[Lease]
    barrier_peers: Sequence[WorkerView]
    stats: EngineStats | None


def snapshot(worker: WorkerView) -> Snapshot:
    """What a worker is now, to be kept."""
    return Snapshot(
        name=worker.name,
        role=worker.role,
        model=worker.model,
        revision=worker.revision,
        barrier_group=worker.barrier_group,
        incarnation=worker.incarnation,
        in_flight=worker.in_flight,
        sequences=worker.sequences,
        queued_tokens=worker.queued_tokens,
        kv_tokens=worker.kv_tokens,
        remaining_tokens=worker.remaining_tokens,
        kv_capacity_tokens=worker.kv_capacity_tokens,
        free_slots=worker.free_slots,
        capacity=worker.capacity,
        warmup=worker.warmup,
        step=worker.step,
        transfers=dict(worker.transfers),
        residents=tuple(worker.residents),
        barrier_peers=worker.barrier_peers,
        stats=worker.stats,
    )


class Stale:
    """Asks another policy about workers as they were at the last look; looks every `period_s`.

    That is what polling is: between two looks every decision is made on the same numbers.
    """

    def __init__(self, policy: Policy, period_s: float) -> None:
        self._policy = policy
        self._period_s = period_s
        self._looked = float("-inf")
        self._seen: dict[str, Snapshot] = {}

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        if now - self._looked >= self._period_s:
            self._looked = now
            self._seen = {worker.name: snapshot(worker) for worker in workers}
        seen = [self._seen.get(worker.name) or snapshot(worker) for worker in workers]
        return self._policy.pick(request, seen, now)

    def __repr__(self) -> str:
        return f"<Stale {self._policy!r} every {self._period_s} s>"
