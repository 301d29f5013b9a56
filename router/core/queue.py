"""Requests that wait for a worker: bounded per model in number, over all pools in bytes.

Separate from the Pool because who may wait, and who leaves how, is decided without looking at a worker.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.core.budget import Budget
from router.core.errors import DeadlineExceeded, InternalError, QueueFull, RouterError
from router.core.request import Request

UNKNOWN = ""
"""The lane of names that no worker is known to serve. Clients make them up, so they share one bound."""


class Waiting(msgspec.Struct, frozen=True):
    """One waiting request.

    Attributes:
        since: when it was put in (s).
        lane: what it is counted under: its model, or UNKNOWN.
    """

    request: Request
    since: float
    lane: str

    def overdue(self, max_wait_s: float, now: float) -> RouterError | None:
        """What its waiter is told when it has waited too long; None while it has not.

        One that was prefilled waits as long as its KV is kept.
        """
        request, handover = self.request, self.request.handover
        if handover is not None:
            if now < handover.dispatch_by:
                return None
            message = "No decode worker had room before the prefill worker may have dropped the KV."
            return DeadlineExceeded(message, phase="transfer", sent=False)
        limit = self.since + max_wait_s
        if request.deadline is not None:
            limit = min(limit, request.deadline)
        if now < limit:
            return None
        waited_s = now - self.since
        return QueueFull(f"waited {waited_s:.0f} s for a worker for `{request.model}`", retry_after_s=5.0)


class Queue:
    """Waiting requests by id, oldest first.

    State: `_waiting`, `_depths` (how many by lane; no entry for an empty one), and the bytes it has taken of
    the budget.
    """

    __slots__ = ("_bytes", "_depths", "_waiting", "max_per_lane")

    def __init__(self, max_per_lane: int, queued_bytes: Budget) -> None:
        self.max_per_lane = max_per_lane
        self._bytes = queued_bytes
        self._waiting: dict[str, Waiting] = {}
        self._depths: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    def full(self, lane: str) -> bool:
        return self._depths.get(lane, 0) >= self.max_per_lane

    def put(self, request: Request, lane: str, now: float) -> None:
        """Appends a request, whatever the depth of its lane.

        Raises:
            QueueFull: its bytes are too many.
            InternalError: one of the same id waits already.
        """
        if request.id in self._waiting:
            raise InternalError(f"request {request.id} was submitted twice")
        if not self._bytes.take(request.body_bytes):
            raise QueueFull("too many bytes of requests are waiting", retry_after_s=1.0)
        self._depths[lane] = self._depths.get(lane, 0) + 1
        self._waiting[request.id] = Waiting(request, now, lane)

    def take(self, request_id: str) -> bool:
        """Takes a request out; False when it does not wait (any more)."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return False
        self._bytes.give(waiting.request.body_bytes)
        left = self._depths[waiting.lane] - 1
        if left:
            self._depths[waiting.lane] = left
        else:
            del self._depths[waiting.lane]
        return True

    def __repr__(self) -> str:
        return f"<Queue [{len(self._waiting)} waiting in {len(self._depths)} lanes of {self.max_per_lane}]>"
