"""Signs of life of the router itself: before the first event where asked for, inside a stream by default."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import (
    DONE,
    ROLE,
    STOP,
    TALK,
    Ask,
    Serve,
    answering,
    failure,
    hang,
    in_turn,
    talk,
    word,
)

COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
EARLY: dict[str, Any] = {"timeouts": {"early_keep_alive_s": 5}}


def late(seconds: float, serve: Serve = talk) -> Serve:
    async def wait(ask: Ask) -> None:
        await asyncio.sleep(seconds)
        await serve(ask)

    return wait


def test_without_being_asked_the_router_is_silent_before_the_first_event() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, STREAM)
        assert act.now - before == pytest.approx(100)
        assert (await visit.rest()).body == TALK

    play(scene, {"a": late(100)})


def test_asked_to_it_speaks_every_few_seconds_until_the_stream_begins() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, STREAM)
        assert act.now - before == pytest.approx(5)
        assert visit.reply.status == 200
        assert visit.reply.header("content-type") == "text/event-stream; charset=utf-8"
        assert visit.reply.header("x-request-id")
        reply = await visit.rest()
        assert (reply.body, reply.broken) == (COMMENT * 3 + TALK, None)

    play(scene, {"a": late(18)}, **EARLY)


def test_it_speaks_in_the_queue_too() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        visit = await act.open(CHAT, STREAM)
        assert act.pool.queued == 1
        first.cancel()
        reply = await visit.rest()
        assert reply.body == COMMENT + TALK

    play(scene, {"a": in_turn(hang, talk)}, pool={"slots": 1, "binding": "late"}, **EARLY)


def test_messages_get_a_ping() -> None:
    async def scene(act: Live) -> None:
        reply = await (await act.open("/v1/messages", {**STREAM, "max_tokens": 3})).rest()
        assert reply.body.startswith(PING * 2)

    play(scene, {"a": late(11)}, **EARLY)


def test_other_workers_are_tried_after_it_spoke() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.body, reply.broken) == (COMMENT + TALK, None)

    play(scene, dict.fromkeys("ab", in_turn(late(7, answering(500, failure(500))), talk)), **EARLY)


def test_a_failure_after_it_spoke_is_an_error_event_and_an_unclean_end() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 200
        assert reply.broken is not None
        assert reply.body.startswith(COMMENT + b"data: ")
        assert reply.last_event()["error"]["message"]

    play(scene, dict.fromkeys("ab", late(6, answering(400, failure(400)))), **EARLY)


def test_a_deadline_after_it_spoke_is_an_error_event() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM, {"x-stainless-read-timeout": "12"})
        assert reply.broken is not None
        assert reply.body.startswith(COMMENT * 2 + b"data: ")
        assert reply.last_event()["error"]["code"] == "deadline_exceeded"

    play(scene, {"a": hang}, **EARLY)


def test_whole_answers_are_left_alone() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, ASK)
        assert act.now - before > 18
        await visit.rest()

    play(scene, {"a": late(18)}, **EARLY)


def test_a_client_that_leaves_after_it_spoke_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        visit = await act.open(CHAT, STREAM)
        visit.leave()
        await asyncio.sleep(0.1)
        act.assert_zero()

    play(scene, {"a": hang}, **EARLY)


def test_a_client_that_takes_nothing_is_not_spoken_to() -> None:
    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        await asyncio.sleep(6)
        connection = act.server_end(client)
        connection.pause_writing()
        size = len(client.received)
        await asyncio.sleep(20)
        assert len(client.received) == size
        connection.resume_writing()
        await asyncio.sleep(6)
        assert len(client.received) > size
        client.transport.abort()

    play(scene, {"a": hang}, **EARLY)


def pausing(*gaps: float, cut: bool = False) -> Serve:
    async def serve(ask: Ask) -> None:
        ask.begin()
        ask.event(ROLE)
        for number, gap in enumerate(gaps):
            if cut:
                ask.event(word(number)[:20])
            await asyncio.sleep(gap)
            ask.event(word(number)[20 * cut :])
        ask.event(STOP, DONE)
        ask.end()

    return serve


def test_silence_inside_a_stream_is_filled_every_fifteen_seconds() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == ROLE + COMMENT * 2 + word(0) + word(1) + COMMENT + word(2) + STOP + DONE
        assert reply.broken is None

    play(scene, {"a": pausing(40, 10, 20)}, **QUIET)


def test_silence_is_not_filled_where_it_is_turned_off() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == ROLE + word(0) + STOP + DONE

    play(scene, {"a": pausing(40)}, timeouts={"keep_alive_s": None}, **QUIET)


@pytest.mark.parametrize("asked", [True, False], ids=["usage_shown", "usage_hidden"])
def test_nothing_is_written_in_the_middle_of_an_event(asked: bool) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "stream_options": {"include_usage": asked}})
        assert reply.body.replace(COMMENT, b"") == ROLE + word(0) + STOP + DONE
        for event in (ROLE, word(0), STOP, DONE):
            assert event in reply.body

    play(scene, {"a": pausing(40, cut=True)}, **QUIET)


def test_silence_in_messages_is_filled_with_pings() -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1"}}\n\n'
    stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    async def serve(ask: Ask) -> None:
        ask.begin()
        ask.event(start)
        await asyncio.sleep(20)
        ask.event(stop)
        ask.end()

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/messages", {**STREAM, "max_tokens": 3})
        assert reply.body == start + PING + stop

    play(scene, {"a": serve}, **QUIET)
