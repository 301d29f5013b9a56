"""The bytes of completions, against what a real vLLM 0.32 sent."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.model.text import encode
from router.virtual.clock import run
from tests.engines.mock_stage import TEXT, Reply, stage

WIRE = Path(__file__).parent.parent / "wire"


def shape(event: bytes) -> bytes:
    """An event with its values blotted out: keys, order, nulls, braces and spaces stay."""
    data = re.sub(rb'"(id|model|text|system_fingerprint)":"(?:[^"\\]|\\.)*"', rb'"\1":"*"', event)
    return re.sub(rb":[0-9.]+(?=[,}])", b":0", data)


def recorded(name: str) -> list[bytes]:
    body = (WIRE / name).read_bytes()
    return [shape(event) for event in body[body.index(b"data:") :].split(b"\n\n") if event.strip()]


def ask(**fields: Any) -> Reply:
    async def main() -> Reply:
        async with stage() as act:
            return await act.ask("/v1/completions", {**TEXT, **fields})

    return run(main())


def test_a_stream_with_usage_has_the_recorded_bytes() -> None:
    events = ask(max_tokens=3, stream=True, stream_options={"include_usage": True}).events()
    assert [shape(event) for event in events] == recorded("vllm_completions_usage.sse")


def test_two_answers_in_one_stream_have_the_recorded_events() -> None:
    events = ask(max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}).events()
    assert sorted(shape(event) for event in events) == sorted(recorded("vllm_completions_n2.sse"))


def test_a_body_has_the_recorded_keys_in_the_recorded_order() -> None:
    theirs = json.loads((WIRE / "vllm_completions.json").read_bytes())
    ours = ask().json()
    assert list(ours) == list(theirs)
    assert list(ours["choices"][0]) == list(theirs["choices"][0])
    assert list(ours["usage"]) == list(theirs["usage"])
    assert ours["usage"]["prompt_tokens_details"] == theirs["usage"]["prompt_tokens_details"]


def test_a_request_without_max_tokens_gets_sixteen() -> None:
    async def main() -> Reply:
        async with stage() as act:
            return await act.ask("/v1/completions", {"prompt": "x", "ignore_eos": True})

    assert run(main()).json()["usage"]["completion_tokens"] == 16


def test_prompts_are_answered_in_index_order_prompt_by_prompt() -> None:
    body = ask(prompt=["one", "two"], n=2, return_token_ids=True).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [
        encode("one"), encode("one"), encode("two"), encode("two"),
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("ids", [encode("the quick brown fox"), [encode("the quick brown fox")]])
def test_token_ids_are_the_same_prompt_as_their_text(ids: list[Any]) -> None:
    assert ask(prompt=ids).json()["choices"][0]["text"] == ask().json()["choices"][0]["text"]


def test_token_ids_of_the_answer_are_its_text() -> None:
    choice = ask(return_token_ids=True).json()["choices"][0]
    assert choice["token_ids"] == encode(choice["text"])


def test_logprobs_say_where_each_token_begins_in_the_text() -> None:
    choice = ask(logprobs=1).json()["choices"][0]
    places = choice["logprobs"]["text_offset"]
    assert [choice["text"][place : place + 4] for place in places] == choice["logprobs"]["tokens"]
    events = ask(logprobs=1, stream=True).data()
    streamed = [event["choices"][0]["logprobs"]["text_offset"] for event in events]
    assert [place for offsets in streamed for place in offsets] == places


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_begins_with_the_prompt(stream: bool) -> None:
    plain = ask(max_tokens=3)
    reply = ask(max_tokens=3, echo=True, logprobs=2, stream=stream)
    choices = [event["choices"][0] for event in reply.data()] if stream else reply.json()["choices"]
    assert (
        "".join(choice["text"] for choice in choices) == TEXT["prompt"] + plain.json()["choices"][0]["text"]
    )
    first = choices[0]["logprobs"]
    assert (first["token_logprobs"][0], first["top_logprobs"][0]) == (None, None)
    numbers = [number for choice in choices for number in choice["logprobs"]["token_logprobs"]]
    assert len(numbers) == len(encode(TEXT["prompt"])) + 3
    assert None not in numbers[1:]


def test_an_echo_of_ids_leaves_out_the_text_of_the_prompt() -> None:
    plain, echo = ask(max_tokens=3), ask(max_tokens=3, echo=True, return_token_ids=True)
    choice = echo.json()["choices"][0]
    assert choice["text"] == plain.json()["choices"][0]["text"]
    assert choice["token_ids"][: len(choice["prompt_token_ids"])] == choice["prompt_token_ids"]


def test_the_longest_answer_stops_at_the_models_length() -> None:
    async def main() -> Reply:
        async with stage(max_model_len=64) as act:
            return await act.ask(
                "/v1/completions", {"prompt": "x" * 240, "max_tokens": 64, "ignore_eos": True}
            )

    body = run(main()).json()
    assert body["usage"] == {**body["usage"], "prompt_tokens": 60, "completion_tokens": 4}
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_stop_that_was_held_back_is_shown_when_it_was_none() -> None:
    text = ask(max_tokens=10, ignore_eos=True).json()["choices"][0]["text"]
    almost = text[-2:] + "!"
    assert ask(max_tokens=10, ignore_eos=True, stop=[almost]).json()["choices"][0]["text"] == text


def test_include_stop_str_in_output_keeps_the_stop() -> None:
    text = ask(max_tokens=10, ignore_eos=True).json()["choices"][0]["text"]
    stop = text[9:13]
    choice = ask(max_tokens=10, ignore_eos=True, stop=stop, include_stop_str_in_output=True).json()[
        "choices"
    ][0]
    assert choice["text"] == text[: text.index(stop) + 4]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), crowd=st.integers(1, 6))
def test_the_text_does_not_depend_on_what_else_is_in_the_batch(seed: int, crowd: int) -> None:
    async def text(others: int) -> str:
        async with stage(max_num_seqs=3, max_num_batched_tokens=64) as act:
            rest = [
                asyncio.ensure_future(
                    act.ask("/v1/completions", {"prompt": f"crowd {index}" * 40, "max_tokens": 30})
                )
                for index in range(others)
            ]
            reply = await act.ask("/v1/completions", {**TEXT, "seed": seed, "max_tokens": 12})
            await asyncio.gather(*rest)
            return str(reply.json()["choices"][0]["text"])

    assert run(text(0)) == run(text(crowd))
