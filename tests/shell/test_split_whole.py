"""What is not split, and why: where it goes whole, and how that is counted."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.health import Sign
from tests.shell.live import ASK, CHAT, STREAM, Live
from tests.shell.pair import (
    STRICT,
    asks,
    counts,
    decode,
    fresh_handle,
    play_pair,
    prefill,
    prefilled,
    whole,
)
from tests.shell.puppet import TALK, WHOLE, Ask, answering

LONG = {**ASK, "messages": [{"role": "user", "content": "long " * 2000}]}
SPLITS_LONG = {"pd_split_min_tokens": 512}


async def serve(ask: Ask) -> None:
    """Hands KV over when it is asked to, and answers everything else whole."""
    params = ask.json().get("kv_transfer_params") or {}
    ask.answer(200, prefilled(fresh_handle()) if params.get("do_remote_decode") else WHOLE)


async def unsplit(act: Live, reason: str) -> float:
    return await act.metric("pointsman_unsplit_requests_total", model="m", reason=reason) or 0


async def refused(act: Live, reason: str) -> float:
    return await act.metric("pointsman_split_refused_total", model="m", reason=reason) or 0


async def assert_whole_at(act: Live, worker: str, reason: str) -> None:
    """Exactly one request, untouched, at this worker."""
    (ask,) = asks(act)
    assert ask in act.puppets[worker].asks
    assert whole(ask)
    assert await unsplit(act, reason) == 1
    assert await act.metric("pointsman_split_requests_total") in (None, 0)


# --- short prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"may_prefill": True}, {"role": "both"}], ids=repr)
def test_a_short_prompt_goes_to_a_worker_that_may_do_both(setting: dict[str, Any]) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        await assert_whole_at(act, "e", "short")

    play_pair(scene, decodes={"d": decode, "e": decode}, each={"e": setting}, decode_pool=SPLITS_LONG)


def test_a_short_prompt_is_split_where_nobody_may_do_both() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "d") == [1, 1]

    play_pair(scene, decode_pool=SPLITS_LONG)


def test_a_long_prompt_is_split_although_somebody_may_do_both() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, LONG)
        assert counts(act, "p", "d") == [1, 1]
        assert await act.metric("pointsman_split_requests_total") == 1

    play_pair(scene, {"p": serve}, {"d": serve}, decode_pool={**SPLITS_LONG, "may_prefill": True})


# --- what no two engines can do together ----------------------------------------------------------------

OF_THE_BODY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "n": ("sequences", CHAT, {**ASK, "n": 2}),
    "best_of": ("sequences", "/v1/completions", {"model": "m", "prompt": "a", "best_of": 3}),
    "prompts": ("sequences", "/v1/completions", {"model": "m", "prompt": ["a", "b"]}),
    "prompt_ids": ("sequences", "/v1/completions", {"model": "m", "prompt": [[1, 2], [3]]}),
    "prompt_logprobs": ("prompt_logprobs", CHAT, {**ASK, "prompt_logprobs": 1}),
    "echo": ("prompt_logprobs", "/v1/completions", {"model": "m", "prompt": "a", "echo": True}),
    "beam_search": ("beam_search", CHAT, {**ASK, "use_beam_search": True}),
    "truncation": ("truncated", CHAT, {**ASK, "truncate_prompt_tokens": -1}),
}


@pytest.mark.parametrize("name", OF_THE_BODY)
@pytest.mark.parametrize("fallback", ["aggregated", "strict"])
def test_what_two_engines_cannot_do_together_one_decode_worker_does(name: str, fallback: str) -> None:
    reason, path, body = OF_THE_BODY[name]

    async def scene(act: Live) -> None:
        assert (await act.ask(path, body)).status == 200
        await assert_whole_at(act, "d", reason)
        assert asks(act)[0].json() == body

    play_pair(scene, {"p": serve}, {"d": serve}, decode_pool={"fallback": fallback})


@pytest.mark.parametrize("gone", ["", "d"])
@pytest.mark.parametrize("limit", [{"max_tokens": 1}, {"max_completion_tokens": 1}], ids=repr)
def test_one_token_is_answered_by_the_worker_that_prefills(limit: dict[str, int], gone: str) -> None:
    async def scene(act: Live) -> None:
        if gone:
            act.router.fleet.leave(gone, act.loop.time())
        assert (await act.ask(CHAT, {**ASK, **limit})).status == 200
        await assert_whole_at(act, "p", "one_token")
        assert asks(act)[0].json() == {**ASK, **limit}

    play_pair(scene, {"p": serve}, {"d": serve})


def test_one_token_without_a_prefill_worker_is_a_request_like_others() -> None:
    async def scene(act: Live) -> None:
        act.router.fleet.leave("p", act.loop.time())
        assert (await act.ask(CHAT, {**ASK, "max_tokens": 1})).status == 200
        await assert_whole_at(act, "d", "no_prefill")

    play_pair(scene, {"p": serve}, {"d": serve})


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/tokenize"])
@pytest.mark.parametrize("gone", ["", "p", "d"])
def test_what_generates_nothing_goes_to_whoever_is_there(path: str, gone: str) -> None:
    async def scene(act: Live) -> None:
        if gone:
            act.router.fleet.leave(gone, act.loop.time())
        assert (await act.ask(path, {"model": "m", "input": "a"})).status == 200
        await assert_whole_at(act, "d" if gone == "p" else "p", "not_generated")

    play_pair(scene, {"p": serve}, {"d": serve})


def test_a_stored_response_is_continued_by_the_worker_that_holds_it() -> None:
    async def scene(act: Live) -> None:
        first = await act.ask("/v1/responses", {"model": "m", "input": "a"})
        assert first.json()["id"] == "resp-7"
        assert counts(act, "p", "d", "e") == [1, 1, 0]
        for asked in range(2, 5):
            body = {"model": "m", "input": "b", "previous_response_id": "resp-7"}
            assert (await act.ask("/v1/responses", body)).status == 200
            assert counts(act, "p", "d", "e") == [1, asked, 0]
        assert (await act.ask("/v1/responses/resp-7")).status == 200
        assert counts(act, "p", "d", "e") == [1, 5, 0]
        assert await unsplit(act, "stored") == 3

    async def respond(ask: Ask) -> None:
        ask.answer(200, b'{"id":"resp-7","object":"response","status":"completed","output":[]}')

    play_pair(scene, {"p": serve}, {"d": respond, "e": respond})


# --- nobody to prefill ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left", "drained", "ejected"])
def test_without_a_prefill_worker_decode_workers_serve_whole_requests(how: str) -> None:
    async def scene(act: Live) -> None:
        lose(act, "p", how)
        assert (await act.ask(CHAT, STREAM)).body == TALK
        await assert_whole_at(act, "d", "no_prefill")

    play_pair(scene, health={"interval_s": 3000})


@pytest.mark.parametrize("how", ["left", "drained", "ejected"])
def test_in_strict_mode_they_are_refused_at_once(how: str) -> None:
    async def scene(act: Live) -> None:
        lose(act, "p", how)
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert reply.header("retry-after") == "5"
        assert act.now == before
        assert asks(act) == []
        assert await refused(act, "no_prefill") == 1
        assert await unsplit(act, "no_prefill") == 0

    play_pair(scene, decode_pool=STRICT, health={"interval_s": 3000})


def lose(act: Live, name: str, how: str) -> None:
    """A prefill worker goes out of rotation."""
    now = act.loop.time()
    if how == "left":
        act.router.fleet.leave(name, now)
    elif how == "drained":
        act.router.fleet.drain(name, now)
    else:
        act.puppets[name].refuse()
        act.router.fleet.dispatchers["prefill"].pool.roster.sign(name, Sign.REFUSED, now)


@pytest.mark.parametrize("fallback", ["aggregated", "strict"])
@pytest.mark.parametrize("how", ["left", "drained"])
def test_without_a_decode_worker_requests_are_refused_at_once_and_nothing_is_prefilled(
    fallback: str, how: str
) -> None:
    async def scene(act: Live) -> None:
        now = act.loop.time()
        (act.router.fleet.leave if how == "left" else act.router.fleet.drain)("d", now)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert asks(act) == []

    play_pair(scene, decode_pool={"fallback": fallback})


def test_a_prefill_worker_that_comes_back_is_used_again() -> None:
    async def scene(act: Live) -> None:
        lose(act, "p", "drained")
        await act.ask(CHAT, STREAM)
        act.router.fleet.drain("p", act.loop.time(), resume=True)
        await act.until(lambda: act.state("p") == "ready")
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "d") == [1, 2]

    play_pair(scene, {"p": prefill}, health={"interval_s": 1})


def test_an_engine_that_keeps_no_kv_is_no_reason_to_refuse() -> None:
    """vLLM up to 0.20 gives no handle for a prompt whose first token ends the text."""

    async def scene(act: Live) -> None:
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert await unsplit(act, "no_handle") == 3

    play_pair(scene, {"p": answering(200, prefilled(None))}, strands=True)
