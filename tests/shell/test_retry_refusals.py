"""What an engine refuses, and what the router makes of it: the model, the key, the length, the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import (
    DONE,
    TALK,
    Ask,
    Puppet,
    answering,
    failure,
    failure_event,
    streaming,
    talk,
)


def tries(act: Live) -> int:
    return sum(len(puppet.asks) for puppet in act.puppets.values())


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 418, 422])
def test_another_refusal_of_the_engine_is_relayed_and_not_tried_again(status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.body) == (status, failure(status))
        assert tries(act) == 1

    play(scene, dict.fromkeys("ab", answering(status, failure(status))))


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
