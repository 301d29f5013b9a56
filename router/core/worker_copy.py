"""A worker as it was at one moment.

Separate from the worker because whoever plans, looks back or sees late needs numbers that nobody moves, or
that only he does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role, WorkerView


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerCopy:
    """Implements WorkerView; what is left out is what a worker knows of nobody."""

    name: str
    barrier_group: str | None
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
    barrier_peers: Sequence[WorkerView] = ()
    role: Role = Role.BOTH
    model: str = ""
    revision: str = ""
    incarnation: int = 0
    transfers: Mapping[str, TransferModel] = field(default_factory=dict)
    residents: Collection[Lease] = ()
    stats: EngineStats | None = None

    @classmethod
    def of(cls, worker: WorkerView) -> Self:
        """What a worker is now. A view that does not say who is there or beside it still works."""
        return cls(
            name=worker.name,
            barrier_group=worker.barrier_group,
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
            barrier_peers=getattr(worker, "barrier_peers", ()),
            role=worker.role,
            model=worker.model,
            revision=worker.revision,
            incarnation=worker.incarnation,
            transfers=dict(getattr(worker, "transfers", {})),
            residents=tuple(getattr(worker, "residents", None) or ()),
            stats=worker.stats,
        )
