"""Waiting for a placement, and giving it back.

A client can leave while its request is queued (withdraw), while it holds a lease (release), and in between:
the placement was made, but the waiter was cancelled before it ran again. The third is the leak that nobody
notices; `acquire` takes the result of its own future and releases it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType

from msgspec import structs

from router.core.answer import Usage
from router.core.errors import ConnectFailed, DeadlineExceeded, InternalError, RouterError, UpstreamError
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.request import Request
from router.dispatch.turns import Turns


class Held:
    """A lease as a context manager: whatever leaves the block settles the account, synchronously and once.

    The outcome is what was set with `settle`; otherwise it follows from the exception that left the block,
    and a block that simply ends was a success.
    """

    __slots__ = ("_dispatcher", "lease", "outcome", "reason", "waited")

    def __init__(self, dispatcher: Dispatcher, lease: Lease, *, waited: bool) -> None:
        """`waited`: the request stood in a queue, rather than being sent as it came."""
        self.waited = waited
        self._dispatcher = dispatcher
        self.lease = lease
        self.outcome: Outcome | None = None
        self.reason = ""

    @property
    def policy_name(self) -> str:
        """Whose choice it was."""
        return self.lease.policy

    def settle(self, outcome: Outcome, reason: str = "") -> None:
        """Says how it ended; the account is settled when the block is left."""
        self.outcome, self.reason = outcome, reason

    def settle_now(self, outcome: Outcome = Outcome.OK) -> None:
        """The engine is done with it: gives the slot back although the block goes on."""
        self.outcome = outcome
        self._dispatcher.release(self.lease, outcome, self.reason)

    def hand_back(self, outcome: Outcome, reason: str = "") -> None:
        """Nothing was sent: gives the worker back, and keeps the hand-over for another one."""
        self._dispatcher.hand_back(self.lease, outcome, reason)

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = self.outcome or outcome_of(error)
        self._dispatcher.release(self.lease, outcome, self.reason)

    def progress(
        self,
        *,
        generated_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """Reports an event of the stream; see `Pool.progress`."""
        self._dispatcher.progress(self.lease, generated_tokens, prompt_tokens, cached_tokens)

    def report(self, usage: Usage) -> None:
        """The engine told its usage, which may be after it gave its slot back."""
        self._dispatcher.reported(self.lease, usage)


def outcome_of(error: BaseException | None) -> Outcome:
    """How a lease ended, when all that is known is the exception that ended it."""
    if error is None:
        return Outcome.OK
    if not isinstance(error, UpstreamError):
        return Outcome.CANCELLED  # the client left, or its request was refused on the way, or a bug of ours
    if isinstance(error, DeadlineExceeded):
        return Outcome.TIMEOUT
    if isinstance(error, ConnectFailed):
        return Outcome.UNREACHABLE if error.refused else Outcome.FAILED
    return Outcome.FAILED


class Dispatcher:
    """Hands out the leases of one pool.

    State: `_waiters`, one future per queued request. Rounds are coalesced: however many events ask for one,
    there is one per turn of the loop, and for a policy that sees the whole queue at most one per
    `round_interval_s`.
    """

    def __init__(
        self,
        pool: Pool,
        now: Callable[[], float],
        *,
        round_interval_s: float = 0.010,
        on_room: Callable[[], None] | None = None,
        on_decided: Callable[[str, float], None] = lambda _policy, _seconds: None,
        turns: Turns | None = None,
    ) -> None:
        self.pool = pool
        self._now = now
        self.stopwatch = now
        """What decisions are measured by (s), where the clock is too coarse."""
        self._round_interval_s = round_interval_s
        self._on_room = on_room if on_room is not None else self.wake
        self._on_decided = on_decided
        self.turns = Turns(pool, now) if turns is None else turns
        self.beside: Turns | None = None
        """Of the pool whose workers prefill while those of this one wait for it."""
        self._waiters: dict[str, asyncio.Future[Lease]] = {}
        self._round: asyncio.Handle | None = None
        self._last_round = float("-inf")

    async def acquire(self, request: Request) -> Held:
        """Waits for a placement, and for its turn at the worker. The caller must enter the result at once
        (`with await acquire(…)`).

        Raises:
            NoWorker, QueueFull: see `Pool.submit`, `Pool.expire` and `Turns`.
            InternalError: a choice that was not offered; and whatever else a policy raises.
        """
        held = self._at_once(request) or await self._queued(request)
        while self._holds_back and not await self._in_turn(held):
            # It is placed anew, which moves no policy's state a second time.
            request = structs.replace(request, attempt=request.attempt + 1)
            held = self._at_once(request) or await self._queued(request)
        return held

    @property
    def _holds_back(self) -> bool:
        """Whether who has a worker may have to wait for a turn there."""
        return self.turns.hold_back or (self.beside is not None and self.beside.hold_back)

    async def _in_turn(self, held: Held) -> bool:
        """Waits until all that was charged may be sent; False gives it back, as a worker is lost."""
        lease, prefill = held.lease, held.lease.prefill
        try:
            goes = self.turns.enter(lease) or await self._wait_turn(held, self.turns, lease)
            if goes and self.beside is not None and prefill is not None and not prefill.prefilled:
                goes = self.beside.enter(prefill) or await self._wait_turn(held, self.beside, prefill)
        except BaseException:
            self.release(lease, Outcome.CANCELLED)
            raise
        if not goes:
            self.release(lease, Outcome.CANCELLED)
        return goes

    @staticmethod
    async def _wait_turn(held: Held, turns: Turns, lease: Lease) -> bool:
        held.waited = True
        return await turns.wait(lease)

    def _at_once(self, request: Request) -> Held | None:
        """A placement without waiting; None where it has to wait."""
        began = self.stopwatch()
        lease = self.pool.place_now(request, self._now())
        if lease is None:
            return None
        self._on_decided(lease.policy, self.stopwatch() - began)
        return Held(self, lease, waited=False)

    async def _queued(self, request: Request) -> Held:
        self.pool.submit(request, self._now())
        try:
            return Held(self, await self._wait(request.id), waited=True)
        finally:
            self.pool.withdraw(request.id)

    async def _wait(self, request_id: str) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters[request_id] = waiter
        self.wake()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result(), Outcome.CANCELLED)
            raise
        finally:
            del self._waiters[request_id]

    def wake(self) -> None:
        """Asks for a round: a request came, a worker became eligible, or room was made."""
        self.turns.wake()
        if self._round is not None or not self.pool.queued:
            return
        loop = asyncio.get_running_loop()
        wait_s = 0.0
        if self.pool.decides_by_batch:
            wait_s = max(self._last_round + self._round_interval_s - self._now(), 0.0)
        self._round = loop.call_later(wait_s, self._run_round) if wait_s else loop.call_soon(self._run_round)

    def _run_round(self) -> None:
        self._round = None
        self._last_round = now = self._now()
        began = self.stopwatch()
        try:
            leases = self.pool.assign(now)
            self._on_decided(self.pool.policy_name, self.stopwatch() - began)
        except Exception:
            # A policy with a bug must not leave its waiters hanging until their deadlines.
            self.refuse_all(InternalError(f"the policy of pool {self.pool.rules.name} failed"))
            raise
        self._deliver(leases)

    def _deliver(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            waiter = self._waiters.get(lease.request.id)
            if waiter is None or waiter.done():
                self.release(lease, Outcome.CANCELLED)
            else:
                waiter.set_result(lease)

    def refuse_all(self, error: RouterError) -> None:
        """Ends every wait with this error."""
        self.turns.refuse_all(error)
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)

    def release(self, lease: Lease, outcome: Outcome, reason: str = "") -> None:
        """Settles a lease once, and lets others into the room it made."""
        if lease.outcome is not None:
            return
        self.pool.release(lease, outcome, self._now(), reason)
        self._on_room()

    def hand_back(self, lease: Lease, outcome: Outcome, reason: str = "") -> None:
        """Settles a lease whose worker was sent nothing, and leaves its hand-over for another one."""
        self.pool.hand_back(lease, outcome, self._now(), reason)
        self._on_room()

    def progress(
        self,
        lease: Lease,
        generated_tokens: int | None,
        prompt_tokens: int | None,
        cached_tokens: int | None = None,
    ) -> None:
        """Reports an event of a lease. The one that proves a transfer makes room on both of its sides, and
        the one that ends a prefill at its worker."""
        transferring, prefilled = lease.transferring, lease.prefilled
        self.pool.progress(
            lease,
            self._now(),
            generated_tokens=generated_tokens,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        if (transferring and not lease.transferring) or (lease.keeps and not prefilled):
            self._on_room()

    def reported(self, lease: Lease, usage: Usage) -> None:
        """The engine told the usage of a lease, settled or not."""
        self.pool.chooser.reported(lease, usage)
        self.pool.ledger.reported(lease, usage, self._now())

    def expire(self) -> None:
        """Fails the waiters whose time is up; the reaper's verb."""
        orphans = []
        for request_id, error in self.pool.expire(self._now()):
            waiter = self._waiters.get(request_id)
            if waiter is None:
                orphans.append(request_id)
            elif not waiter.done():
                waiter.set_exception(error)
        self.turns.expire()
        self.wake()
        if orphans:
            raise InternalError(f"requests were queued without a waiter: {', '.join(orphans)}")

    def __repr__(self) -> str:
        return f"<Dispatcher {self.pool.rules.name} [{len(self._waiters)} waiting] {self.pool!r}>"
