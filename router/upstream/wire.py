"""One connection to a worker: an asyncio.Protocol that carries one exchange at a time.

Separate from the exchange because it outlives it: the wire knows bytes, flow control and its own end; who
reads, why and until when is told to it. No task, queue or event: a future exists only while somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from router.core.errors import DeadlineExceeded, InternalError, UpstreamBroken, UpstreamClosed
from router.upstream.alarm import Alarm
from router.upstream.decoder import Malformed, ResponseDecoder
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings

if TYPE_CHECKING:
    from router.upstream.upload import Upload

_STALL_CHECKS = 6
"""Looks per stall deadline: progress is noticed with a sixth of it as the error."""


Sink = Callable[[bytes], float | None]
"""Takes bytes the moment they come. Returns by when the next must have come (s), or None for enough."""


class Wire(asyncio.Protocol):
    """A connection, busy with one exchange or idle.

    Attributes:
        busy: an exchange owns it. Bytes that arrive while it is idle close it.
        reused: it has carried an exchange before the present one.
        idle_since: when it was last given back (s).
        asked_at: when the present request left (s).
        enough: the sink of the last `pour` wanted no more.
        error: why the present exchange cannot go on; what was buffered before is still good.
        connected: there was a socket; TLS may fail before that.
        lost: the socket is gone.
    """

    __slots__ = (
        "_alarm",
        "_drained",
        "_loop",
        "_now",
        "_on_lost",
        "_phase",
        "_reading_paused",
        "_settings",
        "_sink",
        "_sink_error",
        "_stall_bytes",
        "_stall_check",
        "_stall_since",
        "_transport",
        "_waiter",
        "_writing_paused",
        "asked_at",
        "busy",
        "connected",
        "decoder",
        "enough",
        "error",
        "idle_since",
        "lost",
        "origin",
        "reused",
        "upload",
    )

    def __init__(
        self,
        origin: Origin,
        now: Callable[[], float],
        settings: UpstreamSettings,
        on_lost: Callable[[Wire], None],
    ) -> None:
        self.origin = origin
        self.decoder = ResponseDecoder()
        self.upload: Upload | None = None
        self.busy = False
        self.reused = False
        self.connected = False
        self.lost = False
        self.error: Exception | None = None
        self.enough = False
        self._sink: Sink | None = None
        self._sink_error: Exception | None = None
        self.idle_since = 0.0
        self.asked_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # from connection_made on
        self._alarm = Alarm(self._loop, now, self._overdue)
        self._now = now
        self._settings = settings
        self._on_lost = on_lost
        self._waiter: asyncio.Future[None] | None = None
        self._phase = ""
        self._drained: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._stall_check: asyncio.TimerHandle | None = None
        self._stall_since = 0.0
        self._stall_bytes = 0

    # --- asyncio.Protocol ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.connected = True
        # Without room to buffer, pause_writing means "the worker has not taken all of it yet".
        # Not 0: TLS transports compare with >= and would pause for ever.
        self._transport.set_write_buffer_limits(high=1, low=0)

    def data_received(self, data: bytes) -> None:
        if not self.busy:
            self.abort()  # nobody asked: it cannot be trusted with the next request
            return
        decoder = self.decoder
        try:
            decoder.feed(data)
        except Malformed as error:
            self.fail(UpstreamBroken(str(error)))
            return
        if self._sink is not None:
            self._pour(self._sink)
            return
        if decoder.buffered > self._settings.read_ahead_bytes and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():  # cancelled in this turn of the loop
                waiter.set_result(None)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._end(exc)
        self._alarm.cancel()
        self._stop_watching_writes()
        self._stop_upload()
        self.decoder.close()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._stall_since = self._now()
        self._stall_bytes = self._transport.get_write_buffer_size()
        self._watch_writes()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._stop_watching_writes()
        self._wake_writer()

    # --- for the exchange ----------------------------------------------------------------------------

    def ask(self, head: bytes, body: bytes) -> None:
        """Begin an exchange. The wire must be idle, and be released or aborted afterwards."""
        if self.busy:
            raise InternalError("A connection was asked while it carries another exchange.")
        self.busy = True
        self.asked_at = self._now()
        if self._transport.is_closing():
            self.fail(UpstreamClosed("The worker closed the connection.", sent=self.reused))
        else:
            self._transport.write(head + body if body else head)

    def write(self, *pieces: bytes | memoryview) -> None:
        self._transport.writelines(pieces)

    @property
    def all_sent(self) -> bool:
        """Whether the last byte of the request has left."""
        return not self._writing_paused and (self.upload is None or self.upload.done)

    def give_up_sending(self) -> None:
        """What has not left by now must not leave any more."""
        if not self.all_sent:
            message = "The worker did not take the request before the KV that it names may be gone."
            self.fail(DeadlineExceeded(message, phase="transfer", sent=True))

    async def writable(self) -> bool:
        """Wait until the worker has taken all that was written. False: it will take no more."""
        if self._writing_paused and not self.lost:
            self._drained = self._loop.create_future()
            await self._drained
        return self.error is None and not self.closing

    async def wait(self, until: float | None, phase: str) -> None:
        """Wait until something happens: bytes, the end, an error. Check which, and call again.

        At `until` the error becomes DeadlineExceeded of `phase`. Cancelled, it aborts the connection.
        """
        if self._waiter is not None:
            raise InternalError("Two readers wait for one answer.")
        self._waiter = waiter = self._loop.create_future()
        if until is None:
            self._alarm.clear()
        else:
            self._phase = phase
            self._alarm.set(until)
        try:
            await waiter
        except asyncio.CancelledError:
            self._waiter = None
            self.abort()
            raise

    async def pour(self, sink: Sink, until: float, phase: str) -> None:
        """Wait as `wait` does, but hand bytes to `sink` as they come, without waking anybody for them.

        Ends when the sink has had enough, or when something else happens. What the sink raises comes out
        here.
        """
        self._sink, self._sink_error, self.enough = sink, None, False
        try:
            await self.wait(until, phase)
        finally:
            self._sink = None
        if self._sink_error is not None:
            raise self._sink_error

    def _pour(self, sink: Sink) -> None:
        decoder = self.decoder
        try:
            until = sink(decoder.take()) if decoder.buffered else self._alarm.due
        except Exception as error:  # noqa: BLE001 - it belongs to whoever gave the sink, and comes out of `pour`
            self._sink_error, until = error, None
        self.enough = until is None
        if until is None or decoder.complete:
            self._sink = None
            self._wake()
        else:
            self._alarm.set(until)

    def take(self) -> bytes:
        """All that is buffered; reading goes on if it was paused."""
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        return self.decoder.take()

    def hurry(self, until: float, phase: str) -> None:
        """Shorten the deadline of the reader that waits now, if one does."""
        if self._waiter is not None and (self._alarm.due is None or until < self._alarm.due):
            self._phase = phase
            self._alarm.set(until)

    def fail(self, error: Exception) -> None:
        """End the exchange with `error` and the connection with it. The first error stays."""
        if self.error is None:
            self.error = error
        self.abort()
        self._wake()

    def release(self) -> bool:
        """End the exchange. True: idle and fit for another one; False: the connection is closed."""
        decoder = self.decoder
        if (
            not (decoder.complete and decoder.reusable)
            or self.error is not None
            or self._writing_paused
            or (self.upload is not None and not self.upload.done)
            or self._transport.is_closing()
        ):
            self.abort()
            return False
        self.busy = False
        self.reused = True
        if self.upload is not None:
            self.upload.stop()
            self.upload = None
        decoder.begin()
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        return True

    def close(self) -> None:
        """Close an idle connection the polite way."""
        self._alarm.cancel()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; the worker notices that nobody reads on."""
        self._stop_upload()
        self._alarm.cancel()
        if self.connected:
            self._transport.abort()

    @property
    def closing(self) -> bool:
        return not self.connected or self.lost or self._transport.is_closing()

    @property
    def stale(self) -> bool:
        """The exchange failed because the worker had closed the idle connection before the request came.

        Told by what can be seen here: reused, not a byte came back, and it ended at once.
        """
        return (
            self.reused
            and not self.decoder.began
            and isinstance(self.error, UpstreamClosed)
            and self._now() - self.asked_at <= self._settings.stale_s
        )

    def __repr__(self) -> str:
        state = "closed" if self.closing else "busy" if self.busy else "idle"
        return f"<Wire {self.origin.authority} [{state} | {self.decoder.buffered} bytes]>"

    # --- inside --------------------------------------------------------------------------------------

    def _end(self, exc: Exception | None) -> None:
        """The peer sends no more: what that means depends on how far the answer is."""
        if self.busy and not self.decoder.complete and self.error is None:
            if not self.decoder.began:
                self.error = UpstreamClosed("The worker closed the connection without an answer.", sent=True)
            elif exc is not None or not self.decoder.end():
                self.error = UpstreamBroken("The worker's answer was cut short.")
            if self.error is not None:
                self.error.__cause__ = exc
                self.abort()
        self._wake()

    def _overdue(self) -> None:
        # Nobody waits: the alarm is left from the last wait, or the reader was woken in this very turn.
        if self._waiter is not None:
            message = f"The worker was too slow: the deadline of the phase '{self._phase}' ran out."
            self.fail(DeadlineExceeded(message, phase=self._phase, sent=True))

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._wake_writer()

    def _wake_writer(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _stop_upload(self) -> None:
        if self.upload is not None:
            self.upload.stop()

    def _watch_writes(self) -> None:
        self._stop_watching_writes()
        period_s = self._settings.write_stall_s / _STALL_CHECKS
        self._stall_check = self._loop.call_later(period_s, self._check_writes)

    def _stop_watching_writes(self) -> None:
        if self._stall_check is not None:
            self._stall_check.cancel()
            self._stall_check = None

    def _check_writes(self) -> None:
        now, left = self._now(), self._transport.get_write_buffer_size()
        if left < self._stall_bytes:
            self._stall_bytes, self._stall_since = left, now
        if now - self._stall_since < self._settings.write_stall_s - 0.001:
            self._watch_writes()
            return
        self._stall_check = None
        message = f"The worker took nothing of the request for {self._settings.write_stall_s:g} s."
        self.fail(DeadlineExceeded(message, phase="write", sent=True))
