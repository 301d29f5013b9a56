"""Workers as they will be once a round has placed what it placed so far.

Separate from the round because a policy reads and never charges: it plans on copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from router.core.cost import Demand
from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role, WorkerView
from router.policies.barrier import peers_of, residents_of


@dataclass(slots=True, eq=False)
class Draft:
    """A copy of a worker that a plan may charge; implements WorkerView."""

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

    def take(self, demand: Demand, missed_tokens: int) -> None:
        """Charges one more request, of which so much is to be prefilled here."""
        self.in_flight += 1
        self.sequences += demand.sequences
        self.queued_tokens += missed_tokens
        self.kv_tokens += demand.prompt_tokens
        self.remaining_tokens += round(demand.output_tokens * demand.sequences)
        if self.free_slots is not None:
            self.free_slots = max(self.free_slots - demand.sequences, 0)


def drafts_of(workers: Sequence[WorkerView]) -> list[Draft]:
    """Copies of the workers, and of all who step together with them."""
    copies = {worker.name: _copy(worker) for worker in workers}
    groups: dict[str, list[Draft]] = {}
    for worker in workers:
        group = worker.barrier_group
        if group is not None and group not in groups:
            groups[group] = [copies.setdefault(peer.name, _copy(peer)) for peer in peers_of(worker)]
    drafts = [copies[worker.name] for worker in workers]
    for draft in drafts:
        draft.barrier_peers = groups.get(draft.barrier_group or "", ())
    return drafts


def _copy(worker: WorkerView) -> Draft:
    return Draft(
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
        transfers=getattr(worker, "transfers", {}),
        residents=tuple(residents_of(worker) or ()),
        barrier_peers=(),
        stats=worker.stats,
    )
