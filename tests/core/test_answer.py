"""The typed reading of whole answers says what the reading of any type says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.answer import Answer, Usage, _read_any, _read_completion, read_answer, read_payload
from router.core.request import Api

WIRE = Path(__file__).parents[1] / "wire"
OPENAI = [Api.CHAT, Api.COMPLETIONS, Api.OTHER]

ODD = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "stop", "abort", "error"])
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.sampled_from(["type", "message", "cached_tokens"]), st.text(max_size=3), max_size=2)
)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda drawn: ODD if drawn == 0 else usual)


COUNT = mostly(st.none() | st.integers(0, 99_999))
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": mostly(st.integers(0, 3)),
        "finish_reason": mostly(st.sampled_from([None, "", "stop", "length", "abort"])),
        "message": ODD,
        "token_ids": ODD,
    },
)
DETAILS = st.none() | st.fixed_dictionaries({}, optional={"cached_tokens": COUNT})
USAGE = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "prompt_tokens_details": mostly(DETAILS),
        "total_tokens": COUNT,
    },
)
ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "id": mostly(st.text(max_size=5)),
        "object": mostly(st.sampled_from(["chat.completion", "list", "error"])),
        "type": mostly(st.none()),
        "choices": mostly(st.none() | st.lists(mostly(CHOICE), max_size=3)),
        "usage": mostly(USAGE),
        "error": mostly(st.none()),
        "detail": mostly(st.none()),
        "message": ODD,
        "code": ODD,
    },
)


@settings(max_examples=400)
@given(answer=ANSWER, api=st.sampled_from(OPENAI))
def test_the_typed_reading_agrees_wherever_it_has_an_opinion(answer: dict[str, Any], api: Api) -> None:
    data = json.dumps(answer).encode()
    lax = _read_any(api, data)
    assert _read_completion(data) in (None, lax)
    assert read_answer(api, data) == lax


@settings(max_examples=200)
@given(first=ANSWER, second=ANSWER)
def test_of_a_name_that_occurs_twice_both_readings_take_the_last(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    data = json.dumps(first)[:-1].encode() + b"," + json.dumps(second)[1:].encode()
    if read_payload(data) is not None:  # an empty object makes it no JSON
        assert _read_completion(data) in (None, _read_any(Api.CHAT, data))


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
def test_recorded_answers_are_read_by_type_and_alike(api: Api) -> None:
    data = (WIRE / f"vllm_{api.value}.json").read_bytes()
    typed = _read_completion(data)
    assert typed is not None
    assert typed == _read_any(api, data)


def test_usage_counts_even_where_the_text_is_no_utf_8() -> None:
    data = b'{"id":"1","choices":[{"message":{"content":"\xff"},"finish_reason":"stop"}],'
    data += b'"usage":{"prompt_tokens":3}}'
    assert read_answer(Api.CHAT, data) == Answer("1", Usage(3), {0: "stop"})
