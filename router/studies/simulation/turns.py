"""Waiting for a turn at the worker that was chosen: the twin of `router.dispatch.turns` without futures.

Separate from waiting for a worker: who waits here holds a lease, and whoever is sent away must give it back.
"""

from __future__ import annotations

from collections.abc import Callable

from router.core.errors import QueueFull
from router.core.lease import Lease
from router.core.pool import Pool
from router.studies.simulation.timeline import Timeline, Timer

Answer = Callable[[bool | QueueFull], None]
"""Told whether a lease may be sent; False: its worker is lost to it; an error: it waited too long."""


class Turns:
    """Holds back what the local queue of one pool holds back.

    State: `_waiting`, who is told, for each held lease; whether a look at them is due.
    """

    def __init__(self, timeline: Timeline, pool: Pool) -> None:
        self._timeline = timeline
        self._pool = pool
        self._waiting: dict[Lease, Answer] = {}
        self._look: Timer | None = None

    def enter(self, lease: Lease, answer: Answer) -> None:
        """Answers at once where a lease that was just charged may be sent, else in its turn."""
        worker = self._pool.roster.workers.get(lease.worker)
        try:
            goes = worker is None or self._pool.local.enter(lease, worker, self._timeline.now)
        except QueueFull as error:
            answer(error)
            return
        if goes:
            answer(True)
        else:
            self._waiting[lease] = answer
            self.wake()

    def wake(self) -> None:
        """A worker may have room: asks for a look."""
        if self._waiting and self._look is None:
            self._look = self._timeline.at(self._timeline.now, self._run)

    def _run(self) -> None:
        self._look = None
        # All are found before any is told, which charges and settles others.
        for lease, goes in list(self._pool.local.due(self._pool.roster.workers, self._timeline.now)):
            self._waiting.pop(lease)(goes)

    def expire(self) -> None:
        """Sends those away whose time is up."""
        for lease in self._pool.local.overdue(self._pool.rules.max_wait_s, self._timeline.now):
            self._pool.local.leave(lease)
            self._waiting.pop(lease)(QueueFull("waited too long for a turn at a worker", retry_after_s=5.0))

    def __repr__(self) -> str:
        return f"<Turns [{len(self._waiting)} waiting] {self._pool.local!r}>"
