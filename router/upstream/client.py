"""Requests to workers: the only way out of the router.

Separate from wires and exchanges because the pooling, the one retry and the account of what is open are
about many connections; they are about one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from router.core.errors import ConnectFailed, DeadlineExceeded, InternalError, Overloaded, UpstreamClosed
from router.upstream.connect import Connect
from router.upstream.dials import Dials
from router.upstream.exchange import AnsweredMeanwhile, Exchange
from router.upstream.head import request_head
from router.upstream.idle import IdleWires
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from router.upstream.upload import Upload, slices
from router.upstream.wire import Wire


class WireRequest(msgspec.Struct, frozen=True):
    """What goes to a worker.

    Attributes:
        target: path and query, relative to the origin's base path.
        headers: end-to-end fields; Host, framing and hop-by-hop fields in it are left out on the wire.
        body: bytes, or an iterator for what is too large to hold. An iterator is asked for the next piece
            when the worker has taken the last; its errors come out of `open` or `read`.
        content_length: of an iterated body when it is known; None sends it in chunks.
        once: not a byte of it may leave twice, so a reused connection that turns out closed ends it.
        sent_by: absolute time (s) by which its last byte must have left; None: as long as bytes leave.
        on_sending: called when its first byte has left.
    """

    method: bytes
    target: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes | AsyncIterator[bytes] = b""
    content_length: int | None = None
    once: bool = False
    sent_by: float | None = None
    on_sending: Callable[[], None] | None = None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, for scrapes, probes and other small things."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Upstream:
    """Sends requests over connections that it keeps for reuse.

    Args:
        connect: makes connections; `TcpConnect` or the one of a virtual network.
        now: the clock of all deadlines (s, monotonic), the running loop's or one that runs alike.
    """

    def __init__(
        self,
        connect: Connect,
        now: Callable[[], float],
        settings: UpstreamSettings | None = None,
    ) -> None:
        self._connect = connect
        self._now = now
        self._settings = settings or UpstreamSettings()
        self._idle = IdleWires(self._settings)
        self._dials = Dials(self._settings.dials_at_once)
        self._wires: set[Wire] = set()
        self._busy = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_lost: asyncio.Future[None] | None = None

    async def open(
        self, origin: Origin, request: WireRequest, *, headers_by: float | None = None, phase: str = "headers"
    ) -> Exchange:
        """Send `request` and wait for the head of the answer.

        A reused connection that turns out closed is replaced by a fresh one, once. An iterated body cannot be
        sent twice, so it goes on a fresh connection from the start. When the answer comes before the body has
        left, an answer below 300 lets it go on; any other ends it, and the answer is read as usual.

        Args:
            headers_by: absolute time (s) by which the head must have come, connecting included.
            phase: what that deadline is called when it runs out.

        Raises:
            ConnectFailed: no connection; nothing was sent.
            UpstreamClosed: not a byte of an answer came.
            UpstreamBroken: bytes came, but no head of an HTTP answer.
            DeadlineExceeded: of `phase`, of "connect", or of "write" when the worker takes no bytes.
            BadRequest: the request cannot be written down as HTTP.
            AnsweredMeanwhile: cancelled, and the whole answer was there.
        """
        if self._closed:
            raise Overloaded("The router is shutting down.")
        body = request.body
        length = len(body) if isinstance(body, bytes) else request.content_length
        path = origin.base_path.encode() + request.target
        head = request_head(request.method, path, origin.authority.encode(), request.headers, length)
        self._busy += 1
        try:
            wire = self._idle.take(origin, self._now()) if isinstance(body, bytes) else None
            stale = False
            if wire is not None:
                try:
                    return await self._ask(wire, head, request, headers_by, phase)
                except UpstreamClosed:
                    if request.once or not (stale := wire.stale):
                        raise
            wire = await self._dial(origin, _earlier(headers_by, request.sent_by), stale)
            return await self._ask(wire, head, request, headers_by, phase)
        except BaseException:
            self._busy -= 1
            raise

    async def fetch(self, origin: Origin, request: WireRequest, *, total_s: float, max_bytes: int) -> Answer:
        """The whole answer, in `total_s` seconds and `max_bytes` of body. Raises as `open` and `read` do."""
        until = self._now() + total_s
        with await self.open(origin, request, headers_by=until, phase="total") as exchange:
            body = await exchange.read_all(max_bytes=max_bytes, until=until)
            return Answer(exchange.status, exchange.headers, body)

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to a worker that was removed. What is under way goes on."""
        self._idle.drop(origin)

    async def aclose(self) -> None:
        """Close every connection, also the busy ones, and wait until the sockets are gone."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.close()
        for wire in list(self._wires):
            wire.fail(Overloaded("The router is shutting down."))
        if self._wires:
            self._all_lost = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_lost], timeout=self._settings.close_s)

    def __repr__(self) -> str:
        origins = {wire.origin for wire in self._wires if not wire.closing}
        return f"<Upstream [{self._busy} busy | {len(self._idle)} idle | {len(origins)} origins]>"

    # --- inside --------------------------------------------------------------------------------------

    async def _ask(
        self, wire: Wire, head: bytes, request: WireRequest, headers_by: float | None, phase: str
    ) -> Exchange:
        body = request.body
        if isinstance(body, bytes) and len(body) <= self._settings.one_write_bytes:
            wire.ask(head, body)
        else:
            wire.ask(head, b"")
            self._upload(wire, request)
        if request.on_sending is not None and wire.error is None:
            request.on_sending()
        too_late = self._watch_sending(wire, request.sent_by)
        try:
            await self._head(wire, headers_by, phase)
        finally:
            if too_late is not None:
                too_late.cancel()
        if wire.upload is not None and wire.decoder.status >= 300:
            wire.upload.stop()
        return Exchange(wire, self._settle)

    async def _head(self, wire: Wire, headers_by: float | None, phase: str) -> None:
        decoder = wire.decoder
        while not decoder.head_done:
            if wire.error is not None:
                raise wire.error
            try:
                await wire.wait(headers_by, phase)
            except asyncio.CancelledError:
                if decoder.complete:
                    raise AnsweredMeanwhile(decoder.status, decoder.take()) from None
                raise

    def _watch_sending(self, wire: Wire, sent_by: float | None) -> asyncio.TimerHandle | None:
        if sent_by is None or wire.all_sent:
            return None
        delay_s = max(0.0, sent_by - self._now())
        return asyncio.get_running_loop().call_later(delay_s, wire.give_up_sending)

    def _upload(self, wire: Wire, request: WireRequest) -> None:
        if wire.error is not None:
            return
        body = request.body
        if isinstance(body, bytes):
            wire.upload = Upload(wire, slices(body, self._settings.one_write_bytes), len(body))
        else:
            wire.upload = Upload(wire, body, request.content_length)

    async def _dial(self, origin: Origin, due: float | None, stale: bool) -> Wire:
        """A fresh connection. `stale`: a first one may have carried the request already."""
        made: list[Wire] = []

        def factory() -> Wire:
            made.append(Wire(origin, self._now, self._settings, self._lost))
            return made[-1]

        budget_s = None if due is None else max(0.0, due - self._now())
        scope = asyncio.timeout(budget_s)
        try:
            async with scope, self._dials.place(origin):
                await self._connect(origin, factory)
        except BaseException as error:
            for wire in made:
                wire.abort()
            if isinstance(error, TimeoutError) and scope.expired():
                message = "The worker was too slow: the deadline ran out while connecting."
                raise DeadlineExceeded(message, phase="connect", sent=stale) from error
            if stale and isinstance(error, ConnectFailed):
                message = "The worker closed the connection and takes no other."
                raise UpstreamClosed(message, sent=True) from error
            raise
        if len(made) != 1:
            raise InternalError("A connection was made with the wrong protocol.")
        wire = made[0]
        self._wires.add(wire)
        if self._closed:
            wire.abort()
            raise Overloaded("The router is shutting down.")
        return wire

    def _settle(self, wire: Wire) -> None:
        """An exchange was closed."""
        self._busy -= 1
        if self._busy < 0:
            raise InternalError("More exchanges were closed than opened.")
        if not wire.release():
            return
        if self._closed or not self._idle.put(wire, self._now()):
            wire.close()
        elif self._sweep is None:
            self._sweep_in(self._settings.idle_s)

    def _lost(self, wire: Wire) -> None:
        self._wires.discard(wire)
        self._idle.remove(wire)
        if self._all_lost is not None and not self._wires and not self._all_lost.done():
            self._all_lost.set_result(None)

    def _sweep_in(self, delay_s: float) -> None:
        self._sweep = asyncio.get_running_loop().call_later(delay_s, self._sweep_idle)

    def _sweep_idle(self) -> None:
        self._sweep = None
        now = self._now()
        next_due = self._idle.sweep(now)
        if next_due is not None:
            self._sweep_in(max(0.0, next_due - now))


def _earlier(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)
