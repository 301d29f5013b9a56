"""One request on a connection of ours, and its answer: elsewhere these are a scope, a cycle and messages.

Separate from the connection because it lives as long as its request, and is all that the request's own task
ever sees of the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from router.api.errors import error_body, error_headers
from router.api.headers import Header
from router.api.routes import Route
from router.core.errors import InternalError

log = logging.getLogger("pointsman.connection")

_WITHOUT_BODY = frozenset({204, 304})
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


class Line(Protocol):
    """The connection, as a turn sees it."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    server_state: ServerState
    tasks: set[asyncio.Task[None]]

    def on_response_complete(self) -> None:
        """The next request may be served."""
        ...

    def hang_up(self, *, unread: bool) -> None:
        """Closes behind what was written; `unread`: the client may still be sending."""
        ...


class Turn(msgspec.Struct, eq=False):
    """A request and the Responder of its answer; writes straight to the connection.

    A struct, as are the other objects that every request makes: made five times faster than a dataclass.

    Attributes:
        target: path and query, as the engine should get them.
        keep_alive: whether another request may follow on the connection.
        waiting_for_100_continue: the client sends its body only when told to.
        started: whether the status line was sent.
        disconnected: nothing that is written arrives any more.
        left: the client is gone, and the task was told so by its cancellation.
        more_body: whether a part of the body is still to come.
    """

    line: Line
    route: Route
    method: bytes
    target: bytes
    headers: list[Header]
    http_version: str
    keep_alive: bool
    waiting_for_100_continue: bool
    started: bool = False
    disconnected: bool = False
    left: bool = False
    more_body: bool = True
    response_complete: bool = False
    _chunked: bool = False
    _body: bytes | bytearray = b""
    _news: bool = False
    _waiter: asyncio.Future[None] | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def response_started(self) -> bool:
        """What uvicorn calls it."""
        return self.started

    # --- what the connection tells it ---------------------------------------------------------------------

    def begin(self, task: asyncio.Task[None]) -> None:
        """`task` serves it from now on."""
        self._task = task
        self.line.tasks.add(task)
        task.add_done_callback(self._served)

    def heard(self, data: bytes) -> int:
        """A piece of the body came. Returns how many bytes wait to be received."""
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body) + data
        self._wake()
        return len(self._body)

    def whole(self) -> None:
        """The body is complete."""
        self.more_body = False
        self._wake()

    def leave(self) -> None:
        """The client is gone."""
        if self.left:
            return
        self.left = self.disconnected = True
        self._wake()
        if self._task is not None:
            # Not at once: a task that is cancelled before its first step leaves no trace in the accounts.
            self.line.loop.call_soon(self._task.cancel)

    def _wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _served(self, task: asyncio.Task[None]) -> None:
        """The task ended. Without a complete answer the connection does, so that nobody waits for more."""
        self.line.tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            log.error("a request met a bug at the door of the router", exc_info=bug)
        if self.response_complete or self.disconnected:
            return
        self.keep_alive = False
        if bug is None or self.started:
            self.abort()
            return
        error = InternalError("The router failed to serve this request; please report it.")
        self._send_whole(error.status, error_headers(error), error_body(error, self.route.error_api))

    # --- the request ----------------------------------------------------------------------------------------

    async def receive(self) -> MutableMapping[str, Any]:
        """What came of the body since the last call, as an ASGI message; waits for something to come."""
        line = self.line
        if self.waiting_for_100_continue and not line.transport.is_closing():
            line.transport.write(_GO_ON)
            self.waiting_for_100_continue = False
        # Also when all is here: while reading rests, because of requests in the pipeline, nobody can leave.
        line.flow.resume_reading()
        if not (self._news or self.disconnected or self.response_complete):
            self._waiter = line.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self._news = False
        data, self._body = bytes(self._body), b""
        return {"type": "http.request", "body": data, "more_body": self.more_body}

    # --- the answer: see Responder --------------------------------------------------------------------------

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """The head of an answer whose length is known by `content-length` or not at all."""
        self.started = True
        await self.room()
        if self.disconnected:
            return
        self._chunked = False
        head = self._head(status, headers)
        if status not in _WITHOUT_BODY and all(name != b"content-length" for name, _ in headers):
            # To a client of HTTP/1.0 the end of the connection is the end of the answer.
            self._chunked = self.http_version == "1.1"
            head.append(b"transfer-encoding: chunked\r\n" if self._chunked else b"")
            self.keep_alive = self.keep_alive and self._chunked
        head.append(b"\r\n")
        self.line.transport.write(b"".join(head))

    async def write(self, data: bytes) -> None:
        if self.line.flow.write_paused:
            await self.room()
        self._piece(data)

    def push(self, data: bytes) -> bool:
        self._piece(data)
        return not self.line.flow.write_paused

    def offer(self, data: bytes) -> bool:
        if self.line.flow.write_paused:
            return False
        self._piece(data)
        return True

    async def room(self) -> None:
        if self.line.flow.write_paused and not self.disconnected:
            await self.line.flow.drain()

    async def finish(self) -> None:
        await self.room()
        if self.disconnected:
            return
        if self._chunked:
            self.line.transport.write(b"0\r\n\r\n")
        self._complete()

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A whole answer at once; `headers` name no length."""
        self.started = True
        if self.line.flow.write_paused:
            await self.room()
        self._send_whole(status, headers, body)

    def abort(self) -> None:
        """Sends what is buffered and closes without ending the answer, so the client sees that it is cut."""
        self.disconnected = True
        self.line.transport.close()

    def _piece(self, data: bytes) -> None:
        if not data or self.disconnected:
            return
        self.line.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _send_whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        if self.disconnected:
            return
        head = self._head(status, headers)
        if status not in _WITHOUT_BODY:
            head.append(b"content-length: %d\r\n" % len(body))
        head += (b"\r\n", b"" if self.method == b"HEAD" else body)
        self.line.transport.write(b"".join(head))
        self._complete()

    def _head(self, status: int, headers: Sequence[Header]) -> list[bytes]:
        self.started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*self.line.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return lines

    def _complete(self) -> None:
        self.response_complete = True
        self._wake()
        if not self.keep_alive:
            self.line.hang_up(unread=self.more_body)
        self.line.on_response_complete()

    def __repr__(self) -> str:
        state = "answered" if self.response_complete else "answering" if self.started else "received"
        return f"<Turn {self.method.decode()} {self.route.label} [{'left' if self.left else state}]>"


class Direct(Protocol):
    """An application that takes turns."""

    def find(self, url: bytes) -> tuple[Route, bytes] | None:
        """The route of a URL and the target for the engine; None when the request is for ASGI. Raises
        HttpParserError or UnicodeError when it is no URL."""
        ...

    async def serve(self, turn: Turn) -> None:
        """Answers it. CancelledError comes out unless the client left."""
        ...
