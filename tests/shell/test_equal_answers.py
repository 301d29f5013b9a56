"""A split request is answered exactly as one engine alone answers it: every API, streamed or not, over the
parameters that clients use. The engines are mocks, whose text depends on all that they were told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from tests.shell.live import Live, MockEngine, play
from tests.shell.pair import pools
from tests.shell.visitors import Reply

MODEL = "qwen2.5-3b"
PROMPT = "Where the tracks part, somebody has to set the points. " * 12
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": PROMPT},
    "/v1/responses": {"input": PROMPT},
    "/v1/messages": CHAT,
}
_LIMIT = {"/v1/responses": "max_output_tokens"}
_OPENAI = ("/v1/chat/completions", "/v1/completions")
_NAMES = frozenset({"id", "created", "created_at", "completed_at", "item_id", "system_fingerprint"})
"""What two engines, or two requests to one, call differently."""
_CREATED = frozenset({"created_cache_tokens", "cache_write_tokens", "cache_creation_input_tokens"})

_OF_ALL: tuple[dict[str, Any], ...] = (
    {},
    {"limit": 1},
    {"limit": 2},
    {"limit": 40},
    {"temperature": 0.0},
    {"temperature": 1.3, "seed": 11, "top_p": 0.8},
)
_OF_OPENAI: tuple[dict[str, Any], ...] = (
    {"n": 3, "temperature": 0.9},
    {"stop": [" "]},
    {"stop": ["the", "\n"], "include_stop_str_in_output": True},
    {"min_tokens": 20, "limit": 25},
    {"ignore_eos": True, "limit": 30},
    {"return_token_ids": True},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
)
_OF_ONE: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": ({"logprobs": True, "top_logprobs": 3}, {"max_completion_tokens": 7}),
    "/v1/completions": (
        {"logprobs": 2},
        {"prompt": [PROMPT, PROMPT[::-1]]},
        {"prompt": [11, 12, 13, 14] * 40},
        {"echo": True},
        {"prompt_logprobs": 1},
        {"best_of": 2, "n": 1, "temperature": 0.9},
    ),
}
_STAYS_WHOLE = frozenset({"n", "echo", "prompt_logprobs", "best_of"})


def _cases() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path, {**fields, "stream": stream})
        for path in BODIES
        for fields in (*_OF_ALL, *(_OF_OPENAI if path in _OPENAI else ()), *_OF_ONE.get(path, ()))
        for stream in (False, True)
        if stream or "stream_options" not in fields
    ]


def _body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": MODEL, "seed": 5, **BODIES[path], **fields}
    limit = body.pop("limit", 12)
    if "max_completion_tokens" not in body:
        body[_LIMIT.get(path, "max_tokens")] = limit
    return body


def _essence(value: Any) -> Any:
    """An answer without the names of things."""
    if isinstance(value, dict):
        return {key: _essence(item) for key, item in _sum_of_created(value).items() if key not in _NAMES}
    return [_essence(item) for item in value] if isinstance(value, list) else value


def _sum_of_created(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage without what an engine has put into its own cache. A decode engine computes none of a prompt
    whose KV it has fetched, and says 0: the one field of a split answer that differs from that of one engine,
    real or not. Messages count it apart from their input tokens; here it is one sum."""
    found = {key: item for key, item in usage.items() if key not in _CREATED}
    if "cache_creation_input_tokens" in usage:
        found["input_tokens"] += usage["cache_creation_input_tokens"]
    return found


def _told(reply: Reply) -> Any:
    assert reply.broken is None
    if b"text/event-stream" not in (reply.header("content-type") or "").encode():
        return reply.status, _essence(reply.json())
    lines = [line for line in reply.body.split(b"\n") if line]
    data = [line.removeprefix(b"data: ") for line in lines]
    return reply.status, [_essence(json.loads(line)) if line.startswith(b"{") else line for line in data]


def _engines() -> dict[str, MockSettings]:
    return {
        "p": MockSettings(role="prefill", kv_connector="nixl"),
        "d": MockSettings(role="decode", kv_connector="nixl"),
    }


def _whole(fields: dict[str, Any]) -> bool:
    """Whether one worker must serve it: then nothing is handed over."""
    prompt = fields.get("prompt")
    several = isinstance(prompt, list) and isinstance(prompt[0], str)
    return fields.get("limit") == 1 or several or bool(_STAYS_WHOLE & fields.keys())


@pytest.mark.parametrize(("path", "fields"), _cases(), ids=str)
def test_a_split_request_is_answered_as_by_one_engine(path: str, fields: dict[str, Any]) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        body = _body(path, fields)
        for _ in range(2):  # the second time the prompt is cached, in both worlds
            expected = await act.ask(path, body, origin=alone.origin)
            assert _told(await act.ask(path, body)) == _told(expected)
        transfers = await act.metric("pointsman_transfer_seconds_count")
        assert (transfers or 0) == (0 if _whole(fields) else 2)
        alone.process.close()

    play(scene, _engines(), pools=pools(["p"], ["d"]))
