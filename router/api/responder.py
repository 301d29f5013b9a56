"""How an answer leaves: start, write, finish, abort. The life of a request knows nothing else of servers.

Two ways out: ASGI, for any server, and straight to our own client connection (`turn`), which costs half as
much per event. The life of a request does not notice which it has.
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

    def push(self, data: bytes) -> bool:
        """Takes bytes of the body without waiting; False when `room` must be awaited before more."""
        ...

    async def room(self) -> None:
        """Returns when the client has taken enough of what was pushed."""
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


class AsgiResponder:
    """A Responder on top of an ASGI `send`, for servers that know nothing of us.

    ASGI has no word for an unclean end; an application that returns without completing its answer is taken
    for one.
    """

    __slots__ = ("_pushed", "_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pushed = b""
        self.started = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def push(self, data: bytes) -> bool:
        self._pushed += data
        return False

    async def room(self) -> None:
        pushed, self._pushed = self._pushed, b""
        if pushed:
            await self.write(pushed)

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def offer(self, data: bytes) -> bool:
        return False

    def abort(self) -> None:
        """Nothing: see the class."""
