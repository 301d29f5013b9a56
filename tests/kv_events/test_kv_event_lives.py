"""Restarts and silence: nothing wrong is believed for long, and trust comes back by itself."""

from __future__ import annotations

import pytest

from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.source import EventSource
from router.kv_events.wire import Link
from tests.kv_events.publisher import removed, stored
from tests.kv_events.stage import ALL, LIVE_ONLY, A, B, C, D, Stage, both, play

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


def test_a_restart_on_a_host_whose_clock_was_set_back_is_a_restart() -> None:
    async def scene(stage: Stage) -> None:
        for prompt in (A, B, C):
            stage.publisher.publish(stored(prompt))
        await stage.settle()
        stage.publisher.restart_unnoticed()
        stage.publisher.clock = lambda: 1.0
        stage.publisher.publish(stored(D))
        await stage.settle()
        assert (stage.known, stage.held(*ALL), stage.counters.restarts) == (Known.WHOLLY, [0, 0, 0, 64], 1)

    play(scene, source=LIVE_ONLY)


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


def test_a_message_that_still_waited_in_the_line_is_no_sign_of_life() -> None:
    async def scene(stage: Stage) -> None:
        stage.publisher.publish(stored(A))
        await stage.settle()
        (line,) = stage.publisher.lines
        line.put(Link.DOWN)  # news of the connection comes before what was received on it
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert (stage.known, stage.trust, stage.held(A, B)) == (
            Known.WHOLLY_STALE,
            Trust.APPROXIMATE,
            [64, 64],
        )

    play(scene, source=LIVE_ONLY)


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
        await stage.settle(stage.settings.redial_s)
        assert line.closed
        assert (stage.known, stage.counters.up, stage.counters.lost) == (Known.WHOLLY, True, 0)

    play(scene, before=[A])


def test_a_line_that_listens_outlives_its_connections() -> None:
    async def scene(stage: Stage) -> None:
        (line,) = stage.publisher.lines
        stage.publisher.disconnect()
        await stage.settle(stage.settings.quiet_s)
        assert stage.publisher.lines == [line]
        stage.publisher.connect()
        stage.publisher.publish(stored(B))
        await stage.settle()
        assert (line.closed, stage.held(B)) == (False, [64])

    play(scene, source=EventSource("tcp://*:5557", "tcp://one:5558"))


def test_an_idle_engine_keeps_its_trust() -> None:
    async def scene(stage: Stage) -> None:
        await stage.settle(20_000)
        assert (stage.known, stage.trust, stage.counters.lost) == (Known.WHOLLY, Trust.EXACT, 0)

    play(scene, before=[A])
    play(scene, before=[A], replays_topic=False)
