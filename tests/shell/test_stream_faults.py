"""What a client sees of a stream that goes wrong after commit: the error, no `[DONE]`, and an unclean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from router.core.errors import UpstreamError
from router.core.health import Sign
from tests.shell.live import ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import (
    ABORT,
    DONE,
    ROLE,
    STOP,
    TALK,
    Ask,
    Serve,
    chunk,
    failure_event,
    in_turn,
    streaming,
    talk,
    word,
)
from tests.shell.visitors import assert_told

BEGUN = (ROLE, word(), word(1))
SLOWLY = {"polling": {"interval_s": 3000.0, "models_interval_s": 3000.0}, "health": {"interval_s": 3000.0}}


CUTS: dict[str, Serve] = {
    "reset": streaming(*BEGUN, then="reset", gap_s=0.01),
    "closed": streaming(*BEGUN, then="close", gap_s=0.01),
    "ended_without_an_end": streaming(*BEGUN, gap_s=0.01),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_stream_that_is_cut_ends_with_an_error_event(cut: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body.startswith(b"".join(BEGUN))
        assert_told(reply, "upstream_broken")

    play(scene, dict.fromkeys("ab", CUTS[cut]))


@pytest.mark.parametrize("apart", [True, False], ids=["later", "in_one_piece"])
def test_an_error_event_and_done_are_a_failure_without_done(apart: bool) -> None:
    events = (*BEGUN, failure_event(500), DONE) if apart else (*BEGUN, failure_event(500) + DONE)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == b"".join(BEGUN) + failure_event(500)
        assert reply.broken is not None
        assert act.worker("a").health.failures == 1

    play(scene, {"a": streaming(*events, gap_s=0.01)})


def test_an_error_event_after_data_in_the_first_piece_is_passed_on() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == ROLE + failure_event(500)
        assert reply.broken is not None

    play(scene, {"a": streaming(ROLE + failure_event(500) + DONE)})


def test_a_done_inside_the_text_is_text() -> None:
    spoken = chunk({"content": "data: [DONE]"})
    events = (ROLE, spoken, failure_event(500))

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == b"".join(events)

    play(scene, {"a": streaming(ROLE, spoken + failure_event(500) + DONE, gap_s=0.01)})


@pytest.mark.parametrize("apart", [True, False], ids=["later", "in_one_piece"])
def test_an_abort_that_nobody_asked_for_is_a_failure(apart: bool) -> None:
    events = (*BEGUN, ABORT, DONE) if apart else (*BEGUN, ABORT + DONE)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body.startswith(b"".join(BEGUN) + ABORT)
        assert_told(reply)
        assert act.worker("a").health.failures == 1

    play(scene, {"a": streaming(*events, gap_s=0.01)})


def test_a_stream_that_hangs_ends_at_the_idle_deadline() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert_told(reply, "deadline_exceeded")
        assert act.now - before == pytest.approx(600, abs=0.1)

    play(scene, {"a": streaming(*BEGUN, then="hang"), "b": talk}, **SLOWLY)


def test_comments_of_the_engine_are_no_progress() -> None:
    async def comments(ask: Ask) -> None:
        ask.begin()
        ask.event(*BEGUN)
        while not ask.left.is_set():
            await asyncio.sleep(5)
            ask.event(b": keep-alive\n\n")

    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert_told(reply, "deadline_exceeded")
        assert act.now - before == pytest.approx(20, abs=0.1)

    play(scene, {"a": comments}, timeouts={"idle_s": 20})


def test_a_stream_that_makes_progress_has_no_total() -> None:
    words = [word(number) for number in range(38)]

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.broken is None
        assert reply.body == ROLE + b"".join(words) + STOP + DONE
        assert act.now > 3_800  # beyond the total of whole answers

    play(
        scene,
        {"a": streaming(ROLE, *words, STOP, DONE, gap_s=95)},
        timeouts={"keep_alive_s": None},
        usage={"inject": False},
        **SLOWLY,
    )


def test_a_silent_stream_of_a_worker_that_refuses_ends_after_ten_seconds() -> None:
    """As vLLM was seen to do on SIGTERM: the port refuses, the stream neither goes on nor ends."""

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        act.puppets["a"].refuse()
        reply = await task
        assert_told(reply, "deadline_exceeded")
        assert act.now < 1 + 6 + 10 + 1  # a probe at the latest after 6 s

    play(scene, {"a": streaming(*BEGUN, then="hang")})


def test_a_stream_that_waits_for_its_first_event_at_a_lost_worker_is_tried_elsewhere() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        (lease,) = act.pool.ledger.leases
        act.puppets[lease.worker].refuse()
        reply = await task
        assert (reply.status, reply.body) == (200, TALK)
        assert act.now < 6 + 10 + 1

    play(scene, dict.fromkeys("ab", in_turn(streaming(then="hang"), talk)))


def test_a_stream_that_goes_on_survives_the_port_that_refuses() -> None:
    words = [word(number) for number in range(40)]

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        act.puppets["a"].refuse()
        act.pool.roster.sign("a", Sign.REFUSED, act.loop.time(), "refused")
        reply = await task
        assert reply.broken is None
        assert reply.body == ROLE + b"".join(words) + STOP + DONE
        assert act.now > 40

    play(scene, {"a": streaming(ROLE, *words, STOP, DONE, gap_s=1)}, timeouts={"keep_alive_s": None})


def test_a_silent_stream_of_a_new_incarnation_ends_after_ten_seconds() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        puppet.metrics = "process_start_time_seconds 1000\n"
        await asyncio.sleep(3)
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        puppet.metrics = "process_start_time_seconds 2000\n"
        before = act.now
        reply = await task
        assert_told(reply, "deadline_exceeded")
        assert act.now - before < 2 + 10 + 1
        assert act.worker("a").incarnation == 1

    play(scene, {"a": streaming(*BEGUN, then="hang")})


@pytest.mark.parametrize("state", ["draining", "removed"])
def test_a_silent_stream_of_a_worker_on_its_way_out_ends_soon_after_the_port_refuses(state: str) -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        if state == "draining":
            act.router.fleet.drain("a", act.loop.time())
        else:
            act.router.fleet.leave("a", act.loop.time())
        act.puppets["a"].refuse()
        before = act.now
        reply = await task
        assert_told(reply)
        assert act.now - before < 30

    play(scene, {"a": streaming(*BEGUN, then="hang")})


BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK["messages"], "max_tokens": 400, "ignore_eos": True},
    "/v1/completions": {"prompt": "once", "max_tokens": 400, "ignore_eos": True},
    "/v1/messages": {"messages": ASK["messages"], "max_tokens": 400},
    "/v1/responses": {"input": "once", "max_output_tokens": 400},
}
DEATHS = [(how, path) for path in BODIES for how in ("sigterm_silence", "engine_death", "crash")]
DEATHS += [("sigterm_abort", CHAT), ("sigterm_abort", "/v1/completions")]


@pytest.mark.parametrize(("how", "path"), DEATHS)
def test_an_engine_that_dies_under_a_stream_is_a_failure_that_the_client_can_tell(
    how: str, path: str
) -> None:
    async def scene(act: Live) -> None:
        mock = act.mocks["a"]
        task = act.asking(path, {"model": "qwen2.5-3b", "stream": True, **BODIES[path]})
        await asyncio.sleep(1)
        assert mock.process.in_progress == 1
        with contextlib.suppress(UpstreamError):  # a crash resets this connection too
            await act.ask("/mock/faults", {"kind": how, "delay_s": 1000}, origin=mock.origin)
        reply = await task
        assert reply.status == 200
        assert reply.broken is not None
        for end in (b"[DONE]", b"message_stop", b"response.completed"):
            assert end not in reply.body
        assert "error" in json.dumps(reply.last_event())
        assert act.now < 30

    play(scene, {"a": MockSettings(output_tokens=400)})


def test_messages_are_told_of_a_cut_in_their_own_words() -> None:
    message = b'{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":3}}}'
    start = b"event: message_start\ndata: " + message + b"\n\n"

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/messages", {**STREAM, "max_tokens": 9})
        assert reply.broken is not None
        assert reply.body.startswith(start + b"event: error\ndata: ")
        last = reply.last_event()
        assert last["type"] == "error"
        assert last["error"]["type"] == "api_error"

    play(scene, {"a": streaming(start, then="close")})


def test_responses_are_told_of_a_cut_in_their_own_words() -> None:
    created = b'{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}'
    start = b"event: response.created\ndata: " + created + b"\n\n"

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/responses", {"model": "m", "input": "x", "stream": True})
        assert reply.broken is not None
        assert b"event: response.failed\ndata: " in reply.body
        last = reply.last_event()
        assert last["response"]["id"] == "resp_1"
        assert last["response"]["status"] == "failed"
        assert last["sequence_number"] == 1

    play(scene, {"a": streaming(start, then="close")})


def test_an_event_that_is_cut_in_its_middle_gets_no_event_behind_it() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "stream_options": {"include_usage": True}})
        assert reply.body == b"".join(BEGUN) + word(2)[:30]
        assert reply.broken is not None

    play(scene, {"a": streaming(*BEGUN, word(2)[:30], then="close", gap_s=0.01)})


def test_no_error_of_the_router_names_an_address() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert b"8000" not in reply.body
        assert b"127.0.0.1" not in reply.body

    play(scene, {"a": CUTS["reset"]})


def test_a_broken_stream_counts_against_its_worker() -> None:
    async def scene(act: Live) -> None:
        for _ in range(8):
            await act.ask(CHAT, STREAM)
        assert sorted(act.state(name) for name in "ab") == ["ejected", "ready"]  # half of the pool stays

    play(scene, dict.fromkeys("ab", CUTS["closed"]), **SLOWLY)


def test_the_lease_follows_the_engine_and_not_a_slow_client() -> None:
    words = [word(number) for number in range(300)]

    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        await asyncio.sleep(1)
        act.assert_no_lease()
        assert client.received == b""
        client.transport.resume_reading()
        await act.until(lambda: client.received.endswith(b"\r\n0\r\n\r\n"))
        client.transport.close()

    play(scene, {"a": streaming(ROLE, *words, STOP, DONE)})
