"""Workers join, leave, and live again; each has one follower, and what it counts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

from router.core.prefix_index import PrefixIndex
from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.listeners import KvEventListeners, Publisher
from router.kv_events.reader import Naming
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.supervisor import Supervisor
from router.virtual.clock import run
from tests.kv_events.publisher import Publisher as Engine
from tests.kv_events.publisher import stored

PROMPT = tuple(range(64))
SOURCE = EventSource("tcp://one:5557", "tcp://one:5558")


class Stage:
    def __init__(self) -> None:
        now = asyncio.get_running_loop().time
        self.engine = Engine()
        self.engine.publish(stored(PROMPT))
        self.index = PrefixIndex()
        self.index.admit("one", 1)
        self.restarts: list[str] = []
        self.supervisor = Supervisor(now, on_restart=self.restarts.append)
        self.listeners = KvEventListeners(self.engine, self.supervisor, KvEventsSettings(), now)
        self.located: EventSource | None = SOURCE

    async def locate(self) -> EventSource | None:
        return self.located

    def watch(self, *, counts_only: bool = False) -> None:
        self.listeners.watch(
            Publisher("one", self.locate, Naming("model"), self.index, counts_only=counts_only)
        )

    @property
    def trust(self) -> Trust:
        return self.index.trust("one", text=False)


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        await scene(stage)
        await stage.supervisor.aclose()

    run(main())


def test_a_watched_worker_is_followed() -> None:
    async def scene(stage: Stage) -> None:
        stage.watch()
        await asyncio.sleep(1)
        assert (stage.trust, stage.listeners.known("one")) == (Trust.EXACT, Known.WHOLLY)
        counters = stage.listeners.counters("one")
        assert counters is not None
        assert (counters.up, counters.batches, counters.blocks_stored) == (True, 1, 4)

    play(scene)


def test_a_worker_that_leaves_is_silent_and_its_line_is_closed() -> None:
    async def scene(stage: Stage) -> None:
        stage.watch()
        await asyncio.sleep(1)
        stage.listeners.unwatch("one")
        await asyncio.sleep(0)
        assert stage.trust is Trust.APPROXIMATE
        assert stage.listeners.counters("one") is None
        assert stage.listeners.known("one") is None
        assert all(line.closed for line in stage.engine.lines)
        stage.listeners.unwatch("one")
        assert repr(stage.listeners) == "<KvEventListeners [0 workers]>"

    play(scene)


def test_a_new_incarnation_is_followed_from_its_beginning() -> None:
    async def scene(stage: Stage) -> None:
        stage.watch()
        await asyncio.sleep(1)
        stage.index.admit("one", 2)
        stage.watch()
        await asyncio.sleep(1)
        holder = stage.index.holder("one")
        assert holder is not None
        assert holder.ledger is not None
        assert (stage.trust, len(holder.ledger.places)) == (Trust.EXACT, 4)
        counters = stage.listeners.counters("one")
        assert counters is not None
        assert counters.batches == 2  # one in each life
        assert sum(not line.closed for line in stage.engine.lines) == 1

    play(scene)


def test_a_worker_that_does_not_say_where_it_publishes_is_asked_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.located = None
        stage.watch()
        await asyncio.sleep(600)
        assert stage.listeners.known("one") is Known.NOTHING
        stage.located = SOURCE
        await asyncio.sleep(61)
        assert stage.trust is Trust.EXACT

    play(scene)


def test_blocks_of_a_worker_for_text_are_only_counted() -> None:
    async def scene(stage: Stage) -> None:
        stage.watch(counts_only=True)
        await asyncio.sleep(1)
        holder = stage.index.holder("one")
        assert holder is not None
        assert holder.ledger is not None
        assert (holder.ledger.counts_only, holder.ledger.resident_tokens, holder.counted) == (True, 64, True)

    play(scene)


def test_a_follower_that_dies_comes_back_by_itself() -> None:
    async def scene(stage: Stage) -> None:
        stage.watch()
        await asyncio.sleep(1)
        stage.index.apply = None  # type: ignore[assignment]  # a bug: whatever is called raises
        stage.engine.publish(stored(PROMPT))
        await asyncio.sleep(0.1)
        assert stage.trust is Trust.APPROXIMATE
        del stage.index.apply
        await asyncio.sleep(1)
        assert (stage.trust, stage.restarts) == (Trust.EXACT, ["kv events one"])

    play(scene)


def test_the_listeners_need_no_zmq() -> None:
    code = "import sys; sys.modules['zmq'] = None; import router.kv_events.listeners"
    subprocess.run([sys.executable, "-c", code], check=True)
