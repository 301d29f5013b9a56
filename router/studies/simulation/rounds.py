"""One pool on the timeline: requests wait for a round, a round places what it can.

Separate from the lives of calls, as `router.dispatch` is from the life of a request: this is its twin without
futures.
"""

from __future__ import annotations

from collections.abc import Callable

from router.core.errors import RouterError
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.request import Request
from router.studies.simulation.timeline import Timeline, Timer


class Rounds:
    """Hands out the leases of one pool.

    Args:
        placed: told of every lease that a round grants.
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
            self._placed(lease)
            return
        self.pool.submit(request, now)
        self.wake()

    def wake(self) -> None:
        """Asks for a round: a request came, or room was made."""
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
            self._placed(lease)

    def release(self, lease: Lease, outcome: Outcome, reason: str = "") -> None:
        """Settles a lease once."""
        self.pool.release(lease, outcome, self._timeline.now, reason)

    def sweep(self) -> None:
        """Upkeep: ends the waits that have become pointless."""
        for request_id, error in self.pool.expire(self._timeline.now):
            self._refused(request_id, error)
        self.wake()

    def __repr__(self) -> str:
        return f"<Rounds {self.pool!r}>"
