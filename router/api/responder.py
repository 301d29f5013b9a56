"""How an answer leaves: start, write, finish, abort. The life of a request knows nothing else of servers.

The one here speaks ASGI. Another can speak to a server's protocol directly, without the life of a request
noticing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from router.api.headers import Header

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Responder(Protocol):
    """One answer to one client.

    Attributes:
        started: whether the status line was sent, after which it cannot be taken back.
    """

    started: bool

    async def start(self, status: int, headers: Sequence[Header]) -> None: ...

    async def write(self, data: bytes) -> None:
        """Sends bytes of the body; returns when there is room for more. Raises ClientGone when the client
        takes nothing for too long."""
        ...

    async def finish(self) -> None:
        """Ends the body cleanly."""
        ...

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Start, one write and finish in one."""
        ...

    def offer(self, data: bytes) -> bool:
        """Sends bytes at once if that needs no waiting; False when it does, or when it is not possible."""
        ...

    def abort(self) -> None:
        """Ends the body uncleanly, so that the client can tell that it is not complete."""
        ...


class Connection(Protocol):
    """What a server that knows us lets an answer do beyond ASGI."""

    def close_unfinished(self) -> None: ...
    def offer(self, data: bytes) -> bool: ...


class AsgiResponder:
    """A Responder on top of an ASGI `send`.

    `abort` and `offer` need the server's help, through the connection that it put into the scope. Without
    one, the application returns without completing the answer, which servers take as an abort too, and
    offers nothing.
    """

    __slots__ = ("_connection", "_send", "started")

    def __init__(self, send: Send, connection: Connection | None = None) -> None:
        self._send = send
        self._connection = connection
        self.started = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def offer(self, data: bytes) -> bool:
        return self._connection is not None and self._connection.offer(data)

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.close_unfinished()
