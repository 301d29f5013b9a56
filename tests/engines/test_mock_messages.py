"""The Messages API, against what a real vLLM 0.32 sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from router.virtual.clock import run
from tests.engines.mock_stage import Reply, stage

WIRE = Path(__file__).parent.parent / "wire"
ASK = {"messages": [{"role": "user", "content": "the quick"}], "max_tokens": 2}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(path: str = "/v1/messages", **fields: Any) -> Reply:
    async def main() -> Reply:
        async with stage() as act:
            return await act.ask(path, {**ASK, **fields})

    return run(main())


def prompt_tokens(usage: dict[str, int]) -> int:
    """All of the prompt, cached or not."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage[name] for name in names)


def shape(event: bytes) -> bytes:
    data = re.sub(rb'"(id|model|text)":"(?:[^"\\]|\\.)+"', rb'"\1":"*"', event)
    return re.sub(rb":[0-9.]+(?=[,}])", b":0", data)


def test_a_stream_has_the_recorded_bytes() -> None:
    recorded = (WIRE / "vllm_messages.sse").read_bytes()
    theirs = [shape(event) for event in recorded[recorded.index(b"event:") :].split(b"\n\n") if event.strip()]
    assert [shape(event) for event in ask(stream=True).events()] == theirs


def test_a_body_has_the_recorded_keys_in_the_recorded_order() -> None:
    theirs = json.loads((WIRE / "vllm_messages.json").read_bytes())
    ours = ask().json()
    assert list(ours) == list(theirs)
    assert list(ours["usage"]) == list(theirs["usage"])
    assert ours["stop_reason"] == theirs["stop_reason"] == "max_tokens"


def test_the_system_prompt_is_part_of_the_prompt() -> None:
    plain, brief = ask().json()["usage"], ask(system="be brief").json()["usage"]
    assert prompt_tokens(brief) > prompt_tokens(plain)
    blocks = ask(system=[{"type": "text", "text": "be brief"}])
    assert blocks.json()["usage"] == brief


@pytest.mark.parametrize("stream", [False, True])
def test_input_tokens_are_neither_read_from_the_cache_nor_written_to_it(stream: bool) -> None:
    async def main() -> None:
        async with stage() as act:
            body = {
                "messages": [{"role": "user", "content": "word " * 400}],
                "max_tokens": 2,
                "stream": stream,
            }
            for created, read in ((496, 0), (0, 496)):
                reply = await act.ask("/v1/messages", body)
                usage = (reply.data()[-2] if stream else reply.json())["usage"]
                assert (usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) == (
                    created,
                    read,
                )
                assert usage["input_tokens"] == 10

    run(main())


def test_count_tokens_says_what_the_answer_will_say() -> None:
    counted = ask("/v1/messages/count_tokens").json()
    tokens = prompt_tokens(ask().json()["usage"])
    assert counted == {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


@pytest.mark.parametrize(
    ("choice", "reason"), [({"type": "any"}, "tool_use"), ({"type": "tool", "name": "weather"}, "tool_use")]
)
def test_a_tool_is_used_when_it_must_be(choice: dict[str, str], reason: str) -> None:
    body = ask(tools=[TOOL], tool_choice=choice, max_tokens=50).json()
    (block,) = body["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "text"})
    assert body["stop_reason"] == reason


def test_a_tools_input_streams_as_json_in_pieces() -> None:
    events = ask(tools=[TOOL], tool_choice={"type": "any"}, max_tokens=50, stream=True).data()
    deltas = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(deltas)) == {"city": "text"}
    assert events[1]["content_block"] == {**events[1]["content_block"], "type": "tool_use", "input": {}}


def test_a_stop_sequence_is_named() -> None:
    text = ask(max_tokens=8, temperature=0).json()["content"][0]["text"]
    body = ask(max_tokens=8, temperature=0, stop_sequences=[text[5:9]]).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", text[5:9])


def test_a_conversation_with_tool_results_and_thoughts_is_understood() -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ]
    assert ask(messages=messages, tools=[TOOL]).status == 200


def test_errors_have_anthropics_shape_but_a_bad_body_keeps_openais() -> None:
    missing = ask(model="nope")
    assert missing.status == 404
    assert missing.json()["type"] == "error"
    assert missing.json()["error"]["type"] == "NotFoundError"
    bad = ask(messages="hello")
    assert bad.status == 400
    assert bad.json()["error"]["code"] == 400
