"""Laws of the request bodies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.studies.replay.prompts import Prompts, Tokenizer
from router.studies.replay.requests import prepare, too_long
from router.studies.replay.settings import ReplaySettings
from router.studies.traces import TraceEntry

ENTRY = TraceEntry(
    arrival_s=0, prompt_tokens=40, output_tokens=7, blocks=("a",), model="theirs", session="s", line=3
)


def settings(**fields: Any) -> ReplaySettings:
    return ReplaySettings(url="http://e", model="m", **fields)


def body(one: ReplaySettings, entry: TraceEntry = ENTRY) -> dict[str, Any]:
    prompts = Prompts(seed=one.seed, block_tokens=16, tokenizer=Tokenizer())
    return msgspec.json.decode(prepare(one, prompts, entry).body, type=dict[str, Any])


def test_a_chat_request_streams_with_usage_and_its_exact_length() -> None:
    fields = body(settings())
    text = fields.pop("messages")[0]["content"]
    assert len(text) == 160
    assert fields == {
        "model": "m",
        "max_tokens": 7,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_a_completion_carries_a_plain_prompt() -> None:
    fields = body(settings(api="completions"))
    assert len(fields["prompt"]) == 160
    assert "messages" not in fields


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"ignore_eos": False}, "ignore_eos", None),
        ({"trace_models": True}, "model", "theirs"),
        ({"trace_models": False}, "model", "m"),
        ({"send_session": True}, "prompt_cache_key", "s"),
        ({"send_session": False}, "prompt_cache_key", None),
    ],
)
def test_options_change_one_field(given: dict[str, Any], field: str, value: object) -> None:
    assert body(settings(**given)).get(field) == value


def test_an_entry_without_a_model_or_session_gets_the_settings_model_and_none() -> None:
    bare = TraceEntry(arrival_s=0, prompt_tokens=4, output_tokens=1, line=1)
    fields = body(settings(trace_models=True, send_session=True), bare)
    assert fields["model"] == "m"
    assert "prompt_cache_key" not in fields


def test_the_same_seed_makes_the_same_bytes_and_another_does_not() -> None:
    assert body(settings(seed=4)) == body(settings(seed=4))
    assert body(settings(seed=4)) != body(settings(seed=5))


@pytest.mark.parametrize(
    ("room", "long", "max_tokens", "clipped"),
    [(None, False, 7, False), (47, False, 7, False), (46, False, 6, True), (41, False, 1, True)],
)
def test_output_is_clipped_to_what_the_context_leaves(
    room: int | None, long: bool, max_tokens: int, clipped: bool
) -> None:
    one = settings(max_model_len=room)
    prepared = prepare(one, Prompts(seed=0, block_tokens=16, tokenizer=Tokenizer()), ENTRY)
    assert too_long(one, ENTRY) is long
    assert (prepared.max_tokens, prepared.clipped) == (max_tokens, clipped)


def test_a_prompt_that_leaves_no_room_for_a_token_is_too_long() -> None:
    assert too_long(settings(max_model_len=40), ENTRY)
