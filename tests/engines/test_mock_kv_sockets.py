"""The mock's sockets and the router's listener, as they meet in a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from engines.mock.kv_events import KvPublisher, vllm_events
from engines.mock.kv_sockets import KvSockets
from engines.model.kv_cache import AllBlocksCleared, BlocksStored
from router.core.prefix_index import PrefixIndex
from router.core.trust import Trust
from router.kv_events.listeners import KvEventListeners, Publisher
from router.kv_events.reader import Naming
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.zmq_wire import ZmqWire
from router.supervisor import Supervisor

PATIENCE_S = 20.0


def publisher(buffer_steps: int = 10_000) -> KvPublisher:
    return KvPublisher(lambda events: vllm_events(events, "maps"), "kv@one@model", buffer_steps)


def block(number: int) -> BlocksStored:
    return BlocksStored((number.to_bytes(32, "big"),), None, tuple(range(number, number + 16)), 16, (None,))


class Stage:
    """The mock's sockets, and a router's listeners that know one worker."""

    def __init__(self, endpoint: str, replay: str | None) -> None:
        self.now = asyncio.get_running_loop().time
        self.sockets = KvSockets(endpoint, replay)
        self.wire = ZmqWire(KvEventsSettings(), self.now)
        self.index = PrefixIndex()
        self.index.admit("one", 1)
        self.supervisor = Supervisor(self.now)
        self.listeners = KvEventListeners(self.wire, self.supervisor, KvEventsSettings(), self.now)

    def listen(self) -> None:
        reached = [
            end and end.replace("*", "127.0.0.1")
            for end in (self.sockets.endpoint, self.sockets.replay_endpoint)
        ]
        source = EventSource.parse(reached[0] or "", reached[1])

        async def locate() -> EventSource:
            return source

        self.listeners.watch(Publisher("one", locate, Naming("model"), self.index))

    @property
    def held(self) -> int:
        holder = self.index.holder("one")
        assert holder is not None
        return 0 if holder.ledger is None else len(holder.ledger.places)

    @property
    def exact(self) -> bool:
        return self.index.trust("one", text=False) is Trust.EXACT

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.supervisor.aclose()
        self.sockets.destroy()
        self.wire.close()


def places(tmp_path: Path, scheme: str) -> tuple[str, str]:
    return ("tcp://*:0", "tcp://*:0") if scheme == "tcp" else (f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_what_was_published_before_and_lost_on_the_way_is_replayed(tmp_path: Path, scheme: str) -> None:
    stage, engine = Stage(*places(tmp_path, scheme)), publisher()
    stage.sockets.open(engine)
    for number in range(100):
        engine.publish([block(number)], stage.now())
    stage.listen()
    await stage.until(lambda: stage.exact and stage.held == 100)
    await asyncio.sleep(0.1)  # the subscription may arrive after the replay was served
    engine.to_drop = 3
    for number in range(100, 104):
        engine.publish([block(number)], stage.now())
    await stage.until(lambda: stage.exact and stage.held == 104)
    counters = stage.listeners.counters("one")
    assert counters is not None
    assert (counters.missed, counters.filled, counters.lost) == (3, 3, 0)
    engine.publish([AllBlocksCleared()], stage.now())
    await stage.until(lambda: stage.held == 0)
    assert stage.exact
    await stage.close()


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_a_new_incarnation_publishes_at_the_same_place_from_zero(tmp_path: Path, scheme: str) -> None:
    stage, engine = Stage(*places(tmp_path, scheme)), publisher()
    stage.sockets.open(engine)
    for number in range(10):
        engine.publish([block(number)], stage.now())
    stage.listen()
    await stage.until(lambda: stage.exact and stage.held == 10)
    stage.sockets.close()
    await stage.until(lambda: not stage.exact)
    engine.publish([block(11)], stage.now())  # nobody hears it any more
    engine = publisher()
    stage.sockets.reopen(engine)
    engine.publish([block(12)], stage.now())
    await stage.until(lambda: stage.exact and stage.held == 1)
    counters = stage.listeners.counters("one")
    assert counters is not None
    assert (counters.restarts, counters.disconnects) == (1, 1)
    await stage.close()


async def test_a_long_replay_is_had_in_spite_of_dropped_answers(tmp_path: Path) -> None:
    stage, engine = Stage(*places(tmp_path, "tcp")), publisher()
    stage.sockets.open(engine)
    for number in range(9_000):
        engine.publish([block(number)], stage.now())
    stage.listen()
    await stage.until(lambda: stage.exact and stage.held == 9_000)
    await stage.close()


async def test_an_engine_may_connect_to_a_router_that_listens(tmp_path: Path, unused_port: int) -> None:
    stage, engine = Stage(f"tcp://127.0.0.1:{unused_port}", None), publisher()

    async def locate() -> EventSource:
        return EventSource.parse(f"tcp://*:{unused_port}")

    stage.listeners.watch(Publisher("one", locate, Naming("model"), stage.index))
    stage.sockets.open(engine)
    assert stage.sockets.endpoint == f"tcp://127.0.0.1:{unused_port}"
    counters = stage.listeners.counters("one")
    assert counters is not None
    await stage.until(lambda: counters.up)
    await asyncio.sleep(0.2)  # the engine learns of the subscription
    engine.publish([block(1)], stage.now())
    await stage.until(lambda: stage.exact and stage.held == 1)
    await stage.close()


async def test_an_address_that_is_taken_is_refused_and_left_closed(tmp_path: Path) -> None:
    first, second = (KvSockets(*places(tmp_path, "tcp")) for _ in range(2))
    first.open(publisher())
    second.endpoint = first.endpoint
    with pytest.raises(OSError, match="in use"):
        second.open(publisher())
    assert repr(second).endswith("closed>")
    second.reopen(publisher())
    assert repr(second).endswith("closed>")
    first.close()
    async with asyncio.timeout(PATIENCE_S):
        while repr(second).endswith("closed>"):
            await asyncio.sleep(0.01)
    first.destroy()
    second.destroy()


async def test_a_request_that_is_none_is_ignored(tmp_path: Path) -> None:
    sockets = KvSockets(*places(tmp_path, "ipc"))
    sockets.open(publisher())
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{tmp_path}/r")
        dealer.send_multipart([b"", b"a", b"b", b"c"])
        dealer.send_multipart([b"", b"\0" * 8])
        async with asyncio.timeout(PATIENCE_S):
            while not dealer.poll(0):
                await asyncio.sleep(0.005)
        assert dealer.recv_multipart() == [b"", b"", b"\xff" * 8, b""]
    sockets.destroy()


@pytest.fixture
def unused_port() -> int:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        return socket.bind_to_random_port("tcp://127.0.0.1")
