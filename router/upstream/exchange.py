"""One request and its answer, as the caller sees it.

Separate from the wire so that a caller who keeps it too long holds nothing: after `close` it has no
connection, and the connection may long serve somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from router.core.errors import InternalError, UpstreamBroken
from router.upstream.wire import Sink, Wire


class AnsweredMeanwhile(asyncio.CancelledError):
    """Cancelled, in the very turn in which the answer came: whoever must know what it was finds it here.

    Attributes:
        status, body: of the whole answer.
    """

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__()
        self.status = status
        self.body = body


class Exchange:
    """The answer of a worker, its head known, its body to be read. Close it, whatever happens.

    Attributes:
        status: of the final answer, 200 to 999; interim answers are skipped.
        headers: names in lower case, without hop-by-hop fields: fit to be forwarded with the bytes of `read`.
    """

    __slots__ = ("_complete", "_decoder", "_on_close", "_phase", "_wire", "headers", "status")

    def __init__(self, wire: Wire, on_close: Callable[[Wire], None]) -> None:
        decoder = wire.decoder
        self.status: int = decoder.status
        self.headers: list[tuple[bytes, bytes]] = decoder.headers
        self._wire: Wire | None = wire
        self._decoder = decoder
        self._on_close = on_close
        self._phase = "idle"
        self._complete = False

    @property
    def complete(self) -> bool:
        """The last byte of the answer has come, read or not."""
        return self._complete if self._wire is None else self._decoder.complete

    async def read(self, until: float | None = None, phase: str = "idle") -> bytes:
        """The next bytes of the body as they came, all that is buffered; b"" at the proper end.

        Cancelled, it closes the socket at once.

        Args:
            until: absolute time (s) by which something must have come.
            phase: what the deadline is called when it runs out.

        Raises:
            UpstreamBroken: the answer was cut short. Everything before was returned first.
            DeadlineExceeded: `until`, or the time given to `hurry` meanwhile, has passed.
        """
        wire, decoder = self._wire, self._decoder
        if wire is None:
            raise InternalError("An exchange was read after it was closed.")
        while not decoder.buffered:
            if decoder.complete:
                return b""
            if wire.error is not None:
                raise wire.error
            self._phase = phase
            await wire.wait(until, phase)
        return wire.take()

    async def pour(self, sink: Sink, until: float, phase: str = "idle") -> bool:
        """Hands the rest of the body to `sink` piece by piece, each the moment it comes.

        For streams of many small pieces: nobody is woken for each of them. Cancelled, it closes the socket.

        Args:
            sink: gets the bytes and says by when the next must have come, or None for enough.
            until: by when the first must have come (s, absolute).

        Returns:
            True at the proper end, False when the sink had enough: then read on, or pour again.

        Raises:
            UpstreamBroken, DeadlineExceeded: as `read`. Also whatever the sink raises.
        """
        wire, decoder = self._wire, self._decoder
        if wire is None:
            raise InternalError("An exchange was read after it was closed.")
        while True:
            if decoder.buffered:
                due = sink(wire.take())
                if due is None:
                    return False
                until = due
            if decoder.complete:
                return True
            if wire.error is not None:
                raise wire.error
            self._phase = phase
            await wire.pour(sink, until, phase)
            if wire.enough:
                return False

    async def read_all(self, *, max_bytes: int, until: float | None, phase: str = "total") -> bytes:
        """The whole body. Raises as `read` does, UpstreamBroken beyond `max_bytes`, and AnsweredMeanwhile
        when it is cancelled in the turn in which the last byte came."""
        wire, decoder = self._wire, self._decoder
        if wire is not None and decoder.complete and decoder.buffered <= max_bytes:
            return wire.take()  # it came with its head, as small answers do
        pieces: list[bytes] = []
        size = 0
        while piece := await self._next(pieces, until, phase):
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                error = UpstreamBroken(f"The worker's answer is larger than the {max_bytes} bytes allowed.")
                if self._wire is not None:
                    self._wire.fail(error)
                raise error
        return b"".join(pieces)

    async def _next(self, pieces: list[bytes], until: float | None, phase: str) -> bytes:
        try:
            return await self.read(until, phase)
        except asyncio.CancelledError:
            if self.complete:
                raise AnsweredMeanwhile(self.status, b"".join((*pieces, await self.read()))) from None
            raise

    def hurry(self, until: float) -> None:
        """The read that waits now waits no longer than `until` (s); later ones say their own deadline."""
        if self._wire is not None:
            self._wire.hurry(until, self._phase)

    def close(self) -> None:
        """Idempotent. After a complete answer the connection is kept; otherwise it is closed at once."""
        wire = self._wire
        if wire is not None:
            self._complete = self._decoder.complete
            self._wire = None
            self._on_close(wire)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._wire is None:
            return f"<Exchange {self.status} [closed | {'complete' if self._complete else 'incomplete'}]>"
        state = "complete" if self._decoder.complete else "broken" if self._wire.error else "open"
        return f"<Exchange {self.status} [{state} | {self._decoder.buffered} bytes buffered]>"
