"""How an answer leaves: start, write, finish, abort. The life of a request knows nothing else of HTTP servers.

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

    def abort(self) -> None:
        """Ends the body uncleanly, so that the client can tell that it is not complete."""
        ...


class AsgiResponder:
    """A Responder on top of an ASGI `send`.

    `abort` needs the server's help: the connection that the server put into the scope closes itself. Without
    one the application returns without completing the answer, which servers take as an abort too.
    """

    __slots__ = ("_abort", "_send", "started")

    def __init__(self, send: Send, abort: Callable[[], None] | None = None) -> None:
        self._send = send
        self._abort = abort
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

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()
