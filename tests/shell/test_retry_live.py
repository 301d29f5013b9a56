"""The retry table, row by row, on the whole router: what is tried elsewhere, how often, and what is not."""

from __future__ import annotations

import asyncio

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import (
    DONE,
    ROLE,
    TALK,
    WHOLE,
    Ask,
    Serve,
    answering,
    close,
    failure,
    failure_event,
    half_a_body,
    hang,
    in_turn,
    reset,
    streaming,
    talk,
    word,
)


async def garbage(ask: Ask) -> None:
    ask.send(b"\x15\x03\x01 this is not HTTP\r\n\r\n")


async def head_then_close(ask: Ask) -> None:
    ask.begin()
    ask.close()


def tries(act: Live) -> int:
    return sum(len(puppet.asks) for puppet in act.puppets.values())


ONCE: dict[str, Serve] = {
    "reset": reset,
    "closed": close,
    "garbage": garbage,
    "head_then_close": head_then_close,
    "half_a_body": half_a_body,
    "500": answering(500, failure(500)),
    "502": answering(502, failure(502)),
    "503": answering(503, failure(503)),
    "429": answering(429, failure(429)),
    "error_event_500": streaming(failure_event(500), DONE),
    "error_event_503": streaming(failure_event(503), DONE),
    "error_event_without_code": streaming(b'data: {"error":"out of luck"}\n\n'),
    "comments_then_error_event": streaming(b": keep-alive\n\n", failure_event(500), DONE, gap_s=1.0),
    "stream_without_an_event": streaming(),
    "whole_answer_aborted": answering(200, WHOLE.replace(b'"stop"', b'"abort"')),
    "error_in_a_200_body": answering(200, failure(500)),
}


@pytest.mark.parametrize("fault", ONCE)
def test_a_leg_that_failed_unanswered_is_tried_on_one_other_worker(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body, reply.broken) == (200, TALK, None)
        assert sorted(len(act.puppets[name].asks) for name in "abc") == [0, 1, 1]

    play(scene, dict.fromkeys("abc", in_turn(ONCE[fault], talk)))


@pytest.mark.parametrize("fault", ONCE)
def test_a_second_failure_of_that_kind_goes_to_the_client(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status >= 429
        assert "message" in reply.error
        assert b"8000" not in reply.body
        assert tries(act) == 2

    play(scene, dict.fromkeys("abc", ONCE[fault]))


def test_a_try_elsewhere_follows_at_once() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        await act.ask(CHAT, ASK)
        assert act.now - before == pytest.approx(0.04)  # the time of the answer itself

    play(scene, {"a": answering(500, failure(500)), "b": talk})


def test_a_refused_connection_is_tried_on_two_more_workers() -> None:
    async def scene(act: Live) -> None:
        for name in "ab":
            act.puppets[name].refuse()
        for _ in range(3):  # round_robin begins each one elsewhere
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert len(act.puppets["c"].asks) == 3

    play(scene, dict.fromkeys("abc", talk))


def test_when_three_workers_refused_the_client_learns_that() -> None:
    async def scene(act: Live) -> None:
        for puppet in act.puppets.values():
            puppet.refuse()
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (502, "upstream_unreachable")
        assert [act.state(name) for name in "abcd"].count("ejected") == 3

    play(scene, dict.fromkeys("abcd", talk))


def test_a_worker_that_does_not_accept_is_left_after_the_connect_deadline() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].hang()
        times = []
        for _ in range(2):
            before = act.now
            assert (await act.ask(CHAT, STREAM)).body == TALK
            times.append(round(act.now - before, 2))
        assert sorted(times) == [0.04, 1.04]

    play(scene, {"a": talk, "b": talk}, polling={"interval_s": 100})


def test_a_stale_connection_is_replaced_without_a_try_elsewhere() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        await act.ask(CHAT, ASK)
        for end in puppet.listener.connections:
            end.abort()  # as a server does whose keep-alive has run out
        assert (await act.ask(CHAT, ASK)).status == 200
        assert await act.metric("pointsman_retries_total") is None

    play(scene)


