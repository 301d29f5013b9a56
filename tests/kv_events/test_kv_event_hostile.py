"""Whatever an engine sends ends nothing, takes no room beyond the bounds, and costs others no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
import pytest

from router.core.kv_event import KvEvent
from router.core.prefix_index import PrefixIndex
from router.core.prefix_ledger import Fit
from router.core.prefix_settings import PrefixSettings
from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.virtual.clock import run
from tests.kv_events.publisher import CLEARED, TOPIC, MemoryLine, Publisher, stored
from tests.kv_events.stage import ALL, REPLAYS, A, B, C, D, Stage, both, play

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


@both
@pytest.mark.parametrize("number", [2**40, 2**63 - 1, 2**63, 2**64 - 2])
def test_a_leap_of_numbers_counts_nothing_as_missed(number: int, source: EventSource) -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A))
        payload = msgspec.msgpack.encode([stage.publisher.clock(), [stored(B)], 0])
        stage.publisher.send((TOPIC, number.to_bytes(8, "big"), payload))
        await stage.settle(1)
        stage.publisher.publish(stored(C))
        await stage.settle(1)
        assert (stage.counters.missed, stage.counters.gaps, stage.held(C)) == (0, 0, [64])

    play(scene, source=source)


def too_large() -> Sequence[dict[str, object]]:
    """More than the bound of 4,000 bytes, less than what ends a connection."""
    return [stored(range(start, start + 1_024)) for start in (50_000, 60_000)]


SMALL = KvEventsSettings(max_message_bytes=4_000)


@both
def test_a_batch_beyond_the_bound_is_dropped_alone(
    source: EventSource, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(3):
            stage.publisher.publish(*too_large())
        stage.publisher.publish(stored(C))
        await stage.settle()
        assert (stage.known, stage.trust, stage.counters.up) == (Known.PARTLY, Trust.APPROXIMATE, True)
        assert stage.held(A, C) == [0, 64]
        assert (stage.counters.oversized, stage.counters.lost, stage.counters.disconnects) == (3, 3, 0)

    with caplog.at_level(logging.WARNING):
        play(scene, source=source, before=[A], settings=SMALL)
    [said] = caplog.messages
    assert "kv_events.max_message_bytes is 4000" in said


def test_a_batch_beyond_the_bound_in_a_replay_keeps_the_record_from_being_whole() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(*too_large(), lost=True)
        stage.publisher.publish(stored(C))
        await stage.settle(1_000)
        assert (stage.known, stage.held(A, C)) == (Known.PARTLY, [0, 64])
        stage.publisher.publish(CLEARED, stored(D))
        await stage.settle()
        assert (stage.known, stage.held(D)) == (Known.WHOLLY, [64])

    play(scene, before=[A], settings=SMALL)


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
