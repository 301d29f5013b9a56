"""A prefix index, an engine's publisher in memory, and the listener between them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from router.core.prefix_index import PrefixIndex
from router.core.prompt_key import Partition
from router.core.trust import Trust
from router.kv_events.counters import KvEventCounters
from router.kv_events.follower import Follower
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Knowledge, Known
from router.kv_events.reader import Naming, Reader
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.virtual.clock import run
from tests.kv_events.publisher import Publisher, stored

REPLAYS = EventSource("tcp://one:5557", "tcp://one:5558")
LIVE_ONLY = EventSource("tcp://one:5557")
PART = Partition("model", "", "")
A, B, C, D = (tuple(range(start, start + 64)) for start in (1000, 2000, 3000, 4000))
ALL = (A, B, C, D)


class Stage:
    """An index, a publisher, and the follower between them."""

    def __init__(
        self,
        publisher: Publisher,
        source: EventSource,
        settings: KvEventsSettings | None = None,
        index: PrefixIndex | None = None,
    ) -> None:
        self.publisher = publisher
        self.index = index or PrefixIndex()
        self.index.admit("one", 1)
        self.counters = KvEventCounters()
        self.settings = settings or KvEventsSettings()
        self.intake = Intake(
            Knowledge(self.index, "one"),
            Reader(Naming("model")),
            self.counters,
            self.settings,
        )
        self.follower = Follower(
            self.intake, publisher, source, self.settings, asyncio.get_running_loop().time
        )
        self.task = asyncio.get_running_loop().create_task(self.follower.run())

    def held(self, *prompts: tuple[int, ...]) -> list[int]:
        """Tokens of each prompt that the engine's events say are held."""
        holder = self.index.holder("one")
        assert holder is not None
        if holder.ledger is None:
            return [0 for _ in prompts]
        store = self.index.store.event_blocks
        depths = [store.match(self.index._chain(PART, one), holder.ledger.bit) for one in prompts]
        return [max((length for length, _ in depth), default=0) for depth in depths]

    @property
    def known(self) -> Known:
        return self.intake.knowledge.known

    @property
    def trust(self) -> Trust:
        return self.index.trust("one", text=False)

    async def settle(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)
        assert not self.task.done(), self.task


def play(
    scene: Callable[[Stage], Awaitable[None]],
    *,
    source: EventSource = REPLAYS,
    before: Sequence[Any] = (),
    settings: KvEventsSettings | None = None,
    index: PrefixIndex | None = None,
    **publisher: Any,
) -> None:
    """Runs a scene; `before` are prompts that the engine stored before the router began to listen."""

    async def main() -> None:
        engine = Publisher(**publisher)
        for prompt in before:
            engine.publish(stored(prompt))
        stage = Stage(engine, source, settings, index)
        await stage.settle()
        await scene(stage)
        stage.task.cancel()

    run(main())


both = pytest.mark.parametrize("source", [REPLAYS, LIVE_ONLY], ids=["replays", "live only"])
