"""The same over real sockets: a publisher with vLLM's framing and this router's own lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
import zmq

from router.core.prefix_index import PrefixIndex
from router.core.trust import Trust
from router.kv_events.counters import KvEventCounters
from router.kv_events.follower import Follower
from router.kv_events.framing import END
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Knowledge, Known
from router.kv_events.reader import Naming, Reader
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Link, WireFailed
from router.kv_events.zmq_wire import ZmqLine, ZmqWire
from tests.kv_events.publisher import stored

PATIENCE_S = 20.0
SETTINGS = KvEventsSettings(answer_s=5.0)


class Engine:
    """A PUB and a ROUTER socket, and a buffer of what was published."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, replay: str) -> None:
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(100_000)
        self._router = context.socket(zmq.ROUTER)
        self._router.set_hwm(100_000)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        if "*" in endpoint or endpoint.startswith("ipc"):
            self._pub.bind(endpoint)
        else:
            self._pub.connect(endpoint)
        self._router.bind(replay)
        self.endpoint = _last(self._pub)
        self.replay = _last(self._router)
        self.buffer: list[tuple[int, bytes]] = []

    def publish(self, *events: Any, lost: bool = False, topic: bytes = b"kv@one@model") -> None:
        number = len(self.buffer)
        payload = msgspec.msgpack.encode([asyncio.get_running_loop().time(), events, 0])
        self.buffer.append((number, payload))
        if not lost:
            self._pub.send_multipart((topic, number.to_bytes(8, "big"), payload))

    async def serve(self) -> None:
        """Answers replays, as vLLM's publisher does between two batches."""
        while True:
            await asyncio.sleep(0.005)
            with suppress(zmq.Again):
                client, empty, start = self._router.recv_multipart(zmq.NOBLOCK)
                for number, payload in self.buffer:
                    if number >= int.from_bytes(start, "big"):
                        answer = (client, empty, b"kv@one@model", number.to_bytes(8, "big"), payload)
                        self._router.send_multipart(answer)
                self._router.send_multipart((client, empty, b"", END, b""))

    def close(self) -> None:
        self._pub.close(linger=0)
        self._router.close(linger=0)


def _last(socket: zmq.Socket[bytes]) -> str:
    name = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(name, bytes)
    return name.rstrip(b"\0").decode().replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


class Stage:
    def __init__(self, source: EventSource) -> None:
        loop = asyncio.get_running_loop()
        self.wire = ZmqWire(SETTINGS, loop.time)
        self.index = PrefixIndex()
        self.index.admit("one", 1)
        self.counters = KvEventCounters()
        self.knowledge = Knowledge(self.index, "one")
        intake = Intake(self.knowledge, Reader(Naming("model")), self.counters, KvEventsSettings())
        self.task = loop.create_task(Follower(intake, self.wire, source, SETTINGS, loop.time).run())

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                assert not self.task.done()
                await asyncio.sleep(0.005)

    @property
    def places(self) -> int:
        holder = self.index.holder("one")
        assert holder is not None
        return 0 if holder.ledger is None else len(holder.ledger.places)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.wire.close()


def play(scene: Callable[[], Awaitable[None]], *, uv: bool = False) -> None:
    async def main() -> None:
        await scene()

    if uv:
        uvloop.run(main())
    else:
        asyncio.run(main())


loops = pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])


def prompt(number: int) -> tuple[int, ...]:
    return tuple(range(number * 1_000, number * 1_000 + 64))


