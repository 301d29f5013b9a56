"""Errors in the shape of each API, with whose fault they are, and never an address of the inside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import Ask, answering, failure, hang, talk

MESSAGES = "/v1/messages"
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    502: "api_error",
}


async def refusals(act: Live, path: str) -> dict[int, Any]:
    """One refusal of each status that the router itself gives."""
    puppet = act.puppets["a"]
    found = {
        400: await act.ask(path, b"{"),
        404: await act.ask(path, {**ASK, "model": "x"}),
        413: await act.ask(path, {**ASK, "x": "y" * 5000}),
        504: await act.ask(path, ASK, {"x-stainless-read-timeout": "1"}),
    }
    held = [act.asking(path, STREAM) for _ in range(2)]
    await act.until(lambda: act.pool.queued == 1)
    found[429] = await act.ask(path, ASK)
    for task in held:
        task.cancel()
    await act.turns()
    puppet.serve = talk
    puppet.kill()
    found[502] = await act.ask(path, ASK)
    await act.until(lambda: act.state("a") == "ejected")
    found[503] = await act.ask(path, ASK)
    return found


RULES: dict[str, Any] = {
    "limits": {"body_bytes": 4000, "queue_size": 1},
    "pool": {"slots": 1, "binding": "late"},
    "timeouts": {"total_s": 1.0},
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings"])
def test_errors_have_the_openai_shape(path: str) -> None:
    async def scene(act: Live) -> None:
        for status, reply in (await refusals(act, path)).items():
            assert reply.status == status, reply.body
            assert reply.header("content-type") == "application/json"
            body = reply.json()
            assert list(body) == ["error"]
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert body["error"]["code"]

    play(scene, {"a": hang}, **RULES)


def test_errors_of_messages_have_the_anthropic_shape() -> None:
    async def scene(act: Live) -> None:
        for status, reply in (await refusals(act, MESSAGES)).items():
            assert reply.status == status, reply.body
            body = reply.json()
            assert body["type"] == "error"
            assert body["error"]["type"] == TYPES[status]
            assert body["error"]["message"]

    play(scene, {"a": hang}, **RULES)


@pytest.mark.parametrize("path", [MESSAGES, MESSAGES + "/count_tokens"])
def test_a_missing_key_of_messages_has_the_anthropic_shape(path: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(path, ASK)
        assert reply.status == 401
        assert reply.json()["type"] == "error"

    play(scene, auth={"client_api_keys": ["k"]})


def test_only_what_costs_nothing_is_worth_a_retry_of_the_library() -> None:
    async def scene(act: Live) -> None:
        told = {
            status: reply.header("x-should-retry") for status, reply in (await refusals(act, CHAT)).items()
        }
        assert told[429] is told[503] is None
        assert told[504] == told[502] == "false"

    play(scene, {"a": hang}, **RULES)


def test_retry_after_is_between_one_and_sixty_seconds() -> None:
    async def scene(act: Live) -> None:
        for status, reply in (await refusals(act, CHAT)).items():
            after = reply.header("retry-after")
            assert (after is not None) == (status in (429, 503)), status
            assert after is None or 1 <= int(after) <= 60

    play(scene, {"a": hang}, **RULES)


def test_no_refusal_names_an_address_or_a_worker() -> None:
    async def scene(act: Live) -> None:
        for reply in (await refusals(act, CHAT)).values():
            for inside in (b"8000", b"secret-host", b"127.0.0.1", b"http://", b"Traceback"):
                assert inside not in reply.body
            assert "secret-host" not in json.dumps(reply.headers)

    async def rename(act: Live) -> None:
        act.puppets["a"] = act.puppets["secret-host"]
        act.state = lambda name: str(act.worker("secret-host").state.value)  # type: ignore[method-assign]
        await scene(act)
        del act.puppets["a"]

    play(rename, {"secret-host": hang}, **RULES)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_every_success_status_is_relayed(status: int) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, ASK)).status == status

    async def serve(ask: Ask) -> None:
        if status == 204:
            ask.send(b"HTTP/1.1 204 X\r\n\r\n")
            ask.ended = True
        else:
            ask.answer(status, b'{"ok": true}')

    play(scene, {"a": serve})


@pytest.mark.parametrize("status", [301, 304, 399])
def test_a_redirect_of_an_engine_is_relayed_as_it_is(status: int) -> None:
    async def serve(ask: Ask) -> None:
        length = b"" if status == 304 else b"content-length: 0\r\n"
        ask.send(b"HTTP/1.1 %d X\r\nlocation: /x\r\n%b\r\n" % (status, length))
        ask.ended = True

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.header("location")) == (status, "/x")

    play(scene, {"a": serve})


@pytest.mark.parametrize("status", [600, 799, 999])
def test_a_status_that_does_not_exist_is_a_fault_of_the_worker(status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 502
        assert reply.error["type"] == "server_error"

    play(scene, dict.fromkeys("ab", answering(status, failure(status))))


def test_a_bug_in_the_router_is_answered_and_logged() -> None:
    async def scene(act: Live) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        admit = act.router.proxy._admission._request
        act.router.proxy._admission._request = broken  # type: ignore[method-assign, assignment]
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert "a bug" not in reply.error["message"]
        assert len(act.bugs.records) == 1
        act.bugs.records.clear()
        act.router.proxy._admission._request = admit  # type: ignore[method-assign]
        assert (await act.ask(CHAT, ASK)).status == 200

    play(scene)


def test_a_policy_with_a_bug_fails_its_requests_and_nothing_else() -> None:
    async def scene(act: Live) -> None:
        class Broken:
            def pick(self, *_: object) -> None:
                raise ZeroDivisionError("a bug")

        policy, name = act.pool.policy, act.pool.policy_name
        act.pool.use(Broken(), "broken")
        replies = [await task for task in [act.asking(CHAT, ASK) for _ in range(3)]]
        assert {reply.status for reply in replies} == {500}
        act.bugs.records.clear()
        act.loop.failures.clear()
        act.pool.use(policy, name)
        assert (await act.ask(CHAT, ASK)).status == 200

    play(scene)
