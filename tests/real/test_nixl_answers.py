"""A real prefill/decode pair behind the router answers as one engine alone does, and KV was moved for it.

The prefill engine, asked directly and without a hand-over, is the one engine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import anthropic
import openai
import pytest

from tests.real.nixl import FREED_S, Disaggregated, Moved, config, router_value
from tests.real.nixl_bodies import (
    ONE_ENGINE,
    ONE_TOKEN,
    PROMPT,
    SPLIT,
    STREAMED,
    comparable,
    rounded,
    streamed_facts,
)
from tests.real.stage import Router
from tests.real.vllm import BLOCK_TOKENS, KV_BLOCKS, KV_BYTES, MODEL_NAME, completion
from tests.real.vllm_bodies import COMPLETIONS
from tests.real.wire import Answer, ask

pytestmark = pytest.mark.timeout(900)
BLOCK_BYTES = KV_BYTES // KV_BLOCKS
ANSWERED_S = 180.0
"""The first request with log probabilities takes half a minute: the engine compiles then."""
NOTHING = Moved(0, 0, 0)


@pytest.fixture(scope="module")
def router(nixl: Disaggregated) -> Iterator[Router]:
    with nixl.router("--config", config(nixl.directory)) as running:
        yield running


@pytest.fixture(autouse=True)
def first_law(nixl: Disaggregated, router: Router) -> Iterator[None]:
    nixl.forget_prompts()
    yield
    router.assert_idle(FREED_S)
    nixl.until_idle()


def _alone(nixl: Disaggregated, path: str, body: Any) -> Answer:
    """The answer of one engine alone, which then forgets the prompt."""
    answer = ask(nixl.prefill.port, "POST", path, body, timeout_s=ANSWERED_S)
    assert answer.status == 200, answer.body
    nixl.forget_prompts()
    return answer


def _routed(router: Router, path: str, body: Any) -> Answer:
    answer = ask(router.port, "POST", path, body, timeout_s=ANSWERED_S)
    assert answer.status == 200, answer.body
    assert answer.clean
    return answer


def _name(router: Router, engine: Any) -> Any:
    return router.worker(engine)["name"]


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_answer_is_that_of_one_engine(nixl: Disaggregated, router: Router, name: str) -> None:
    path, body = SPLIT[name]
    alone, before = _alone(nixl, path, body), nixl.moved()
    routed = _routed(router, path, body)
    assert comparable(routed) == comparable(alone)
    assert routed.headers["x-pointsman-worker"] == _name(router, nixl.decode)
    _assert_moved(nixl, before)


@pytest.mark.parametrize("name", STREAMED)
def test_a_split_stream_is_that_of_one_engine(nixl: Disaggregated, router: Router, name: str) -> None:
    path, body = STREAMED[name]
    alone, before = _alone(nixl, path, body), nixl.moved()
    routed = _routed(router, path, body)
    assert rounded(streamed_facts(routed)) == rounded(streamed_facts(alone))
    assert routed.headers["x-pointsman-worker"] == _name(router, nixl.decode)
    _assert_moved(nixl, before)


def _assert_moved(nixl: Disaggregated, before: Moved) -> None:
    moved = nixl.moved() - before
    assert moved.prompt_tokens > 0
    assert moved.nixl_bytes > 0
    assert moved.nixl_bytes % BLOCK_BYTES == 0
    assert moved.failed == 0


@pytest.mark.parametrize("name", ONE_TOKEN)
def test_one_token_is_answered_by_the_prefill_engine(nixl: Disaggregated, router: Router, name: str) -> None:
    path, body = ONE_TOKEN[name]
    _assert_whole(nixl, router, path, body, by=nixl.prefill)


@pytest.mark.parametrize("name", ONE_ENGINE)
def test_what_cannot_share_a_handle_is_served_by_one_engine(
    nixl: Disaggregated, router: Router, name: str
) -> None:
    path, body = ONE_ENGINE[name]
    _assert_whole(nixl, router, path, body, by=nixl.decode)


def _assert_whole(nixl: Disaggregated, router: Router, path: str, body: Any, *, by: Any) -> None:
    alone, before = _alone(nixl, path, body), nixl.moved()
    routed = _routed(router, path, body)
    if body.get("stream"):
        assert rounded(streamed_facts(routed)) == rounded(streamed_facts(alone))
    else:
        assert comparable(routed) == comparable(alone)
    assert routed.headers["x-pointsman-worker"] == _name(router, by)
    assert nixl.moved() - before == NOTHING


@pytest.mark.parametrize("streamed", [True, False])
def test_a_text_that_stops_at_its_first_token_is_empty(
    nixl: Disaggregated, router: Router, streamed: bool
) -> None:
    first = _alone(nixl, COMPLETIONS, completion(PROMPT, max_tokens=1)).json()["choices"][0]["text"]
    before = nixl.moved()
    answer = _routed(router, COMPLETIONS, completion(PROMPT, stop=[first], stream=streamed))
    if streamed:
        facts = streamed_facts(answer)
        assert (facts["texts"], facts["ends"], facts["done"]) == ({0: ""}, {0: "stop"}, True)
    else:
        choice = answer.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", first)
        assert answer.json()["usage"]["completion_tokens"] == 1
    _assert_moved(nixl, before)


def test_exactly_the_blocks_of_the_prompt_are_moved(nixl: Disaggregated, router: Router) -> None:
    tokens = len(PROMPT)  # a token a byte
    before = nixl.moved()
    _routed(router, COMPLETIONS, completion(PROMPT))
    blocks = -(-tokens // BLOCK_TOKENS)
    assert nixl.moved() - before == Moved(tokens, blocks * BLOCK_BYTES, 0)


def test_cached_tokens_are_those_of_the_prefill_engine(nixl: Disaggregated, router: Router) -> None:
    cached = []
    for _ in range(2):
        usage = _routed(router, COMPLETIONS, completion(PROMPT)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]


def test_the_openai_library_sees_one_server(nixl: Disaggregated, router: Router) -> None:
    common: Any = {"model": MODEL_NAME, "max_tokens": 24, "temperature": 0}
    common["messages"] = [{"role": "user", "content": PROMPT}]
    before = nixl.moved()
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="any", max_retries=0) as client:
        whole = client.chat.completions.create(**common)
        with client.chat.completions.create(**common, stream=True) as stream:
            chunks = list(stream)
        listed: Any = [model.id for model in client.models.list()]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert listed == [MODEL_NAME]
    _assert_moved(nixl, before)


def test_the_openai_library_sees_responses(nixl: Disaggregated, router: Router) -> None:
    common: Any = {"model": MODEL_NAME, "input": PROMPT, "max_output_tokens": 12, "temperature": 0}
    before = nixl.moved()
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="any", max_retries=0) as client:
        whole = client.responses.create(**common)
        with client.responses.create(**common, stream=True) as stream:
            events: Any = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].response.usage.output_tokens == 12
    _assert_moved(nixl, before)


def test_the_anthropic_library_sees_messages(nixl: Disaggregated, router: Router) -> None:
    common: Any = {"model": MODEL_NAME, "max_tokens": 12, "extra_body": {"temperature": 0}}
    common["messages"] = [{"role": "user", "content": PROMPT}]
    before = nixl.moved()
    with anthropic.Anthropic(base_url=router.url, api_key="any", max_retries=0) as client:
        whole: Any = client.messages.create(**common)
        with client.messages.stream(**common) as stream:
            text = "".join(stream.text_stream)
            last = stream.get_final_message()
    assert text == whole.content[0].text
    assert last.stop_reason == whole.stop_reason == "max_tokens"
    _assert_moved(nixl, before)


def test_refusals_are_those_of_one_engine_and_hold_nothing(nixl: Disaggregated, router: Router) -> None:
    for body in (
        completion("x" * 9000),
        completion(PROMPT, temperature=-1),
        completion(PROMPT, min_tokens=30),
    ):
        alone = ask(nixl.prefill.port, "POST", COMPLETIONS, body)
        routed = ask(router.port, "POST", COMPLETIONS, body)
        assert (routed.status, routed.json()) == (alone.status, alone.json())
        assert routed.status == 400


def test_a_decode_engine_says_that_it_has_cached_none_of_the_prompt(
    nixl: Disaggregated, router: Router
) -> None:
    """The one number of a split answer that differs from that of one engine: the engine's own words."""
    path, body = SPLIT["chat"]
    said = [answer.json()["usage"] for answer in (_alone(nixl, path, body), _routed(router, path, body))]
    created = [usage["prompt_tokens_details"]["created_cache_tokens"] for usage in said]
    assert created == [said[0]["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS, 0]


def test_the_router_counts_what_the_engines_moved(nixl: Disaggregated, router: Router) -> None:
    counted = partial(router_value, router)
    names = ("split_requests_total", "transfer_seconds_count", "prefill_seconds_count")
    before = [counted(name) for name in names]
    whole, failed = counted("unsplit_requests_total", reason="sequences"), counted("handover_failures_total")
    expired = nixl.expired()
    _routed(router, COMPLETIONS, completion(PROMPT))
    _routed(router, COMPLETIONS, completion([PROMPT, "b"]))
    assert [counted(name) for name in names] == [count + 1 for count in before]
    assert counted("unsplit_requests_total", reason="sequences") == whole + 1
    assert counted("handover_failures_total") == failed
    assert nixl.expired() == expired
