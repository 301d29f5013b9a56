"""What each engine gets of a split request: the bodies, ids and headers of both legs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live
from tests.shell.pair import asks, decode, fresh_handle, play_pair, prefill, prefilled
from tests.shell.puppet import TALK, USAGE, WHOLE, Ask, answering, failure, in_turn

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
WORDS = [{"role": "user", "content": "hello"}]
NO_HANDLE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": WORDS,
        "max_tokens": 40,
        "max_completion_tokens": 40,
        "min_tokens": 5,
        "stop": ["end"],
        "temperature": 0.5,
        "unheard_of": {"a": [1]},
    },
    COMPLETIONS: {"prompt": "hello", "max_tokens": 40, "min_tokens": 5, "best_of": 1, "stop": "x", "seed": 3},
    RESPONSES: {"input": "hello", "max_output_tokens": 40, "store": True},
    MESSAGES: {"messages": WORDS, "max_tokens": 40, "stop_sequences": ["x"], "system": "be brief"},
}
ONE_TOKEN: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": 1, "max_completion_tokens": 1, "n": 1, "ignore_eos": True},
    COMPLETIONS: {"max_tokens": 1, "n": 1, "ignore_eos": True},
    RESPONSES: {"max_output_tokens": 1, "store": False, "ignore_eos": True},
    MESSAGES: {"max_tokens": 1},
}
GONE = ("min_tokens", "stop", "stop_sequences", "best_of", "stream_options")


def sent(path: str, *, stream: bool) -> dict[str, Any]:
    return {"model": "m", **BODIES[path], "stream": stream}


async def answer(ask: Ask) -> None:
    """What any API may be answered with, as far as these tests look."""
    ask.answer(200, WHOLE)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_the_prefill_leg_is_the_request_cut_down_to_its_prompt_and_one_token(path: str, stream: bool) -> None:
    async def scene(act: Live) -> None:
        await act.ask(path, sent(path, stream=stream))
        (leg,) = asks(act, "p")
        kept = {key: value for key, value in sent(path, stream=stream).items() if key not in GONE}
        wanted = {**kept, **ONE_TOKEN[path], "stream": False, "kv_transfer_params": NO_HANDLE}
        assert leg.path == path
        assert leg.json() == wanted

    play_pair(scene, decodes={"d": answer})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_the_decode_leg_is_the_clients_own_request_with_the_handle(path: str, stream: bool) -> None:
    params = {**fresh_handle(), "of_the_next_release": {"deep": [None, 1.5]}}

    async def scene(act: Live) -> None:
        await act.ask(path, sent(path, stream=stream))
        (leg,) = asks(act, "d")
        got = leg.json()
        assert leg.path == path
        assert got.pop("kv_transfer_params") == params
        usage = got.pop("stream_options", None)
        assert usage == ({"include_usage": True} if stream and path in (CHAT, COMPLETIONS) else None)
        assert got == sent(path, stream=stream)

    play_pair(scene, {"p": answering(200, prefilled(params))}, {"d": answer})


def test_a_client_that_did_not_ask_for_usage_does_not_see_it_and_the_router_does() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == TALK
        assert await act.metric("pointsman_output_tokens_total") == 4
        asked = {**STREAM, "stream_options": {"include_usage": True}}
        assert USAGE in (await act.ask(CHAT, asked)).body

    play_pair(scene)


def test_both_legs_carry_the_clients_request_id() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM, {"x-request-id": "mine"})
        assert [ask.header("x-request-id") for ask in asks(act)] == ["mine", "mine"]
        assert reply.header("x-request-id") == "mine"

    play_pair(scene)


def test_a_new_prefill_has_new_ids_and_both_of_its_legs_the_same() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM, {"x-request-id": "mine"})
        assert reply.body == TALK
        assert [ask.header("x-request-id") for ask in asks(act)] == ["mine", "mine", "mine-r1", "mine-r1"]
        assert reply.header("x-request-id") == "mine"

    serve = in_turn(answering(503, failure(503)), decode)
    play_pair(scene, decodes={"d": serve, "e": serve})


def test_a_handle_that_is_offered_again_keeps_the_id_of_its_prefill() -> None:
    async def scene(act: Live) -> None:
        act.puppets["d"].refuse()
        for _ in range(2):  # round_robin begins each one elsewhere
            assert (await act.ask(CHAT, STREAM, {"x-request-id": "mine"})).body == TALK
        assert {ask.header("x-request-id") for ask in asks(act)} == {"mine"}

    play_pair(scene, decodes={"d": decode, "e": decode})


def test_both_legs_carry_the_clients_headers_and_the_worker_key() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {"x-tenant": "t", "authorization": "Bearer of-the-client"})
        for ask in asks(act):
            assert ask.header("x-tenant") == "t"
            assert ask.header("authorization") == "Bearer of-the-fleet"
            assert ask.header("content-length") == str(len(ask.body))

    play_pair(scene, auth={"api_key": "of-the-fleet"})


def test_what_a_stranger_says_of_kv_reaches_no_engine() -> None:
    stolen = {"do_remote_prefill": True, "remote_request_id": "of-somebody-else"}

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "kv_transfer_params": stolen})
        assert reply.body == TALK
        first, second = asks(act)
        assert first.json()["kv_transfer_params"] == NO_HANDLE
        assert second.json()["kv_transfer_params"]["remote_request_id"].startswith("cmpl-")
        assert b"of-somebody-else" not in first.body + second.body

    play_pair(scene)


@pytest.mark.parametrize(
    ("params", "worker"),
    [({"do_remote_prefill": True, "remote_request_id": "x"}, "d"), ({"do_remote_decode": True}, "p")],
)
def test_who_is_trusted_may_hand_kv_over_by_hand(params: dict[str, Any], worker: str) -> None:
    async def scene(act: Live) -> None:
        body = {**ASK, "kv_transfer_params": params}
        reply = await act.ask(CHAT, body, {"authorization": "Bearer friend"})
        assert reply.status == 200
        (ask,) = asks(act)
        assert ask in act.puppets[worker].asks
        assert ask.json()["kv_transfer_params"] == params

    keys = [{"key": "friend", "name": "f", "trusted": True}]
    play_pair(scene, {"p": answer}, auth={"client_api_keys": keys})


def test_a_streamed_prefill_is_never_asked_for() -> None:
    """A stream carries no handle, and its KV is lost until the lease ends."""

    async def scene(act: Live) -> None:
        for path in BODIES:
            await act.ask(path, sent(path, stream=True))
        assert [ask.json()["stream"] for ask in asks(act, "p")] == [False] * 4

    play_pair(scene, {"p": prefill}, {"d": answer})
