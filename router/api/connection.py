"""One client connection: uvicorn's HTTP protocol with the bounds that traffic from strangers needs.

uvicorn parses and frames. This adds what it leaves open (deadlines for slow senders and slow readers, a bound
on heads, tidy answers to what is not HTTP/1.1) and tells the application when a client is gone, without a
task per request that waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.api.errors import error_body
from router.api.headers import Header
from router.core.errors import BadRequest, HeadTooLarge, Overloaded, RouterError
from router.core.request import Api
from router.upstream.tuning import tune_socket

log = logging.getLogger("pointsman.connection")

CONNECTION = "pointsman.connection"
"""Key of the ASGI scope under which a request finds its connection."""

_MAX_HEAD_BYTES = 64 * 1024
_MAX_HEADERS = 256
_FRAMING = (b"content-length", b"transfer-encoding")
_TIMER_RESOLUTION_S = 0.001
_H2C_PREFACE = b"PRI * HTTP/2"
_WITHOUT_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Bounds of one listener; times in seconds."""

    head_s: float = 30.0
    slow_client_s: float = 60.0
    keep_alive_s: float = 620.0
    write_buffer_bytes: int = 256 * 1024
    max_connections: int = 10_000


class PointsmanProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        settings: ListenerSettings,
        closing: Callable[[], bool],
        full: Callable[[], bool],
    ) -> None:
        """`closing` tells whether the port is about to close, so that answers say so; `full`, asked once,
        whether this connection is one too many."""
        super().__init__(config, server_state, {})
        self._settings = settings
        self._closing = closing
        self._full = full
        self.task: asyncio.Task[None] | None = None
        """Serves the present request. Asking asyncio for the current task costs a system call."""
        self._chunked = False
        self._gone: Callable[[], None] | None = None
        self._lost = False
        self._reading = False
        self._read_timer: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._write_timer: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._head_bytes = 0
        self._in_head = False
        self._unheard_bytes = 0
        self._body: _Body | None = None
        self._serving: RequestResponseCycle = None  # type: ignore[assignment]  # set before any use, as `cycle`

    # --- what the application may use -------------------------------------------------------------------

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Calls back once when the client leaves; None takes that back."""
        self._gone = callback
        if callback is not None and self._lost:
            self.loop.call_soon(callback)

    async def room(self) -> None:
        """Waits until the client has taken enough of what was written."""
        if self.flow.write_paused and not self._serving.disconnected:
            await self.flow.drain()

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Writes the head of an answer whose length is known by `content-length` or not at all."""
        cycle = self._serving
        if cycle.disconnected:
            return
        self._chunked = False
        head = self._head(status, headers)
        if status not in _WITHOUT_BODY and all(name != b"content-length" for name, _ in headers):
            # To a client of HTTP/1.0 the end of the connection is the end of the answer.
            self._chunked = cycle.scope["http_version"] == "1.1"
            head.append(b"transfer-encoding: chunked\r\n" if self._chunked else b"")
            cycle.keep_alive = cycle.keep_alive and self._chunked
        head.append(b"\r\n")
        self.transport.write(b"".join(head))

    def piece(self, data: bytes) -> None:
        """Writes a piece of the body."""
        if not data or self._serving.disconnected:
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """The body is complete."""
        if self._serving.disconnected:
            return
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")
        self._complete()

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Writes a whole answer at once; `headers` name no length."""
        if self._serving.disconnected:
            return
        head = self._head(status, headers)
        if status not in _WITHOUT_BODY:
            head.append(b"content-length: %d\r\n" % len(body))
        head += (b"\r\n", b"" if self._serving.scope["method"] == "HEAD" else body)
        self.transport.write(b"".join(head))
        self._complete()

    def close_unfinished(self) -> None:
        """Sends what is buffered and closes without ending the answer, so the client sees that it is cut."""
        self._serving.disconnected = True
        self.transport.close()

    def _head(self, status: int, headers: Sequence[Header]) -> list[bytes]:
        cycle = self._serving
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        return lines

    def _complete(self) -> None:
        cycle = self._serving
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    # --- the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # asyncio types the argument wider
        self.transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        tune_socket(self.transport.get_extra_info("socket"))
        self._last_read = self.loop.time()
        self._watch_reading(self._settings.head_s)
        if self._full():
            self._refuse(Overloaded("The router has too many connections; try again shortly."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._stop_read_timer()
        self._stop_write_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after a reset uvicorn leaves its timer behind, and us with it
        if self._serving is not None and not self._serving.response_complete:
            self._serving.disconnected = True  # with requests in the pipeline it is not the one uvicorn marks
            self._serving.message_event.set()
        callback, self._gone = self._gone, None
        if callback is not None:
            callback()

    def data_received(self, data: bytes) -> None:
        self._last_read = self.loop.time()
        if data.startswith(_H2C_PREFACE):
            # A client that insists on HTTP/2 reads a plain close as "not here" and falls back.
            self.transport.close()
            return
        self._unset_keepalive_if_required()
        self._unheard_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__cause__ or error.__context__
            self._refuse(cause.error if isinstance(cause, _Refused) else BadRequest("This is not HTTP/1.1."))
        if self._unheard_bytes > _MAX_HEAD_BYTES:
            # The parser collects a line without end in silence.
            self._refuse(HeadTooLarge(f"A part of the request is larger than {_MAX_HEAD_BYTES} bytes."))
        # Most requests arrive whole, in one read; only the others need a watch.
        if self._reading and self._read_timer is None:
            in_head = self.cycle is None or self.cycle.response_complete
            self._watch_reading(self._settings.head_s if in_head else self._settings.slow_client_s)

    def _feed(self, data: bytes) -> None:
        if self._body is not None:
            self._body.feed(data)
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Java's HTTP client offers h2c on every first request. Such a request, or one for a web socket,
            # is served as the HTTP/1.1 request that it also is; the parser stops at its head.
            self.cycle.keep_alive = False
            self._body = _Body(self.headers, self.on_body, self._body_complete)
            self._body.feed(data[upgrade.args[0] :])

    def _refuse(self, error: RouterError) -> None:
        if self.transport.is_closing():
            return
        if self._answering:
            self.close_unfinished()  # this would be read as a part of that answer, or in its place
            return
        body = error_body(error, Api.OTHER)
        head = (
            f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    @property
    def _answering(self) -> bool:
        """Whether the next bytes that leave belong to the answer of a request that came whole."""
        cycle = self._serving
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body

    # --- parser callbacks -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._unheard_bytes = 0
        self._in_head = True
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # servers may add keys
        self._reading = True

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if not self._in_head:
            return  # a trailer: it must not pass for what came, and was judged, before the body
        if len(self.headers) >= _MAX_HEADERS:
            raise _Refused(HeadTooLarge(f"More than {_MAX_HEADERS} headers."))
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise _Refused(HeadTooLarge(f"The request head is larger than {_MAX_HEAD_BYTES} bytes."))

    def on_headers_complete(self) -> None:
        self._unheard_bytes = 0
        self._in_head = False
        super().on_headers_complete()
        if self._closing():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._body_complete()

    def _body_complete(self) -> None:
        self._unheard_bytes = 0
        self._reading = False
        self._stop_read_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._gone = None
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        self.task = task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _should_upgrade(self) -> bool:
        return False

    # --- clients that send or take nothing ----------------------------------------------------------------

    def _watch_reading(self, within_s: float) -> None:
        self._read_timer = self.loop.call_later(within_s, self._check_read)

    def _check_read(self) -> None:
        """A head must be whole within its deadline; a body must only go on coming."""
        self._read_timer = None
        in_body = self._reading and self.cycle is not None and not self.cycle.response_complete
        patience_s = self._settings.slow_client_s
        left_s = patience_s if self.flow.read_paused else self._last_read + patience_s - self.loop.time()
        if in_body and left_s > _TIMER_RESOLUTION_S:
            self._watch_reading(left_s)
        else:
            self.transport.abort()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._settings.slow_client_s, self._check_write)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _check_write(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= self._unwritten:
            log.info("a client took nothing for %.0f s and was cut", self._settings.slow_client_s)
            self._write_timer = None
            self.transport.abort()
            return
        self._unwritten = left
        self._write_timer = self.loop.call_later(self._settings.slow_client_s, self._check_write)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _Body:
    """Reads the body of a request at whose head the parser stopped, by the framing that the head declared."""

    def __init__(
        self,
        headers: Sequence[Header],
        on_body: Callable[[bytes], None],
        on_message_complete: Callable[[], None],
    ) -> None:
        self.on_body = on_body
        self.on_message_complete = on_message_complete
        self._parser = httptools.HttpRequestParser(self)
        framing = [b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING]
        self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError."""
        if data:
            self._parser.feed_data(data)


class _Refused(Exception):
    """Leaves a parser callback with the answer to give."""

    def __init__(self, error: RouterError) -> None:
        super().__init__(error.message)
        self.error = error
