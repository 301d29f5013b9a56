"""One pool on the timeline: requests wait for a round, a round places what it can, and who is placed may wait
for a turn.

Separate from the lives of calls, as `router.dispatch` is from the life of a request: this is its twin without
futures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import structs

from router.core.errors import QueueFull, RouterError
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.request import Request
from router.studies.simulation.timeline import Timeline, Timer
from router.studies.simulation.turns import Turns


class Rounds:
    """Hands out the leases of one pool.

    Args:
        placed: told of every lease that may be sent.
        refused: told of every request that waited in vain.
        round_s: least time between two rounds of a policy that sees the whole queue.
    """

    def __init__(
        self,
        timeline: Timeline,
        pool: Pool,
        placed: Callable[[Lease], None],
        refused: Callable[[str, RouterError], None],
        round_s: float,
    ) -> None:
        self.pool = pool
        self.turns = Turns(timeline, pool)
        self.beside: Turns | None = None
        """Of the pool whose workers prefill while those of this one wait for it."""
        self._timeline = timeline
        self._placed = placed
        self._refused = refused
        self._round_s = round_s
        self._round: Timer | None = None
        self._last = float("-inf")

    def acquire(self, request: Request) -> None:
        """Places a request now, or lets it wait for a round. Raises what `Pool.submit` raises."""
        now = self._timeline.now
        lease = self.pool.place_now(request, now)
        if lease is not None:
            self._granted(lease)
            return
        self.pool.submit(request, now)
        self.wake()

    def _granted(self, lease: Lease) -> None:
        """A worker was chosen, where it may have to wait for its turn."""
        self.turns.enter(lease, partial(self._in_turn, lease))

    def _in_turn(self, lease: Lease, answer: bool | QueueFull) -> None:
        """The same for a prefill that runs beside."""
        prefill = lease.prefill
        if answer is True and self.beside is not None and prefill is not None and not prefill.prefilled:
            self.beside.enter(prefill, partial(self._may_go, lease))
        else:
            self._may_go(lease, answer)

    def _may_go(self, lease: Lease, answer: bool | QueueFull) -> None:
        """All that was charged may be sent; or none of it, and the request is placed anew."""
        if answer is True:
            self._placed(lease)
            return
        request = lease.request
        self.release(lease, Outcome.CANCELLED)
        if isinstance(answer, QueueFull):
            self._refused(request.id, answer)
            return
        try:
            # A second time it moves no policy's state.
            self.acquire(structs.replace(request, attempt=request.attempt + 1))
        except RouterError as error:
            self._refused(request.id, error)

    def wake(self) -> None:
        """Asks for a round: a request came, or room was made."""
        self.turns.wake()
        if self._round is not None or not self.pool.queued:
            return
        when = self._timeline.now
        if self.pool.decides_by_batch:
            when = max(self._last + self._round_s, when)
        self._round = self._timeline.at(when, self._run)

    def _run(self) -> None:
        self._round = None
        self._last = self._timeline.now
        for lease in self.pool.assign(self._timeline.now):
            self._granted(lease)

    def release(self, lease: Lease, outcome: Outcome, reason: str = "") -> None:
        """Settles a lease once."""
        self.pool.release(lease, outcome, self._timeline.now, reason)

    def sweep(self) -> None:
        """Upkeep: ends the waits that have become pointless."""
        for request_id, error in self.pool.expire(self._timeline.now):
            self._refused(request_id, error)
        self.turns.expire()
        self.wake()

    def __repr__(self) -> str:
        return f"<Rounds {self.pool!r}>"
