"""The bytes of chat.completions, against what a real vLLM 0.32 sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from router.virtual.clock import run
from tests.engines.mock_stage import CHAT, spoken, stage

WIRE = Path(__file__).parent.parent / "wire"


def shape(event: bytes) -> bytes:
    """An event with its values blotted out: keys, order, nulls, braces and spaces stay."""
    data = re.sub(rb'"(id|model|content|text|system_fingerprint)":"(?:[^"\\]|\\.)*"', rb'"\1":"*"', event)
    data = re.sub(rb'"(prompt_token_ids|token_ids)":\[[0-9,]*\]', rb'"\1":[*]', data)
    return re.sub(rb":[0-9.]+(?=[,}])", b":0", data)


def recorded(name: str) -> list[bytes]:
    body = (WIRE / name).read_bytes()
    start = body.index(b"data:")
    return [shape(event) for event in body[start:].split(b"\n\n") if event]


def streamed(**fields: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        async with stage() as act:
            reply = await act.ask("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream": True, **fields})
            return reply.events()

    return run(main())


def test_a_plain_stream_has_the_recorded_bytes() -> None:
    assert [shape(event) for event in streamed()] == recorded("vllm_chat_plain.sse")


def test_a_stream_with_usage_has_the_recorded_bytes() -> None:
    events = streamed(stream_options={"include_usage": True})
    assert [shape(event) for event in events] == recorded("vllm_chat_usage.sse")


def test_continuous_usage_and_token_ids_have_the_recorded_bytes() -> None:
    events = streamed(
        stream_options={"include_usage": True, "continuous_usage_stats": True}, return_token_ids=True
    )
    assert [shape(event) for event in events] == recorded("vllm_chat_continuous.sse")


def whole(**fields: Any) -> Any:
    async def main() -> Any:
        async with stage() as act:
            reply = await act.ask("/v1/chat/completions", {**CHAT, **fields})
            assert reply.status == 200, reply.body
            return reply.json()

    return run(main())


def outline(value: Any) -> Any:
    """Keys in order, and which values are null, whatever the other values are."""
    if isinstance(value, dict):
        return [(key, outline(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [outline(value[0])] if value and not isinstance(value[0], int) else "list"
    return None if value is None else "value"


def test_a_body_has_the_recorded_keys_in_the_recorded_order() -> None:
    assert outline(whole()) == outline(json.loads((WIRE / "vllm_chat.json").read_bytes()))


def test_the_streamed_text_is_the_text_of_the_body() -> None:
    events = streamed(max_tokens=40, ignore_eos=True)
    deltas = [json.loads(event.removeprefix(b"data: ")) for event in events[1:-1]]
    text = "".join(event["choices"][0]["delta"]["content"] for event in deltas)
    assert text == whole(max_tokens=40, ignore_eos=True)["choices"][0]["message"]["content"]
    assert len(text) == 160


def test_every_event_is_a_chunk_of_its_own() -> None:
    async def main() -> None:
        async with stage() as act:
            sent = await spoken(act.app, "/v1/chat/completions", {**CHAT, "stream": True})
            bodies = [message["body"] for message in sent[1:]]
            assert all(body.startswith(b"data: ") and body.count(b"\n\n") == 1 for body in bodies[:-1])
            assert len(bodies) == 1 + 4 + 1 + 1  # role, four tokens, [DONE], the end
            assert bodies[-1] == b""

    run(main())


def test_the_head_goes_out_before_the_engine_has_produced_anything() -> None:
    async def main() -> None:
        async with stage(time_scale=100.0) as act:
            exchange = await act.open("/v1/chat/completions", {**CHAT, "stream": True})
            assert exchange.status == 200
            assert act.process.engine.counters.generation_tokens == 0
            exchange.close()

    run(main())


def test_role_events_come_with_the_first_output_one_per_answer() -> None:
    async def main() -> None:
        async with stage() as act:
            reply = await act.ask(
                "/v1/chat/completions", {**CHAT, "stream": True, "n": 2, "temperature": 0.7}
            )
            events = reply.data()
            assert [event["choices"][0]["index"] for event in events[:2]] == [0, 1]
            assert all(event["choices"][0]["delta"]["role"] == "assistant" for event in events[:2])
            finishes = [event["choices"][0] for event in events if event["choices"][0]["finish_reason"]]
            assert sorted(choice["index"] for choice in finishes) == [0, 1]

    run(main())


def test_n_answers_differ_and_the_prompt_is_counted_once() -> None:
    body = whole(n=3, temperature=1.0)
    texts = {choice["message"]["content"] for choice in body["choices"]}
    assert len(texts) == 3
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == whole()["usage"]["prompt_tokens"]


def test_logprobs_have_one_entry_a_token_with_the_alternatives_asked_for() -> None:
    entries = whole(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 4
    for entry in entries:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] > entry["top_logprobs"][1]["logprob"]
        assert -3 < entry["logprob"] < 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "extra": {}},
            "required": ["city", "days"],
        },
    },
}


def test_a_required_tool_is_called_with_arguments_of_its_schema() -> None:
    choice = whole(tools=[WEATHER], tool_choice="required", max_tokens=50)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "text", "days": 1}


def test_a_named_tool_streams_its_name_first_and_its_arguments_in_pieces() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    events = streamed(tools=[WEATHER], tool_choice=choice, max_tokens=50)
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[1:-1]]
    calls = [choice["delta"]["tool_calls"][0] for choice in choices]
    assert list(calls[0]) == ["id", "type", "index", "function"]
    assert calls[0]["function"]["name"] == "weather"
    assert all(list(call) == ["index", "function"] for call in calls[1:])
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "text", "days": 1}
    assert choices[-1]["finish_reason"] == "stop"


def test_a_tool_call_that_max_tokens_cuts_ends_with_length() -> None:
    choice = whole(tools=[WEATHER], tool_choice="required", max_tokens=2)["choices"][0]
    assert choice["finish_reason"] == "length"


def test_auto_answers_with_text_and_is_refused_where_it_is_not_enabled() -> None:
    assert whole(tools=[WEATHER])["choices"][0]["message"]["content"]

    async def main() -> None:
        async with stage(enable_auto_tool_choice=False) as act:
            reply = await act.ask("/v1/chat/completions", {**CHAT, "tools": [WEATHER]})
            assert reply.status == 400
            assert reply.json()["error"]["type"] == "BadRequestError"

    run(main())


def test_a_json_schema_makes_the_answer_fit_it() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    choice = whole(response_format=form, max_tokens=50)["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"a": "x"}
    assert choice["finish_reason"] == "stop"


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it() -> None:
    text = whole(max_tokens=20, ignore_eos=True)["choices"][0]["message"]["content"]
    stop = text[21:25]
    choice = whole(max_tokens=20, ignore_eos=True, stop=[stop])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert choice["message"]["content"] == text[: text.index(stop)]


def test_min_tokens_keeps_the_answer_going() -> None:
    free = [whole(max_tokens=500, seed=seed)["usage"]["completion_tokens"] for seed in range(6)]
    assert min(free) < 300
    kept = [
        whole(max_tokens=500, min_tokens=300, seed=seed)["usage"]["completion_tokens"] for seed in range(6)
    ]
    assert all(length >= 300 for length in kept)


def test_the_length_of_an_answer_follows_the_seed_when_nothing_cuts_it() -> None:
    bodies = [whole(max_tokens=4000, seed=seed) for seed in range(4)]
    assert {body["choices"][0]["finish_reason"] for body in bodies} == {"stop"}
    assert len({body["usage"]["completion_tokens"] for body in bodies}) > 1


def test_the_request_id_of_the_client_becomes_the_answers_id() -> None:
    async def main() -> None:
        async with stage(enable_request_id_headers=True) as act:
            reply = await act.ask("/v1/chat/completions", CHAT, {"x-request-id": "abc123"})
            assert reply.json()["id"] == "chatcmpl-abc123"
            assert reply.headers["x-request-id"] == "abc123"
            body_id = await act.ask("/v1/chat/completions", {**CHAT, "request_id": "mine"})
            assert body_id.json()["id"] == "chatcmpl-mine"
            drawn = await act.ask("/v1/chat/completions", CHAT)
            assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", drawn.json()["id"])

    run(main())


def test_a_repeated_prompt_is_reported_as_cached() -> None:
    long = {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 2}

    async def main() -> None:
        async with stage() as act:
            for expected in (0, 496):
                usage = (await act.ask("/v1/chat/completions", long)).json()["usage"]
                assert usage["prompt_tokens"] == 506
                assert usage["prompt_tokens_details"]["cached_tokens"] == expected

    run(main())


def test_whole_blocks_of_a_new_prompt_are_reported_as_created() -> None:
    streamed_ask = {"stream": True, "stream_options": {"include_usage": True}}

    async def main() -> None:
        async with stage() as act:
            for salt, fields in (("a", {}), ("b", streamed_ask)):
                for cached, created in ((0, 496), (496, 0)):
                    long = {"messages": [{"role": "user", "content": "word " * 400}], "cache_salt": salt}
                    reply = await act.ask("/v1/chat/completions", {**long, "max_tokens": 2, **fields})
                    usage = (reply.data()[-1] if fields else reply.json())["usage"]
                    details = usage["prompt_tokens_details"]
                    assert (details["cached_tokens"], details["created_cache_tokens"]) == (cached, created)

    run(main())


def test_a_salt_separates_the_cache() -> None:
    long = {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 2}

    async def main() -> None:
        async with stage() as act:
            for salt, expected in (("a", 0), ("b", 0), ("a", 496)):
                reply = await act.ask("/v1/chat/completions", {**long, "cache_salt": salt})
                assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == expected

    run(main())


def test_details_can_be_switched_off() -> None:
    async def main() -> None:
        async with stage(enable_prompt_tokens_details=False) as act:
            body = (await act.ask("/v1/chat/completions", CHAT)).json()
            assert body["usage"]["prompt_tokens_details"] is None
            ask = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
            events = (await act.ask("/v1/chat/completions", ask)).data()
            assert "prompt_tokens_details" not in events[-1]["usage"]

    run(main())


def test_a_request_can_ask_for_the_engines_load_beside_its_answer() -> None:
    async def main() -> None:
        async with stage() as act:
            for form, begin in (
                ("JSON", 'JSON {"named_metrics": {"num_requests_waiting": 0.0'),
                ("TEXT", "TEXT "),
            ):
                header = {"endpoint-load-metrics-format": form}
                reply = await act.ask("/v1/chat/completions", CHAT, header)
                assert reply.headers["endpoint-load-metrics"].startswith(begin)

    run(main())


def test_stream_interval_sends_the_first_token_alone_and_then_several() -> None:
    events = streamed(max_tokens=8, ignore_eos=True, stream_interval=3, return_token_ids=True)
    counts = [
        len(json.loads(event.removeprefix(b"data: "))["choices"][0]["token_ids"]) for event in events[1:-1]
    ]
    assert counts == [1, 3, 3, 1]


def test_keep_alive_comments_fill_the_time_before_the_role_event() -> None:
    async def main() -> None:
        async with stage(sse_keep_alive_interval_s=1.0, max_num_seqs=1) as act:
            long = {**CHAT, "max_tokens": 400, "ignore_eos": True, "stream": True}
            ahead = await act.open("/v1/chat/completions", long)
            reply = await act.ask("/v1/chat/completions", {**CHAT, "stream": True})
            comments = [event for event in reply.events() if event == b": keep-alive"]
            assert len(comments) >= 3
            assert reply.events()[: len(comments)] == comments
            ahead.close()

    run(main())