def test_a_504_of_the_engine_is_not_tried_again() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, ASK)).status == 504
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", answering(504, failure(504))))


def test_a_worker_that_hangs_before_the_headers_meets_the_first_event_deadline_once() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert "first_event" in reply.error["message"]
        assert act.now - before == pytest.approx(600, abs=0.01)
        assert tries(act) == 1
        assert reply.header("x-should-retry") == "false"

    play(scene, {"a": hang, "b": hang}, polling={"interval_s": 1000})


def test_a_client_that_waits_less_is_answered_when_it_gives_up() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM, {"x-stainless-read-timeout": "20"})
        assert reply.status == 504
        assert act.now - before == pytest.approx(20, abs=0.01)

    play(scene, {"a": hang})


def test_comments_do_not_push_the_first_event_deadline_back() -> None:
    async def comments(ask: Ask) -> None:
        ask.begin()
        while True:
            ask.event(b": keep-alive\n\n")
            await asyncio.sleep(4)

    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 504
        assert act.now - before == pytest.approx(10, abs=0.01)

    play(scene, {"a": comments}, timeouts={"first_event_s": 10})


def test_a_whole_answer_has_a_deadline_of_its_own() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 504
        assert "total" in reply.error["message"]
        assert act.now - before == pytest.approx(3600, abs=0.01)
        assert tries(act) == 1

    play(
        scene,
        {"a": hang, "b": hang},
        polling={"interval_s": 3000, "models_interval_s": 3000},
        health={"interval_s": 3000},
    )


def test_with_retries_off_the_first_failure_goes_to_the_client() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, ASK)).status == 500
        assert tries(act) == 1

    play(scene, {"a": answering(500, failure(500)), "b": talk}, retry={"enabled": False})


def test_the_retry_budget_bounds_the_tries_under_way() -> None:
    async def fail_late(ask: Ask) -> None:
        await asyncio.sleep(1)
        ask.answer(500, failure(500))

    async def scene(act: Live) -> None:
        replies = await asyncio.gather(*(act.ask(CHAT, ASK) for _ in range(100)))
        assert {reply.status for reply in replies} == {500}
        assert 115 <= tries(act) <= 120  # a fifth of those in flight

    play(
        scene,
        dict.fromkeys("ab", fail_late),
        pool={"policy": "least_requests"},
        health={"failures_to_eject": 100},
    )


def test_a_retry_does_not_turn_the_wheel_of_round_robin() -> None:
    async def scene(act: Live) -> None:
        for _ in range(6):
            assert (await act.ask(CHAT, ASK)).status == 200
        by_worker = {
            name: sum(not str(ask.header("x-request-id")).endswith("-r1") for ask in act.puppets[name].asks)
            for name in "abc"
        }
        assert by_worker == {"a": 2, "b": 2, "c": 2}

    play(scene, {"a": answering(503, failure(503)), "b": talk, "c": talk}, health={"failures_to_eject": 100})


def test_each_try_has_an_engine_id_of_its_own() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {"x-request-id": "mine"})
        ids = [ask.header("x-request-id") for name in "ab" for ask in act.puppets[name].asks]
        assert ids == ["mine", "mine-r1"]

    play(scene, {"a": answering(500, failure(500)), "b": talk})


def test_nothing_is_tried_again_once_the_first_event_was_relayed() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.broken is not None
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", streaming(ROLE, word(), then="reset", gap_s=0.01)))


def test_a_multipart_body_is_sent_once() -> None:
    body = b'--c\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--c--\r\n'

    async def scene(act: Live) -> None:
        reply = await act.ask(
            "/v1/audio/transcriptions", body, {"content-type": "multipart/form-data; boundary=c"}
        )
        assert reply.status == 502
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", reset))
