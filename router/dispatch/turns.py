"""Waiting for a turn at the worker that was chosen.

Separate from waiting for a worker: who waits here holds a lease, and whoever leaves must give it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.core.errors import InternalError, QueueFull, RouterError
from router.core.lease import Lease
from router.core.local_queue import Order
from router.core.pool import Pool


def _nobody(worker: str, seconds: float) -> None:
    """Nobody counts."""


class Turns:
    """Holds back what the local queue of one pool holds back.

    State: `_waiters`, one future per held lease, and whether a look at them is due. However many events ask
    for one, there is one per turn of the loop.
    """

    def __init__(
        self, pool: Pool, now: Callable[[], float], on_waited: Callable[[str, float], None] = _nobody
    ) -> None:
        self._pool = pool
        self._now = now
        self._on_waited = on_waited
        self._waiters: dict[Lease, asyncio.Future[bool]] = {}
        self._look: asyncio.Handle | None = None

    @property
    def hold_back(self) -> bool:
        """Whether anybody may have to wait."""
        return self._pool.local.order is not Order.OFF

    def enter(self, lease: Lease) -> bool:
        """Whether a lease that was just charged may be sent at once; otherwise it must `wait`.

        Raises QueueFull when too many wait already.
        """
        worker = self._pool.roster.workers.get(lease.worker)
        return worker is None or self._pool.local.enter(lease, worker, self._now())

    async def wait(self, lease: Lease) -> bool:
        """Waits for the turn of a lease that did not go at once. False when its worker is lost to it.

        Raises QueueFull when it waited too long.
        """
        began = self._now()
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[lease] = waiter
        self.wake()
        try:
            return await waiter
        finally:
            del self._waiters[lease]
            self._pool.local.leave(lease)
            self._on_waited(lease.worker, self._now() - began)

    def wake(self) -> None:
        """A worker may have room: asks for a look."""
        if self._waiters and self._look is None:
            self._look = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._look = None
        try:
            for lease, goes in self._pool.local.due(self._pool.roster.workers, self._now()):
                self._answer(lease, goes)
        except Exception:
            # A bug must not leave those who wait hanging until their deadlines.
            self.refuse_all(InternalError(f"the local queue of pool {self._pool.rules.name} failed"))
            raise

    def _answer(self, lease: Lease, goes: bool) -> None:
        waiter = self._waiters.get(lease)
        if waiter is None:
            raise InternalError(f"{lease!r} was held without a waiter")
        if not waiter.done():
            waiter.set_result(goes)

    def expire(self) -> None:
        """Fails those whose time is up."""
        for lease in self._pool.local.overdue(self._pool.rules.max_wait_s, self._now()):
            waiter = self._waiters.get(lease)
            if waiter is not None and not waiter.done():
                waiter.set_exception(
                    QueueFull(
                        f"waited too long for a turn at a worker for `{lease.request.model}`",
                        retry_after_s=5.0,
                    )
                )

    def refuse_all(self, error: RouterError) -> None:
        """Ends every wait with this error."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)

    def __repr__(self) -> str:
        return f"<Turns [{len(self._waiters)} waiting] {self._pool.local!r}>"
