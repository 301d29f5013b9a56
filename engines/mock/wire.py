"""One HTTP request as the mock's own routes see it, and the few ways to answer it over ASGI.

Separate because the generation routes do without a web framework: an event costs one `send`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from engines.mock.errors import Refusal
from engines.mock.faults import Fault

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]

MAX_BODY_BYTES = 256 << 20

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class Severed(Exception):
    """A fault ended the connection; nothing more can be answered on it."""


@dataclass(slots=True)
class Request:
    """One request whose body has been read.

    Attributes:
        arrived: when its last byte was there (loop clock).
        transport: of the connection, None for a client inside this process.
        status: of the answer, once it is known; for the HTTP counters.
        sent_bytes: body bytes of an answer of known length.
        faults: those that apply to this request.
        extra_headers: added to every answer of this request.
    """

    scope: Scope
    receive: Receive
    send: Send
    body: bytes
    arrived: float
    headers: dict[bytes, bytes]
    transport: asyncio.Transport | None = None
    faults: tuple[Fault, ...] = ()
    extra_headers: Headers = field(default_factory=list)
    status: int | None = None
    sent_bytes: int = 0

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send) -> Request:
        """A request whose body is still to be read."""
        return cls(
            scope=scope,
            receive=receive,
            send=send,
            body=b"",
            arrived=0.0,
            headers=dict(scope["headers"]),
            transport=transport_of(send),
        )

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def header(self, name: str) -> str | None:
        """Return a header's value; names are lower-case."""
        value = self.headers.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def fault(self, kind: str) -> Fault | None:
        """Return the fault of that kind that applies here."""
        for fault in self.faults:
            if fault.kind == kind:
                return fault
        return None

    async def answer(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send a whole answer."""
        self.status = status
        self.sent_bytes = len(body)
        headers: Headers = [(b"content-length", b"%d" % len(body))]
        if body:
            headers.append((b"content-type", content_type))
        headers += self.extra_headers
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def begin_stream(self) -> None:
        """Send the head of an event stream: before the engine produced anything, as vLLM does."""
        self.status = 200
        headers = [EVENT_STREAM, *self.extra_headers]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, event: bytes) -> None:
        """Send one event as one chunk."""
        await self.send({"type": "http.response.body", "body": event, "more_body": True})

    async def end_stream(self) -> None:
        """Send the last chunk."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def sever(self, *, hard: bool) -> NoReturn:
        """Close the connection, with RST when `hard`, and wait until it is closed.

        Raises:
            Severed: always; nothing can follow.
        """
        await sever(self.transport, self.receive, hard=hard)


async def read_body(receive: Receive) -> bytes | None:
    """Read a request body to its end; None when the client left before.

    Raises:
        Refusal: 413 above the mock's bound.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise Refusal(413, "BadRequestError", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def client_left(receive: Receive) -> None:
    """Wait until the client closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Runs beside an answer and calls `leave` in the same turn in which the client's end is seen."""

    def __init__(self, receive: Receive, leave: Callable[[], None]) -> None:
        self._receive = receive
        self._leave = leave
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def __exit__(self, *_: object) -> None:
        self._leave()
        task = self._task
        if task is None:
            return
        if task.done() and not task.cancelled():
            task.result()
        task.cancel()

    async def _watch(self) -> None:
        await client_left(self._receive)
        self._leave()


def transport_of(send: Send) -> asyncio.Transport | None:
    """Return the transport behind an ASGI `send`, None where there is none (in-process clients).

    uvicorn gives the bound method of its request cycle, which holds the transport; the mock needs it to
    end a connection in ways that HTTP has no words for.
    """
    transport: asyncio.Transport | None = getattr(getattr(send, "__self__", None), "transport", None)
    return transport


def reset(transport: asyncio.Transport) -> None:
    """End a connection with RST instead of FIN; a connection that is closing already is left alone."""
    if transport.is_closing():
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # Linger on, for zero seconds: close() then discards unsent data and sends RST.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def sever(transport: asyncio.Transport | None, receive: Receive, *, hard: bool) -> NoReturn:
    """Close a connection, with RST when `hard`, and wait until it is closed.

    Raises:
        Severed: always; nothing can follow.
        ConnectionResetError: the client is in this process and there is no connection to close.
    """
    if transport is None:
        raise ConnectionResetError("the mock engine ended this connection")
    if hard:
        reset(transport)
    else:
        transport.close()
    await client_left(receive)
    raise Severed
