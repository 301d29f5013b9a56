"""The retry table, row by row, on the whole router: what is tried elsewhere, how often, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import (
    DONE,
    ROLE,
    TALK,
    WHOLE,
    Ask,
    Puppet,
    Serve,
    answering,
    failure,
    failure_event,
    hang,
    in_turn,
    streaming,
    talk,
    word,
)


async def reset(ask: Ask) -> None:
    ask.reset()


async def close(ask: Ask) -> None:
    ask.close()


async def garbage(ask: Ask) -> None:
    ask.send(b"\x15\x03\x01 this is not HTTP\r\n\r\n")


async def head_then_close(ask: Ask) -> None:
    ask.begin()
    ask.close()


async def half_a_body(ask: Ask) -> None:
    ask.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
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


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 418, 422])
def test_another_refusal_of_the_engine_is_relayed_and_not_tried_again(status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.body) == (status, failure(status))
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", answering(status, failure(status))))


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


def test_a_first_event_that_refuses_with_a_4xx_is_relayed_as_that_status() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 400
        assert reply.error["message"] == "The engine failed."
        assert reply.header("content-type") == "application/json"
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", streaming(failure_event(400), DONE)))


def test_a_first_event_error_of_messages_is_answered_in_its_shape() -> None:
    event = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/messages", {**STREAM, "max_tokens": 5})
        assert reply.status == 503
        body = reply.json()
        assert body["type"] == "error"
        assert body["error"] == {"type": "overloaded_error", "message": "busy"}

    play(scene, dict.fromkeys("ab", streaming(event)))


UNKNOWN = failure(404, "The model `m` does not exist.")


def test_a_model_that_a_worker_lost_is_asked_for_elsewhere_and_the_list_read_again() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        puppet.models = {"other": None}
        lists = sum(path == "/v1/models" for path, _ in puppet.probes)
        assert (await act.ask(CHAT, STREAM)).body == TALK
        await act.turns()
        assert sum(path == "/v1/models" for path, _ in puppet.probes) == lists + 1
        assert act.worker("a").models == {"other"}
        assert act.state("a") == "ready"

    play(scene, {"a": answering(404, UNKNOWN), "b": talk})


def test_a_model_that_every_worker_lost_is_asked_for_twice_at_most() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body) == (404, UNKNOWN)
        assert tries(act) == 2

    play(scene, dict.fromkeys("abc", answering(404, UNKNOWN)))


def test_a_404_that_names_no_model_is_relayed() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).status == 404
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", answering(404, b'{"detail":"Not Found"}')))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_worker_key_is_the_operators_fault_and_not_tried_again(status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (502, "upstream_error")
        assert "operator" in reply.error["message"]
        assert b"secret" not in reply.body
        assert tries(act) == 1
        assert act.state("a") == act.state("b") == "ready"

    serve = answering(status, b'{"error":"Unauthorized: secret"}')
    play(scene, dict.fromkeys("ab", serve), auth={"api_key": "secret"})


def test_a_client_key_that_the_engine_refuses_is_relayed() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK, {"authorization": "Bearer mine"})
        assert (reply.status, reply.body) == (401, b'{"error":"Unauthorized"}')

    play(scene, {"a": answering(401, b'{"error":"Unauthorized"}')})


TOO_LONG = failure(400, "This model's maximum context length is 4096 tokens. However, you asked for more.")


def lengths(act: Live, **longest: int) -> None:
    for name, length in longest.items():
        act.puppets[name].models = {"m": length}
        act.pool.roster.learn_models(name, {"m": length})


def test_a_prompt_too_long_for_one_worker_goes_to_a_larger_one() -> None:
    async def scene(act: Live) -> None:
        lengths(act, a=4096, b=4096, c=32768)
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert [len(act.puppets[name].asks) for name in "abc"] == [1, 1, 3]

    serve = answering(400, TOO_LONG)
    play(scene, {"a": serve, "b": serve, "c": talk})


def test_a_prompt_too_long_for_all_workers_is_relayed() -> None:
    async def scene(act: Live) -> None:
        lengths(act, a=4096, b=4096)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body) == (400, TOO_LONG)
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", answering(400, TOO_LONG)))


def test_the_last_words_of_an_engine_are_relayed_with_its_retry_after() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.body) == (503, failure(503))
        assert reply.header("retry-after") == "7"

    play(scene, dict.fromkeys("ab", answering(503, failure(503), b"retry-after: 7")))


def test_a_busy_engine_without_a_retry_after_gets_one() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.header("retry-after")) == (429, "1")

    play(scene, dict.fromkeys("ab", answering(429, failure(429))))


def test_a_busy_engine_is_not_held_against_it() -> None:
    async def scene(act: Live) -> None:
        for _ in range(10):
            await act.ask(CHAT, ASK)
        assert {act.state(name) for name in "ab"} == {"ready"}

    play(scene, dict.fromkeys("ab", answering(503, failure(503))))


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


def guarded(**options: Any) -> dict[str, Any]:
    return {"retry": {"poison_guard": True}, **options}


def test_a_body_that_killed_two_workers_is_refused_for_a_minute() -> None:
    async def scene(act: Live) -> None:
        async def die(ask: Ask, puppet: Puppet) -> None:
            puppet.kill()

        for puppet in act.puppets.values():
            puppet.serve = lambda ask, puppet=puppet: die(ask, puppet)  # type: ignore[misc]
        assert (await act.ask(CHAT, ASK)).status == 502
        await act.until(lambda: act.router.fleet.ready is False or act.state("c") == "ready")
        await asyncio.sleep(7)  # the probes find both gone
        for puppet in act.puppets.values():
            puppet.serve = talk
            puppet.accept()
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (502, "workers_lost_on_this_request")
        assert reply.header("x-should-retry") == "false"
        assert (await act.ask(CHAT, {**ASK, "n": 1})).status == 200  # another body
        await asyncio.sleep(60)
        assert (await act.ask(CHAT, ASK)).status == 200

    play(scene, dict.fromkeys("abc", talk), **guarded())


def test_without_the_guard_no_body_is_refused() -> None:
    async def scene(act: Live) -> None:
        assert act.router.poison is None
        assert (await act.ask("/debug/state", origin=ADMIN)).status == 200

    play(scene)
