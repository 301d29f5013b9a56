"""One client connection: uvicorn's HTTP protocol with the bounds that traffic from strangers needs.

uvicorn parses and frames. This adds what it leaves open (deadlines for slow senders and slow readers, a bound
on heads, tidy answers to what is not HTTP/1.1), and gives the requests for engines to the application
directly, as turns; the other ones go through ASGI.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.api.behind_upgrade import BehindUpgrade
from router.api.errors import error_body
from router.api.routes import Route
from router.api.turn import Direct, Turn
from router.core.errors import BadRequest, HeadTooLarge, Overloaded, RouterError
from router.core.request import Api
from router.upstream.tuning import tune_socket

log = logging.getLogger("pointsman.connection")

_MAX_HEAD_BYTES = 64 * 1024
_MAX_HEADERS = 256
_TIMER_RESOLUTION_S = 0.001
_LINGER_S = 5.0
_H2C_PREFACE = b"PRI * HTTP/2"


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Bounds of one listener; times in seconds."""

    head_s: float = 30.0
    slow_client_s: float = 60.0
    keep_alive_s: float = 620.0
    write_buffer_bytes: int = 256 * 1024
    max_connections: int = 10_000


@dataclass(frozen=True, slots=True)
class Port:
    """What a connection asks of its port.

    Attributes:
        closing: whether it is about to close, so that answers say so.
        full: asked once; whether this connection is one too many.
        direct: serves the requests for engines; None: all go through ASGI.
    """

    closing: Callable[[], bool]
    full: Callable[[], bool]
    direct: Direct | None = None


