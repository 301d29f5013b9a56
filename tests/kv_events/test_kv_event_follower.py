"""What a listener makes of a stream: nothing wrong is believed for long, and trust comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from router.core.kv_event import KvEvent
from router.core.prefix_index import PrefixIndex
from router.core.prefix_ledger import Fit
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import Trust
from router.kv_events.counters import KvEventCounters
from router.kv_events.follower import Follower
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Knowledge, Known
from router.kv_events.reader import Naming, Reader
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Link
from router.virtual.clock import run
from tests.kv_events.publisher import CLEARED, TOPIC, MemoryLine, Publisher, removed, stored

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
            slice_blocks=self.settings.slice_blocks,
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


# --- the beginning ------------------------------------------------------------------------------------


def test_a_replay_from_the_beginning_makes_the_record_whole() -> None:
    async def scene(stage: Stage) -> None:
        assert (stage.known, stage.trust, stage.held(*ALL)) == (Known.WHOLLY, Trust.EXACT, [64, 64, 64, 0])
        stage.publisher.publish(stored(D), removed(A, A[:48]))
        await stage.settle()
        assert stage.held(*ALL) == [32, 64, 64, 64]
        assert stage.counters.replayed == 3
        assert stage.counters.batches == 4
        assert stage.counters.lost == 0

    play(scene, before=[A, B, C])


def test_an_engine_that_has_published_nothing_yet_is_wholly_known() -> None:
    async def scene(stage: Stage) -> None:
        assert (stage.known, stage.trust) == (Known.WHOLLY, Trust.EXACT)
        stage.publisher.publish(stored(A))
        await stage.settle()
        assert stage.held(A) == [64]
        assert (stage.known, stage.counters.lost) == (Known.WHOLLY, 0)

    play(scene)


def test_a_beginning_that_the_engine_forgot_makes_a_part_of_a_record() -> None:
    async def scene(stage: Stage) -> None:
        assert (stage.known, stage.trust, stage.held(*ALL)) == (
            Known.PARTLY,
            Trust.APPROXIMATE,
            [0, 0, 64, 64],
        )
        await stage.settle(5_000)
        assert stage.publisher.asked[:1] == [0]
        assert stage.counters.lost == 0
        assert stage.counters.replays_failed == 0

    play(scene, before=ALL, buffer_steps=2)


def test_without_replay_the_first_of_all_batches_makes_the_record_whole() -> None:
    async def scene(stage: Stage) -> None:
        assert (stage.known, stage.trust) == (Known.PARTLY, Trust.APPROXIMATE)
        stage.publisher.publish(stored(A))
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(A)) == (Known.WHOLLY, Trust.EXACT, [64])

    play(scene, source=LIVE_ONLY)


def test_without_replay_a_stream_joined_later_is_known_in_part() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(A, B)) == (Known.PARTLY, Trust.APPROXIMATE, [0, 64])

    play(scene, source=LIVE_ONLY, before=[A])


@both
def test_an_engine_that_forgot_everything_is_wholly_known(source: EventSource) -> None:
    async def scene(stage: Stage) -> None:
        assert stage.known is Known.PARTLY
        stage.publisher.publish(stored(D), CLEARED)
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(*ALL)) == (Known.WHOLLY, Trust.EXACT, [0, 0, 0, 0])
        stage.publisher.publish(stored(A))
        await stage.settle()
        assert stage.held(A) == [64]

    play(scene, source=source, before=[A, B, C], buffer_steps=1)


def test_a_worker_that_cannot_be_reached_is_silent_until_it_can() -> None:
    async def main() -> None:
        engine = Publisher()
        engine.reachable = False
        stage = Stage(engine, REPLAYS)
        await stage.settle(300)
        assert (stage.known, stage.trust, stage.counters.up) == (
            Known.PARTLY_STALE,
            Trust.APPROXIMATE,
            False,
        )
        engine.publish(stored(A))
        engine.connect()
        await stage.settle()
        assert (stage.known, stage.held(A), stage.counters.disconnects) == (Known.WHOLLY, [64], 0)
        stage.task.cancel()

    run(main())


def test_an_address_that_is_taken_is_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = Publisher()
        engine.refused = True
        stage = Stage(engine, REPLAYS)
        await stage.settle(300)
        engine.refused = False
        await stage.settle(60)
        assert stage.known is Known.WHOLLY
        stage.task.cancel()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "worker one: its events cannot be listened to: tcp://one:5557: taken"
    ]


# --- gaps ---------------------------------------------------------------------------------------------


def test_a_gap_is_filled_from_the_replay_in_order() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(removed(A, A[:48]), lost=True)
        stage.publisher.publish(stored(B), lost=True)
        stage.publisher.publish(stored(C), removed(B))
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(*ALL)) == (Known.WHOLLY, Trust.EXACT, [32, 48, 64, 0])
        counted = stage.counters
        assert (counted.gaps, counted.missed, counted.filled, counted.lost) == (1, 2, 2, 0)
        assert counted.batches == 4

    play(scene, before=[A])


def test_without_replay_a_gap_ends_the_record_and_a_new_one_begins() -> None:
    async def scene(stage: Stage) -> None:
        for prompt, lost in ((A, False), (B, True), (C, False)):
            stage.publisher.publish(stored(prompt), lost=lost)
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(*ALL)) == (
            Known.PARTLY,
            Trust.APPROXIMATE,
            [0, 0, 64, 0],
        )
        assert (stage.counters.missed, stage.counters.filled, stage.counters.lost) == (1, 0, 1)

    play(scene, source=LIVE_ONLY)


def test_trust_is_lowered_while_a_gap_is_open() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.deaf = True
        stage.publisher.publish(stored(B), lost=True)
        stage.publisher.publish(stored(C))
        await stage.settle()
        assert (stage.known, stage.trust) == (Known.WHOLLY_STALE, Trust.APPROXIMATE)
        await stage.settle(stage.settings.answer_s)
        assert (stage.known, stage.held(*ALL)) == (Known.PARTLY, [0, 0, 64, 0])
        assert stage.counters.replays_failed == 1

    play(scene, before=[A])


def test_a_record_that_was_given_up_becomes_whole_when_replays_are_served_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.deaf = True
        stage.publisher.publish(stored(B), lost=True)
        stage.publisher.publish(stored(C))
        await stage.settle(200)
        assert stage.known is Known.PARTLY
        stage.publisher.deaf = False
        await stage.settle(200)
        assert (stage.known, stage.trust, stage.held(*ALL)) == (Known.WHOLLY, Trust.EXACT, [64, 64, 64, 0])

    play(scene, before=[A])


def test_a_silent_replay_is_asked_ever_less_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.deaf = True
        stage.publisher.publish(stored(B), lost=True)
        stage.publisher.publish(stored(C))
        asked = len(stage.publisher.asked)
        for _ in range(3_600):
            stage.publisher.publish(stored(D))
            await stage.settle(1)
        assert len(stage.publisher.asked) - asked <= 10
        assert stage.held(C, D) == [64, 64]

    with caplog.at_level(logging.WARNING):
        play(scene, before=[A])
    assert len(caplog.records) == 1


def test_a_replay_that_drops_answers_is_asked_to_go_on() -> None:
    async def main() -> None:
        engine = Publisher()
        for prompt in ALL:
            engine.publish(stored(prompt))
        engine.answers_dropped = {1, 2}
        stage = Stage(engine, REPLAYS)
        await stage.settle()
        assert engine.asked == [0, 0]  # the second one begins with what is known, to prove itself
        assert (stage.known, stage.held(*ALL)) == (Known.WHOLLY, [64, 64, 64, 64])
        stage.task.cancel()

    run(main())


def test_a_replay_without_its_end_is_asked_to_go_on() -> None:
    async def main() -> None:
        engine = Publisher()
        for prompt in ALL:
            engine.publish(stored(prompt))
        engine.end_dropped = 1
        stage = Stage(engine, REPLAYS)
        await stage.settle(3)
        assert engine.asked == [0, 3]
        assert (stage.known, stage.counters.replays_failed) == (Known.WHOLLY, 0)
        stage.task.cancel()

    run(main())


def test_a_replay_that_gets_no_further_is_given_up() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.end_dropped = 1_000
        stage.publisher.buffer = type(stage.publisher.buffer)([stage.publisher.buffer[0]], maxlen=10)
        stage.publisher.publish(stored(B), lost=True)
        stage.publisher.buffer.pop()
        stage.publisher.publish(stored(C))
        stage.publisher.buffer.pop()
        await stage.settle(10)
        assert (stage.known, stage.held(*ALL)) == (Known.PARTLY, [0, 0, 64, 0])
        assert stage.counters.replays_failed == 1

    play(scene, before=[A])


def test_a_gap_older_than_the_engines_memory_ends_the_record() -> None:
    async def scene(stage: Stage) -> None:
        for prompt in (B, C):
            stage.publisher.publish(stored(prompt), lost=True)
        stage.publisher.publish(stored(D))
        await stage.settle()
        assert (stage.known, stage.held(*ALL)) == (Known.PARTLY, [0, 0, 0, 64])
        asked = len(stage.publisher.asked)
        for _ in range(100):
            stage.publisher.publish(stored(D))
            await stage.settle(10)
        assert len(stage.publisher.asked) == asked  # there is nothing to be gained

    play(scene, before=[A], buffer_steps=1)


class Busy(Publisher):
    """Publishes between the moment it is listened to and the moment it is asked for a replay."""

    def replay(self, source: EventSource, start: int) -> MemoryLine:
        if not self.asked:
            for prompt in ALL:
                self.publish(stored(prompt))
            self.publish(removed(A))
        return super().replay(source, start)


def test_what_is_replayed_and_waits_in_the_line_as_well_counts_once() -> None:
    async def main() -> None:
        stage = Stage(Busy(), REPLAYS)
        await stage.settle()
        assert stage.held(*ALL) == [48, 64, 64, 64]
        assert (stage.counters.duplicates, stage.counters.batches) == (5, 5)
        assert (stage.counters.restarts, stage.counters.lost) == (0, 0)
        stage.task.cancel()

    run(main())


# --- another life -------------------------------------------------------------------------------------


@both
def test_a_restarted_engine_holds_nothing_of_what_was_believed(source: EventSource) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A))
        await stage.settle()
        stage.publisher.restart()
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(*ALL)) == (Known.WHOLLY, Trust.EXACT, [0, 64, 0, 0])
        assert (stage.counters.restarts, stage.counters.disconnects) == (1, 1)

    play(scene, source=source)


@both
def test_a_sequence_that_goes_back_is_a_restart(source: EventSource) -> None:
    async def scene(stage: Stage) -> None:
        for prompt in (A, B, C):
            stage.publisher.publish(stored(prompt))
        await stage.settle()
        stage.publisher.restart_unnoticed()
        stage.publisher.publish(stored(A[:32]))
        await stage.settle()
        assert (stage.known, stage.held(*ALL)) == (Known.WHOLLY, [32, 0, 0, 0])
        assert stage.counters.restarts == 1

    play(scene, source=source)


def test_a_restart_seen_late_is_made_up_for_by_a_replay() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.restart_unnoticed()
        stage.publisher.publish(stored(C), lost=True)
        stage.publisher.publish(stored(D))
        await stage.settle()
        assert (stage.known, stage.held(*ALL)) == (Known.WHOLLY, [0, 0, 64, 64])
        assert stage.counters.restarts == 1

    play(scene, before=[A, B, A, B])


def test_a_restart_that_went_past_the_old_number_is_known_by_its_bytes() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.restart_unnoticed()
        for prompt in (C, D, C):
            stage.publisher.publish(stored(prompt), lost=True)
        stage.publisher.publish(stored(D, skip=1))
        await stage.settle()
        assert (stage.known, stage.held(*ALL)) == (Known.WHOLLY, [0, 0, 64, 64])
        assert stage.counters.restarts == 1

    play(scene, before=[A, B])


def test_a_restart_at_night_is_found_when_the_connection_comes_back() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.restart()
        await stage.settle()
        assert (stage.known, stage.held(A), stage.counters.restarts) == (Known.WHOLLY, [0], 1)

    play(scene, before=[A])


# --- silence ------------------------------------------------------------------------------------------


def test_a_lost_connection_lowers_trust_and_a_replay_restores_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.disconnect()
        await stage.settle()
        assert (stage.known, stage.trust) == (Known.WHOLLY_STALE, Trust.APPROXIMATE)
        stage.publisher.publish(stored(B))
        stage.publisher.connect()
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(A, B)) == (Known.WHOLLY, Trust.EXACT, [64, 64])
        assert (stage.counters.lost, stage.counters.disconnects) == (0, 1)

    play(scene, before=[A])


@pytest.mark.parametrize("missed", [0, 1])
def test_without_replay_the_next_number_tells_whether_something_was_missed(missed: int) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A))
        await stage.settle()
        stage.publisher.disconnect()
        for _ in range(missed):
            stage.publisher.publish(removed(A))
        stage.publisher.connect()
        await stage.settle(100)
        assert (stage.known, stage.trust) == (Known.WHOLLY_STALE, Trust.APPROXIMATE)
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert stage.trust is (Trust.APPROXIMATE if missed else Trust.EXACT)
        assert stage.held(A, B) == ([0, 64] if missed else [64, 64])

    play(scene, source=LIVE_ONLY)


def test_a_part_of_a_record_is_not_believed_after_silence() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(B))
        await stage.settle()
        stage.publisher.disconnect()
        await stage.settle()
        assert stage.known is Known.PARTLY_STALE
        stage.publisher.connect()
        await stage.settle()
        assert (stage.known, stage.held(B)) == (Known.PARTLY, [0])

    play(scene, source=LIVE_ONLY, before=[A])


def test_a_message_lost_before_a_silence_is_found_by_asking() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(removed(A), lost=True)
        await stage.settle(stage.settings.quiet_s + 1)
        assert (stage.known, stage.held(A)) == (Known.WHOLLY, [48])

    play(scene, before=[A])


def test_a_connection_that_ended_for_good_is_made_anew() -> None:
    async def scene(stage: Stage) -> None:
        (line,) = stage.publisher.lines
        line.put(Link.DOWN)
        await stage.settle()
        assert stage.known is Known.WHOLLY_STALE
        await stage.settle(stage.settings.quiet_s)
        assert line.closed
        assert (stage.known, stage.counters.up, stage.counters.lost) == (Known.WHOLLY, True, 0)

    play(scene, before=[A])


def test_an_idle_engine_keeps_its_trust() -> None:
    async def scene(stage: Stage) -> None:
        await stage.settle(20_000)
        assert (stage.known, stage.trust, stage.counters.lost) == (Known.WHOLLY, Trust.EXACT, 0)

    play(scene, before=[A])
    play(scene, before=[A], replays_topic=False)


# --- hostile engines ----------------------------------------------------------------------------------

BROKEN: list[Sequence[bytes]] = [
    [],
    [b""],
    [TOPIC, b"short", b""],
    [TOPIC, b"\xff" * 8, b""],
    [TOPIC] * 9,
    [TOPIC, b"\0" * 8],
]


@pytest.mark.parametrize("frames", BROKEN)
@both
def test_broken_frames_change_nothing(frames: Sequence[bytes], source: EventSource) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A))
        stage.publisher.send(frames)
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert (stage.known, stage.held(A, B), stage.counters.broken) == (Known.WHOLLY, [64, 64], 1)

    play(scene, source=source)


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0, [stored(B), 5]])])
def test_an_unreadable_batch_lowers_trust_and_what_follows_is_taken_in(payload: bytes) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish_payload(payload)
        stage.publisher.publish(stored(C))
        await stage.settle()
        assert (stage.known, stage.trust) == (Known.PARTLY, Trust.APPROXIMATE)
        assert stage.held(*ALL) == [0, 0, 64, 0]
        assert (stage.counters.broken, stage.counters.lost) == (1, 1)

    play(scene, before=[A])


def test_an_unreadable_batch_in_a_replay_keeps_the_record_from_being_whole() -> None:
    async def main() -> None:
        engine = Publisher()
        engine.publish(stored(A))
        engine.publish_payload(b"\xc1")
        engine.publish(stored(B))
        stage = Stage(engine, REPLAYS)
        await stage.settle(1_000)
        assert (stage.known, stage.held(A, B)) == (Known.PARTLY, [0, 64])
        stage.task.cancel()

    run(main())


def test_batches_of_another_rank_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A), rank=1)
        stage.publisher.publish(stored(B), rank=1)
        await stage.settle()
        assert (stage.held(A, B), stage.counters.foreign) == ([0, 0], 2)

    with caplog.at_level(logging.WARNING):
        play(scene, source=EventSource("tcp://one:5557", rank=0))
    assert len(caplog.records) == 1


class Liar(Publisher):
    """Answers replays with whatever it was given."""

    answers: Sequence[Sequence[bytes]] = ()

    def replay(self, source: EventSource, start: int) -> MemoryLine:
        line = MemoryLine()
        for frames in self.answers:
            line.put(frames)
        return line


@pytest.mark.parametrize(
    "answers",
    [
        [[]],
        [[b"", b"\0" * 8, b"\xc1"]],
        [[b"x", b"\0" * 8, b""]],
        [[b"", b"\0" * 7 + b"\5", b"\xc1"]] * 3,
        [[b"", b"\xff" * 7 + b"\xf0", b"\xc1"], [b"", b"\xff" * 8, b""]],
    ],
)
def test_a_replay_that_lies_ends_nothing(answers: Sequence[Sequence[bytes]]) -> None:
    async def main() -> None:
        engine = Liar()
        engine.answers = answers
        stage = Stage(engine, REPLAYS)
        await stage.settle(5)
        engine.publish(stored(A))
        await stage.settle(5)
        engine.publish(stored(B), lost=True)
        engine.publish(stored(C))
        await stage.settle(20)
        assert stage.held(C) == [64]
        await stage.settle(2_000)
        engine.publish(stored(D))
        await stage.settle(20)
        assert stage.held(D) == [64]
        stage.task.cancel()

    run(main())


# --- bounds -------------------------------------------------------------------------------------------


def test_without_room_nothing_is_taken_in_until_it_is_tried_again() -> None:
    index = PrefixIndex(PrefixSettings(max_bytes=1))

    async def scene(stage: Stage) -> None:
        assert stage.intake.knowledge.absent
        asked = len(stage.publisher.asked)
        for _ in range(3_600):
            stage.publisher.publish(stored(B))
            await stage.settle(1)
            index.sweep(stage.publisher.clock())
        assert stage.counters.full >= 2
        assert len(stage.publisher.asked) - asked <= 10
        assert stage.trust is Trust.APPROXIMATE
        stage.publisher.publish(CLEARED)
        await stage.settle()
        assert stage.known is Known.WHOLLY

    play(scene, before=[A], index=index)


class Slow(PrefixIndex):
    """Counts how much is taken in between two turns of the loop."""

    turns = 0
    most = 0
    _taken = 0
    _turn = -1

    def apply(self, worker: str, event: KvEvent) -> Fit:
        if self._turn != self.turns:
            self._turn, self._taken = self.turns, 0
        self._taken += len(getattr(event, "hashes", ()))
        self.most = max(self.most, self._taken)
        return super().apply(worker, event)


def test_a_flood_leaves_the_loop_its_turns() -> None:
    index = Slow()
    prompt = tuple(range(16 * 2_000))

    async def scene(stage: Stage) -> None:
        async def turn() -> None:
            while True:
                index.turns += 1
                await asyncio.sleep(0)

        turning = asyncio.get_running_loop().create_task(turn())
        stage.publisher.publish(stored(prompt))
        while stage.counters.blocks_stored < 2_000:
            await asyncio.sleep(0)
        turning.cancel()
        assert index.most <= 2 * stage.settings.slice_blocks
        assert stage.held(prompt) == [len(prompt)]

    play(scene, index=index)


def test_a_bug_is_not_swallowed_and_lowers_trust() -> None:
    class Buggy(PrefixIndex):
        def apply(self, worker: str, event: KvEvent) -> Fit:
            raise ZeroDivisionError

    async def main() -> None:
        stage = Stage(Publisher(), REPLAYS, index=Buggy())
        await stage.settle()
        assert stage.known is Known.WHOLLY
        stage.publisher.publish(stored(A))
        with pytest.raises(ZeroDivisionError):
            await stage.task
        assert stage.trust is Trust.APPROXIMATE

    run(main())
