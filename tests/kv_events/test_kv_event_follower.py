"""How a record begins, and what becomes of it when messages are missing."""

from __future__ import annotations

import logging

import pytest

from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.source import EventSource
from router.virtual.clock import run
from tests.kv_events.publisher import CLEARED, MemoryLine, Publisher, removed, stored
from tests.kv_events.stage import ALL, LIVE_ONLY, REPLAYS, A, B, C, D, Stage, both, play

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
