"""Workers as they will be once a round has placed what it placed so far.

Separate from the round because a policy reads and never charges: it plans on copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.cost import Demand
from router.core.worker import WorkerView
from router.core.worker_copy import WorkerCopy
from router.policies.barrier import peers_of


@dataclass(slots=True, eq=False, kw_only=True)
class Draft(WorkerCopy):
    """A copy of a worker that a plan may charge."""

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
    draft = Draft.of(worker)
    draft.barrier_peers = ()
    return draft
