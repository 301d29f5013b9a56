"""What the prompts that wait at each worker are believed to find cached there.

Separate because a worker's `queued_tokens` counts prompts whole, while a policy that weighs seconds must not
take a queue of hits for a queue of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.lease import Lease
from router.core.worker import WorkerView


@dataclass(slots=True, repr=False)
class QueuedHits:
    """Held tokens of the requests that were placed and show no output yet.

    State: `_held` by request and worker, and their sums by worker. Both are empty when idle.
    """

    _held: dict[tuple[str, str], int] = field(default_factory=dict)
    _sums: dict[str, int] = field(default_factory=dict)

    def placed(self, request_id: str, worker: str, held_tokens: int) -> None:
        """A request was charged to a worker that is believed to hold so much of it."""
        if held_tokens <= 0:
            return
        self.over(request_id, worker)
        self._held[request_id, worker] = held_tokens
        self._sums[worker] = self._sums.get(worker, 0) + held_tokens

    def over(self, request_id: str, worker: str) -> None:
        """It waits there no more: it shows output, or has ended. A repeat changes nothing."""
        held = self._held.pop((request_id, worker), None)
        if held is None:
            return
        left = self._sums[worker] - held
        if left:
            self._sums[worker] = left
        else:
            del self._sums[worker]

    def ended(self, lease: Lease) -> None:
        """The same, by its lease."""
        self.over(lease.request.id, lease.worker)

    def tokens(self, workers: Sequence[WorkerView]) -> list[int]:
        """At each worker; never more than its queue as the ledger has it."""
        sums = self._sums
        if not sums:
            return [0] * len(workers)
        return [min(sums.get(w.name, 0), w.queued_tokens) for w in workers]

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<QueuedHits [{len(self._held)} requests | {sum(self._sums.values())} tokens]>"
