"""A worker that does to each connection what a test says, and an Upstream that speaks to it, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from router.upstream.client import Upstream, WireRequest
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from router.virtual.clock import VirtualLoop, run
from router.virtual.network import Network
from router.virtual.transport import LinkSettings, MemoryTransport

ORIGIN = Origin("http", "worker", 8000, "")
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ASK = WireRequest(b"POST", b"/v1/completions", ((b"content-type", b"application/json"),), b'{"n": 1}')


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Conversation(asyncio.Protocol):
    """The worker's end of one connection.

    `received` is everything that came. `on_bytes` is told at each arrival, `on_request` once per request.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.received = b""
        self.requests = 0
        self.lost: Exception | str | None = "open"
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport
        self.worker.conversations.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._unread += data
        if self.worker.on_bytes is not None:
            self.worker.on_bytes(self)
        while self._whole_request():
            self.requests += 1
            self.worker.on_request(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def _whole_request(self) -> bool:
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if not end:
            return False
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b": ")
            if name == b"content-length":
                length = int(value)
            if name == b"transfer-encoding":
                length = rest.find(b"0\r\n\r\n") + 5
                if length < 5:
                    return False
        if len(rest) < length:
            return False
        self._unread = rest[length:]
        return True


@dataclass
class Worker:
    on_request: Callable[[Conversation], None]
    on_bytes: Callable[[Conversation], None] | None = None
    conversations: list[Conversation] = field(default_factory=list)

    def talk(self) -> Conversation:
        return Conversation(self)

    @property
    def open_connections(self) -> int:
        return sum(conversation.lost == "open" for conversation in self.conversations)


@dataclass
class Stage:
    loop: VirtualLoop
    network: Network
    upstream: Upstream

    def worker(
        self,
        on_request: Callable[[Conversation], None],
        on_bytes: Callable[[Conversation], None] | None = None,
    ) -> Worker:
        worker = Worker(on_request, on_bytes)
        self.network.serve(ORIGIN.host, ORIGIN.port, worker.talk)
        return worker

    def timers(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in self.loop._scheduled if not timer.cancelled()]

    async def turns(self, count: int = 10) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def assert_nothing_is_left(self) -> None:
        await self.turns()
        assert repr(self.upstream) == "<Upstream [0 busy | 0 idle | 0 origins]>"
        assert self.timers() == []


def play(
    scene: Callable[[Stage], Awaitable[None]],
    settings: UpstreamSettings | None = None,
    link: LinkSettings | None = None,
) -> None:
    """Run `scene` in virtual time; after it, whatever it did, nothing may be left."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = Network(link)
        upstream = Upstream(network.connect, loop.time, settings)
        stage = Stage(loop, network, upstream)
        await scene(stage)
        await upstream.aclose()
        await stage.assert_nothing_is_left()

    run(main())


def answering(data: bytes) -> Callable[[Conversation], None]:
    """A worker that answers every request with `data`."""
    return lambda conversation: conversation.send(data)


def silent(conversation: Conversation) -> None:
    """A worker that never answers."""