@loops
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_stream_is_replayed_followed_and_mended(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path, scheme: str, uv: bool
) -> None:
    ends = (
        ("tcp://*:*", "tcp://127.0.0.1:*")
        if scheme == "tcp"
        else (f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")
    )

    async def scene() -> None:
        engine = Engine(context, *ends)
        serving = asyncio.get_running_loop().create_task(engine.serve())
        for number in range(3):
            engine.publish(stored(prompt(number)))
        stage = Stage(EventSource.parse(engine.endpoint, engine.replay, topic="kv@one"))
        await stage.until(lambda: stage.knowledge.known is Known.WHOLLY)
        assert stage.places == 12
        await asyncio.sleep(0.1)  # the subscription may arrive after the replay was served
        engine.publish(stored(prompt(3)))
        await stage.until(lambda: stage.places == 16)
        engine.publish(stored(prompt(4)), lost=True)
        engine.publish(stored(prompt(5)), topic=b"another")  # not subscribed to
        engine.publish(stored(prompt(6)))
        await stage.until(lambda: stage.places == 28)
        assert (stage.knowledge.known, stage.counters.missed) == (Known.WHOLLY, 2)
        assert stage.index.trust("one", text=False) is Trust.EXACT
        serving.cancel()
        await stage.close()
        engine.close()

    play(scene, uv=uv)


@loops
def test_an_engine_that_dies_and_comes_back_is_followed_anew(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path, uv: bool
) -> None:
    ends = (f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(context, *ends)
        serving = loop.create_task(engine.serve())
        engine.publish(stored(prompt(0)))
        engine.publish(stored(prompt(1)))
        stage = Stage(EventSource.parse(*ends))
        await stage.until(lambda: stage.places == 8)
        serving.cancel()
        engine.close()
        await stage.until(lambda: stage.knowledge.known is Known.WHOLLY_STALE)
        assert stage.index.trust("one", text=False) is Trust.APPROXIMATE
        engine = Engine(context, *ends)
        serving = loop.create_task(engine.serve())
        engine.publish(stored(prompt(2)))
        await stage.until(lambda: stage.knowledge.known is Known.WHOLLY)
        assert (stage.places, stage.counters.restarts, stage.counters.disconnects) == (4, 1, 1)
        serving.cancel()
        await stage.close()
        engine.close()

    play(scene, uv=uv)


def test_the_router_may_listen_and_the_engine_connect(
    context: zmq.Context[zmq.Socket[bytes]], unused_port: int
) -> None:
    async def scene() -> None:
        stage = Stage(EventSource.parse(f"tcp://*:{unused_port}"))
        engine = Engine(context, f"tcp://127.0.0.1:{unused_port}", "tcp://127.0.0.1:*")
        await stage.until(lambda: stage.counters.up)
        await asyncio.sleep(0.2)  # the engine learns of the subscription
        engine.publish(stored(prompt(0)))
        await stage.until(lambda: stage.knowledge.known is Known.WHOLLY)
        assert stage.places == 4
        await stage.close()
        engine.close()

    play(scene)


@pytest.fixture
def unused_port() -> int:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        return socket.bind_to_random_port("tcp://127.0.0.1")


def test_an_address_that_is_taken_fails(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async def scene() -> None:
        engine = Engine(context, "tcp://*:*", "tcp://127.0.0.1:*")
        wire = ZmqWire(SETTINGS, asyncio.get_running_loop().time)
        port = engine.endpoint.rpartition(":")[2]
        with pytest.raises(WireFailed, match="in use"):
            wire.subscribe(EventSource(f"tcp://*:{port}"))
        with pytest.raises(WireFailed):
            wire.subscribe(EventSource("carrier-pigeon://one"))
        with pytest.raises(WireFailed):
            wire.replay(EventSource("tcp://one:1"), 0)
        with pytest.raises(WireFailed):
            wire.replay(EventSource("tcp://one:1", "carrier-pigeon://one"), 0)
        wire.close()
        wire.close()
        engine.close()

    play(scene)


async def next_of(line: ZmqLine) -> Any:
    (arrival,) = await line.receive(asyncio.get_running_loop().time() + PATIENCE_S)
    return arrival


def test_a_message_far_beyond_the_bound_ends_the_connection(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    async def scene() -> None:
        engine = Engine(context, "tcp://*:*", "tcp://127.0.0.1:*")
        loop = asyncio.get_running_loop()
        wire = ZmqWire(KvEventsSettings(max_message_bytes=1_000), loop.time)
        line = wire.subscribe(EventSource(engine.endpoint))
        assert await next_of(line) is Link.UP
        await asyncio.sleep(0.1)
        engine.publish(stored(range(16 * 40)))
        assert len((await next_of(line))[2]) > 1_000
        engine.publish(stored(range(16 * 200)))
        assert await next_of(line) is Link.DOWN
        line.close()
        line.close()
        line = wire.subscribe(EventSource(engine.endpoint))
        assert await next_of(line) is Link.UP
        await asyncio.sleep(0.1)
        engine.publish(stored(prompt(0)))
        assert len(await next_of(line)) == 3
        assert await line.receive(loop.time()) == []
        wire.close()
        engine.close()

    play(scene)


def test_waiting_ends_at_its_time_and_may_be_cancelled(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async def scene() -> None:
        engine = Engine(context, "tcp://*:*", "tcp://127.0.0.1:*")
        loop = asyncio.get_running_loop()
        wire = ZmqWire(SETTINGS, loop.time)
        line = wire.subscribe(EventSource(engine.endpoint))
        assert await next_of(line) is Link.UP
        assert await line.receive(loop.time() + 0.02) == []
        waiting = loop.create_task(line.receive(loop.time() + PATIENCE_S))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        engine.publish(stored(prompt(0)))
        assert len(await next_of(line)) == 3
        wire.close()
        engine.close()

    play(scene)