class PointsmanProtocol(HttpToolsProtocol):
    """One client connection. `cycle` is its latest request, those of the `pipeline` wait for their answer."""

    cycle: RequestResponseCycle | Turn  # type: ignore[assignment]  # uvicorn asks of both only what both have
    pipeline: deque[tuple[RequestResponseCycle | Turn, Any]]  # type: ignore[assignment]  # as `cycle`

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        settings: ListenerSettings,
        port: Port,
    ) -> None:
        super().__init__(config, server_state, {})
        self._settings = settings
        self._port = port
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._read_timer: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._write_timer: asyncio.TimerHandle | None = None
        self._lingers: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._trailer_bytes = 0
        self._in_head = False
        self._unheard_bytes = 0
        self._body: BehindUpgrade | None = None
        self._serving: RequestResponseCycle | Turn | None = None

    # --- the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # asyncio types the argument wider
        self.transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        tune_socket(self.transport.get_extra_info("socket"))
        self._last_read = self.loop.time()
        self._watch_reading(self._settings.head_s)
        if self._port.full():
            self._refuse(Overloaded("The router has too many connections; try again shortly."))

    def connection_lost(self, exc: Exception | None) -> None:
        # As uvicorn's, which asks more of a cycle than a turn has, and leaves its timer behind after a reset.
        self.connections.discard(self)
        self._stop_read_timer()
        self._stop_write_timer()
        for timer in (self._idle_timer, self._lingers):
            if timer is not None:
                timer.cancel()
        for cycle in (self.cycle, self._serving):  # with requests in the pipeline they are two
            if cycle is None or cycle.response_complete:
                continue
            if isinstance(cycle, Turn):
                cycle.leave()
            else:
                cycle.disconnected = True
                cycle.message_event.set()
        self.flow.resume_writing()
        self.transport.close()
        self.pipeline.clear()
        # A turn knows its connection: the circle would keep both until the garbage is collected.
        self.parser = self.cycle = self._serving = None  # type: ignore[assignment]  # as before the first use

    def data_received(self, data: bytes) -> None:
        if self._lingers is not None:
            return
        self._last_read = self.loop.time()
        if data.startswith(_H2C_PREFACE):
            # A client that insists on HTTP/2 reads a plain close as "not here" and falls back.
            self.transport.close()
            return
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
            self._body = BehindUpgrade(self.headers, self.on_body, self._body_complete)
            self._body.feed(data[upgrade.args[0] :])

    def _refuse(self, error: RouterError) -> None:
        if self.transport.is_closing() or self._lingers is not None:
            return
        if self._answering:
            self._cut()  # this would be read as a part of that answer, or in its place
            return
        body = error_body(error, Api.OTHER)
        head = (
            f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.hang_up(unread=True)

    def hang_up(self, *, unread: bool) -> None:
        """Closes behind what was written.

        With a part of the request `unread`, the system would answer that with a reset, and a client that is
        still sending would see the reset and not its answer. So this side only ends its own direction, and
        throws away what comes for a while.
        """
        transport = self.transport
        if not unread or transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        self._lingers = self.loop.call_later(_LINGER_S, transport.close)
        transport.write_eof()
        self.flow.resume_reading()

    def _cut(self) -> None:
        """Sends what is buffered and closes without ending the answer."""
        if self._serving is not None:
            self._serving.disconnected = True
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
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._trailer_bytes = self._unheard_bytes = 0
        self._in_head = self._reading = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._trailer(len(name) + len(value))
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _trailer(self, size: int) -> None:
        """Thrown away: it must not pass for what came, and was judged, before the body."""
        self._trailer_bytes += size
        if self._trailer_bytes > _MAX_HEAD_BYTES:
            raise _Refused(HeadTooLarge(f"The trailers are larger than {_MAX_HEAD_BYTES} bytes."))

    def _judge_head(self) -> None:
        """Once it is whole: until then, what was read at a time and `_unheard_bytes` bound it."""
        headers = self.headers
        if len(headers) > _MAX_HEADERS:
            raise _Refused(HeadTooLarge(f"More than {_MAX_HEADERS} headers."))
        if len(self.url) + sum([len(name) + len(value) for name, value in headers]) > _MAX_HEAD_BYTES:
            raise _Refused(HeadTooLarge(f"The request head is larger than {_MAX_HEAD_BYTES} bytes."))

    def on_headers_complete(self) -> None:
        self._unheard_bytes = 0
        self._in_head = False
        self._judge_head()
        direct = self._port.direct
        found = None if direct is None else direct.find(self.url)
        if found is None:
            self._begin_cycle()
        else:
            self._begin_turn(*found)
        if self._port.closing():
            self.cycle.keep_alive = False

    def _begin_cycle(self) -> None:
        """Through ASGI. uvicorn's account of the request begins only here, since most requests need none."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the list is in the scope already
        super().on_headers_complete()

    def _begin_turn(self, route: Route, target: bytes) -> None:
        before, parser = self.cycle, self.parser
        version = parser.get_http_version()
        self.cycle = turn = Turn(
            line=self,
            route=route,
            method=parser.get_method(),
            target=target,
            headers=self.headers,
            http_version=version,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            waiting_for_100_continue=self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(turn, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((turn, self.app))

    def on_body(self, body: bytes) -> None:
        self._unheard_bytes = 0
        cycle = self.cycle
        if not isinstance(cycle, Turn):
            super().on_body(body)
        elif not cycle.response_complete and cycle.heard(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._body_complete()

    def _body_complete(self) -> None:
        self._unheard_bytes = 0
        self._reading = False
        self._stop_read_timer()
        cycle = self.cycle
        if not isinstance(cycle, Turn):
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.whole()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._lingers is not None:
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._watch_idleness(self._settings.keep_alive_s)

    def _start_asgi_task(self, cycle: RequestResponseCycle | Turn, app: Any) -> None:
        self._serving = cycle
        direct = self._port.direct
        if isinstance(cycle, Turn) and direct is not None:
            cycle.begin(self.loop.create_task(direct.serve(cycle)))
        elif not isinstance(cycle, Turn):
            super()._start_asgi_task(cycle, app)

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

    def _watch_idleness(self, within_s: float) -> None:
        """One timer for all the pauses between requests: most end long before it rings."""
        self._idle_timer = self.loop.call_later(within_s, self._check_idleness)

    def _check_idleness(self) -> None:
        self._idle_timer = None
        if self._serving is not None and not self._serving.response_complete:
            return  # the end of its answer will ask again
        since = max(self._idle_since, self._last_read)
        left_s = since + self._settings.keep_alive_s - self.loop.time()
        if left_s > _TIMER_RESOLUTION_S:
            self._watch_idleness(left_s)
        else:
            self.transport.close()

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


class _Refused(Exception):
    """Leaves a parser callback with the answer to give."""

    def __init__(self, error: RouterError) -> None:
        super().__init__(error.message)
        self.error = error
