"""Clients of a router on a virtual network: one that speaks HTTP and one that writes what it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from router.core.errors import UpstreamError
from router.upstream.exchange import Exchange
from router.virtual.transport import MemoryTransport


@dataclass
class Reply:
    """What a client got.

    Attributes:
        pieces: (time, bytes) as they came.
        broken: why the body did not come to its proper end; None when it did.
    """

    status: int
    headers: list[tuple[str, str]]
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    broken: UpstreamError | None = None

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error object of the answer."""
        error = self.json()["error"]
        assert isinstance(error["message"], str)
        return error

    def last_event(self) -> Any:
        """The data of the last event."""
        return json.loads(self.body.rstrip().split(b"\n")[-1].removeprefix(b"data: "))


class Visit:
    """One request of a client, its head answered, its body being read."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        headers = [(name.decode(), value.decode("latin-1")) for name, value in exchange.headers]
        self.reply = Reply(exchange.status, headers)

    async def read(self) -> bytes:
        """The next bytes; b"" at the end, whatever kind of end."""
        try:
            data = await self.exchange.read()
        except UpstreamError as error:
            self.reply.broken = error
            return b""
        if data:
            self.reply.pieces.append((asyncio.get_running_loop().time(), data))
        return data

    async def rest(self) -> Reply:
        while await self.read():
            pass
        self.exchange.close()
        return self.reply

    def leave(self) -> None:
        self.exchange.close()


class RawClient(asyncio.Protocol):
    """A client that writes what it likes and keeps what it gets."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False
        self.lost_at: float | None = None
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.lost_at = True, asyncio.get_running_loop().time()
        self._news.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for bytes or the end, until the condition holds."""
        while not condition():
            assert not self.lost, self.received
            self._news.clear()
            await self._news.wait()

    async def until_lost(self) -> bytes:
        while not self.lost:
            self._news.clear()
            await self._news.wait()
        return self.received


def assert_told(reply: Reply, code: str | None = None) -> Any:
    """The client can tell: an error event at the end, no [DONE], no proper end of the body."""
    assert reply.status == 200
    assert reply.broken is not None
    assert b"[DONE]" not in reply.body
    error = reply.last_event()["error"]
    assert error["message"]
    if code is not None:
        assert error["code"] == code
    return error
