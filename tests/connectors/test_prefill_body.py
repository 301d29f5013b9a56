"""Laws of the prefill leg: the prompt and one token, nothing that is refused, left behind or thrown away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.connectors import build_connector
from router.core.errors import BadRequest, InternalError
from router.core.request import Api
from tests.connectors.connector_examples import CHAT, GENERATING, OBJECTS, pairing, prefill

SEQUENTIAL = ("nixl", "mooncake", "none")
every_sequential = pytest.mark.parametrize("name", SEQUENTIAL)
every_api = pytest.mark.parametrize("api", GENERATING)

ONE_TOKEN = {
    Api.CHAT: {"max_tokens": 1, "max_completion_tokens": 1},
    Api.COMPLETIONS: {"max_tokens": 1},
    Api.RESPONSES: {"max_output_tokens": 1},
    Api.MESSAGES: {"max_tokens": 1},
}
REFUSED_OR_WASTED = {
    "stream_options", "min_tokens", "best_of", "echo", "prompt_logprobs", "return_token_ids",
}  # fmt: skip
SHAPES_THE_PROMPT: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "truncate_prompt_tokens": 10,
    "truncation": "auto",
    "cache_salt": "s",
    "priority": 3,
    "vllm_xargs": {"a": 1},
    "use_beam_search": True,
    "unknown": {"deep": [1, 2.50, None]},
}


@every_sequential
@given(fields=OBJECTS, api=st.sampled_from(GENERATING))
def test_a_prefill_leg_is_one_token_of_one_sequence_and_no_stream(
    name: str, fields: dict[str, Any], api: Api
) -> None:
    sent = json.loads(build_connector(name).prefill_leg(json.dumps(fields).encode(), pairing(api)).body)
    assert sent["stream"] is False
    assert not sent.keys() & REFUSED_OR_WASTED
    assert {key: sent[key] for key in ONE_TOKEN[api]} == ONE_TOKEN[api]
    if api in (Api.CHAT, Api.COMPLETIONS):
        assert sent["n"] == 1


@every_sequential
@given(fields=OBJECTS, api=st.sampled_from(GENERATING))
def test_a_prefill_leg_adds_nothing_but_what_it_must(name: str, fields: dict[str, Any], api: Api) -> None:
    sent = json.loads(build_connector(name).prefill_leg(json.dumps(fields).encode(), pairing(api)).body)
    assert sent.keys() - fields.keys() <= {
        *ONE_TOKEN[api], "n", "stream", "store", "ignore_eos", "kv_transfer_params",
    }  # fmt: skip


@every_sequential
@every_api
def test_what_shapes_the_prompt_stays_as_it_came(name: str, api: Api) -> None:
    sent = prefill(name, api, **SHAPES_THE_PROMPT)
    assert {key: sent[key] for key in SHAPES_THE_PROMPT} == SHAPES_THE_PROMPT
    assert sent["messages"] == CHAT["messages"]


@pytest.mark.parametrize("name", ["nixl", "mooncake"])
@every_api
def test_only_the_bound_on_tokens_ends_a_prefill_whose_kv_is_wanted(name: str, api: Api) -> None:
    sent = prefill(name, api, stop=["a"], stop_token_ids=[1], stop_sequences=["b"], ignore_eos=False)
    assert not sent.keys() & {"stop", "stop_token_ids", "stop_sequences"}
    # The Messages API has no such field, so the client's stays what it was.
    assert sent["ignore_eos"] is (api is not Api.MESSAGES)


def test_a_warm_up_may_end_as_it_likes() -> None:
    sent = prefill("none", stop=["a"], ignore_eos=False)
    assert (sent["stop"], sent["ignore_eos"]) == (["a"], False)


@every_sequential
def test_the_newer_bound_of_chat_cannot_win_over_one_token(name: str) -> None:
    assert prefill(name, max_tokens=9, max_completion_tokens=5)["max_completion_tokens"] == 1


@every_sequential
def test_responses_are_neither_stored_nor_made_in_the_background(name: str) -> None:
    sent = prefill(name, Api.RESPONSES, store=True, background=True)
    assert sent["store"] is False
    assert "background" not in sent
    assert "max_tokens" not in sent


@every_sequential
def test_other_apis_keep_fields_that_only_responses_know(name: str) -> None:
    sent = prefill(name, store=True, background=True)
    assert (sent["store"], sent["background"]) == (True, True)


@pytest.mark.parametrize(("name", "kept"), [("nixl", True), ("mooncake", True), ("none", False)])
def test_a_thinking_budget_goes_where_one_token_would_be_refused_for_it(name: str, kept: bool) -> None:
    sent = prefill(name, Api.MESSAGES, thinking={"type": "enabled", "budget_tokens": 2048})
    assert ("thinking" in sent) is kept


@every_sequential
def test_other_bytes_stay_as_they_came_and_of_a_field_given_twice_the_last_counts(name: str) -> None:
    data = b'{ "t" : 1.50,\n"s":"\\u00e9","big":123456789012345678901234567890, "t": 2.50, "\\u006e": 4 }'
    sent = build_connector(name).prefill_leg(data, pairing()).body
    assert sent.startswith(b'{"t":2.50,"s":"\\u00e9","big":123456789012345678901234567890,"n":1,')


@every_sequential
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 200_000])
def test_what_is_no_object_is_the_clients_fault(name: str, data: bytes) -> None:
    with pytest.raises(BadRequest):
        build_connector(name).prefill_leg(data, pairing())


@every_sequential
def test_a_call_that_generates_nothing_has_no_prefill_leg(name: str) -> None:
    with pytest.raises(InternalError, match="generates nothing"):
        build_connector(name).prefill_leg(b"{}", pairing(Api.OTHER))
