"""Whatever happens on the way: what is believed exactly is true, and it comes back to that by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.prefix_index import PrefixIndex
from router.core.trust import Trust
from router.kv_events.counters import KvEventCounters
from router.kv_events.follower import Follower
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Knowledge
from router.kv_events.reader import Naming, Reader
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.virtual.clock import run
from tests.kv_events.publisher import CLEARED, Publisher, removed, stored

PROMPTS = [tuple(range(start, start + 16 * blocks)) for start, blocks in ((0, 1), (1_000, 3), (2_000, 5))]
STEPS = (
    "store",
    "evict",
    "clear",
    "lose",
    "down",
    "up",
    "restart",
    "restart unnoticed",
    "deaf",
    "hear",
    "wait",
)


class Engine:
    """An engine with a cache, its publisher, and the truth about what it holds."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.held: set[tuple[int, ...]] = set()
        self.lost = False

    def store(self, prompt: tuple[int, ...]) -> None:
        ends = [prompt[:end] for end in range(16, len(prompt) + 1, 16)]
        known = next((at for at, end in enumerate(ends) if end not in self.held), len(ends))
        if known < len(ends):
            self.held.update(ends)
            self._publish(stored(prompt, skip=known))

    def evict(self, prompt: tuple[int, ...]) -> None:
        ends = [end for end in self.held if prompt[: len(end)] == end]
        if ends:
            tail = max(ends, key=len)
            self.held.remove(tail)
            self._publish(removed(tail))

    def clear(self, _prompt: tuple[int, ...]) -> None:
        self.held.clear()
        self._publish(CLEARED)

    def restart(self, *, noticed: bool) -> None:
        self.held.clear()
        if noticed:
            self.publisher.restart()
        else:
            self.publisher.restart_unnoticed()

    def _publish(self, event: object) -> None:
        self.publisher.publish(event, lost=self.lost)
        self.lost = False


def in_record(index: PrefixIndex) -> set[int | bytes]:
    holder = index.holder("one")
    assert holder is not None
    return set() if holder.ledger is None else set(holder.ledger.places)


async def act(engine: Engine, step: str, prompt: tuple[int, ...]) -> None:
    publisher = engine.publisher
    acts: dict[str, Callable[[], object]] = {
        "store": lambda: engine.store(prompt),
        "evict": lambda: engine.evict(prompt),
        "clear": lambda: engine.clear(prompt),
        "lose": lambda: setattr(engine, "lost", True),
        "down": publisher.disconnect,
        "up": publisher.connect,
        "restart": lambda: engine.restart(noticed=True),
        "restart unnoticed": lambda: engine.restart(noticed=False),
        "deaf": lambda: setattr(publisher, "deaf", True),
        "hear": lambda: setattr(publisher, "deaf", False),
    }
    if step in acts:
        acts[step]()
    await asyncio.sleep(40 if step == "wait" else 0.5)


@settings(max_examples=120)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(PROMPTS)), max_size=40),
    st.booleans(),
    st.sampled_from([1, 3, 10_000]),
)
def test_the_record_becomes_the_truth_again_after_any_faults(
    steps: list[tuple[str, tuple[int, ...]]], replays: bool, buffer_steps: int
) -> None:
    async def main() -> None:
        engine = Engine(Publisher(buffer_steps=buffer_steps))
        index = PrefixIndex()
        index.admit("one", 1)
        knowledge, counters = Knowledge(index, "one"), KvEventCounters()
        intake = Intake(knowledge, Reader(Naming("model")), counters, KvEventsSettings(slice_blocks=2))
        source = EventSource("tcp://one:1", "tcp://one:2" if replays else None)
        loop = asyncio.get_running_loop()
        follower = Follower(intake, engine.publisher, source, KvEventsSettings(), loop.time)
        task = loop.create_task(follower.run())
        for step, prompt in steps:
            await act(engine, step, prompt)
        engine.lost = False
        for step in ("up", "hear", "store", "wait", "store"):  # all is well again, and time passes
            await act(engine, step, PROMPTS[-1])
        remembers_all = replays and buffer_steps > len(steps) + 9
        if not remembers_all or any(step == "restart unnoticed" for step, _ in steps):
            await act(engine, "clear", ())
        for prompt in PROMPTS:
            engine.store(prompt)
        engine.evict(PROMPTS[1])
        await asyncio.sleep(1_000)
        assert not task.done()
        assert index.trust("one", text=False) is Trust.EXACT
        assert in_record(index) == {hash(end) % 2**64 for end in engine.held}
        task.cancel()

    run(main())


@settings(max_examples=120)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([step for step in STEPS if step != "restart unnoticed"]), st.sampled_from(PROMPTS)
        ),
        max_size=40,
    ),
    st.sampled_from([1, 3, 10_000]),
)
def test_what_is_believed_exactly_is_true_at_every_quiet_moment(
    steps: list[tuple[str, tuple[int, ...]]], buffer_steps: int
) -> None:
    """Whoever was asked whether the silence is real has the truth; a message that was lost a moment ago, with
    none after it, nobody can know of."""

    async def main() -> None:
        engine = Engine(Publisher(buffer_steps=buffer_steps))
        index = PrefixIndex()
        index.admit("one", 1)
        intake = Intake(
            Knowledge(index, "one"),
            Reader(Naming("model")),
            KvEventCounters(),
            KvEventsSettings(slice_blocks=2),
        )
        source = EventSource("tcp://one:1", "tcp://one:2")
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            Follower(intake, engine.publisher, source, KvEventsSettings(), loop.time).run()
        )
        for step, prompt in steps:
            await act(engine, step, prompt)
            engine.publisher.deaf, deaf = False, engine.publisher.deaf
            await asyncio.sleep(100)
            engine.publisher.deaf = deaf
            if index.trust("one", text=False) is Trust.EXACT:
                assert in_record(index) == {hash(end) % 2**64 for end in engine.held}
        assert not task.done()
        task.cancel()

    run(main())
