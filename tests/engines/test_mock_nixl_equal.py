"""A split request answers byte for byte as an unsplit one, on every API, streamed or not.

But for one number, as real engines: a decode engine computes none of a prompt whose KV it has fetched, so it
has put none of it into its cache. Messages count that apart from their input tokens.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.engines.pd_stage import CHAT, COMPLETIONS, PROMPT, Pair, play

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 24},
    CHAT: {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}],
           "max_tokens": 24},
    MESSAGES: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24},
    RESPONSES: {"input": PROMPT, "max_output_tokens": 24},
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"const": {"a": "some text", "b": 2}}}}
USAGE = {"include_usage": True}
FIELDS: dict[str, list[dict[str, Any]]] = {
    COMPLETIONS: [
        {}, {"seed": 7}, {"max_tokens": 1}, {"max_tokens": None}, {"logprobs": 2}, {"echo": True},
        {"echo": True, "logprobs": 1}, {"stop": ["a"]}, {"ignore_eos": True, "max_tokens": 64},
        {"return_token_ids": True}, {"min_tokens": 20}, {"cache_salt": "blue"},
        {"stream": True, "stream_options": {**USAGE, "continuous_usage_stats": True}},
        {"stream": True, "stream_interval": 3, "logprobs": 1}, {"prompt_logprobs": 1},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "text text text"}}}},
    ],
    CHAT: [
        {}, {"seed": 7}, {"max_tokens": 1}, {"max_completion_tokens": 5},
        {"logprobs": True, "top_logprobs": 2}, {"stop": ["e", "o"]}, {"return_token_ids": True},
        {"tools": [TOOL], "tool_choice": "required"}, {"stream": True, "stream_options": USAGE},
        {"stream": True, "stop": ["b"]},
    ],
    MESSAGES: [{}, {"max_tokens": 1}, {"stop_sequences": ["a"]}, {"system": "Be brief."}],
    RESPONSES: [{}, {"max_output_tokens": 1}, {"instructions": "Be brief."}],
}  # fmt: skip
CASES = [(path, fields) for path, many in FIELDS.items() for fields in many]
_MESSAGES_USAGE = re.compile(
    rb'(?<="input_tokens":)(\d+),("output_tokens":\d+),"cache_creation_input_tokens":(\d+)'
)
HEADERS = {"x-request-id": "same"}


def plain(body: bytes) -> bytes:
    """A body without its dates, and without what the engine has put into its cache."""
    body = re.sub(rb'"created(_at)?":\d+', b"", body)
    body = re.sub(rb'"(created_cache|cache_write)_tokens":\d+', b"", body)
    return _MESSAGES_USAGE.sub(lambda found: b"%d,%b" % (int(found[1]) + int(found[3]), found[2]), body)


@pytest.mark.parametrize(("path", "fields"), CASES, ids=lambda value: str(value)[:60])
def test_a_split_answer_is_the_unsplit_one(path: str, fields: dict[str, Any]) -> None:
    async def scene(act: Pair) -> None:
        body = {name: value for name, value in {**BODIES[path], **fields}.items() if value is not None}
        only_one_way = "stream" in body or "prompt_logprobs" in body
        for asked in [body] if only_one_way else [body, {**body, "stream": True}]:
            alone = await act.prefill.ask(path, asked, HEADERS)
            assert alone.status == 200, alone.body
            assert act.prefill.process.engine.reset_prefix_cache()
            handle = await act.handle(asked, path, HEADERS)
            split = await act.decode.ask(path, {**asked, "kv_transfer_params": handle}, HEADERS)
            assert plain(split.body) == plain(alone.body)
            assert act.prefill_blocks == 0
            assert act.decode.process.engine.reset_prefix_cache()
            assert act.prefill.process.engine.reset_prefix_cache()
        recomputes = "prompt_logprobs" in body or ("echo" in body and "logprobs" in body)
        transfers = (await act.scrape(act.decode))["nixl_bytes_transferred_count"]
        assert (transfers == 0) == recomputes

    play(scene)


def test_many_at_once_answer_as_each_alone() -> None:
    async def scene(act: Pair) -> None:
        bodies = [{"prompt": PROMPT[n:], "max_tokens": 30, "seed": n} for n in range(12)]

        async def split(body: dict[str, Any]) -> object:
            return (await act.split(body)).json()["choices"]

        found = await asyncio.gather(*(split(body) for body in bodies))
        alone = [(await act.decode.ask(COMPLETIONS, body)).json()["choices"] for body in bodies]
        assert found == alone

    play(scene, kv_tokens=3200, decode={"max_num_seqs": 4})


def test_a_decode_engine_that_preempts_answers_the_same() -> None:
    async def scene(act: Pair) -> None:
        bodies = [{"prompt": PROMPT[n:], "max_tokens": 150, "ignore_eos": True, "seed": n} for n in range(6)]
        found = await asyncio.gather(*(act.split(body) for body in bodies))
        assert act.decode.process.engine.counters.preemptions > 0
        for body, reply in zip(bodies, found, strict=True):
            alone = await act.prefill.ask(COMPLETIONS, body)
            assert reply.json()["choices"] == alone.json()["choices"]

    play(scene, decode={"kv_tokens": 800, "max_model_len": 400})
