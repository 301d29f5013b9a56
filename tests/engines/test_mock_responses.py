"""The Responses API, against what a real vLLM 0.32 sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engines.mock.responses import STORED_RESPONSES, ResponseStore
from router.virtual.clock import run
from tests.engines.mock_stage import Reply, stage

WIRE = Path(__file__).parent.parent / "wire"
ASK = {"input": "the quick", "max_output_tokens": 2, "temperature": 0.0}


def ask(**fields: Any) -> Reply:
    async def main() -> Reply:
        async with stage() as act:
            return await act.ask("/v1/responses", {**ASK, **fields})

    return run(main())


def shape(event: bytes) -> bytes:
    data = re.sub(rb'"(id|item_id|model|text|delta)":"(?:[^"\\]|\\.)+"', rb'"\1":"*"', event)
    return re.sub(rb'"(created_at|input_tokens|total_tokens)":[0-9]+', rb'"\1":0', data)


def test_a_stream_has_the_recorded_bytes() -> None:
    recorded = (WIRE / "vllm_responses.sse").read_bytes()
    theirs = [shape(event) for event in recorded[recorded.index(b"event:") :].split(b"\n\n") if event.strip()]
    assert [shape(event) for event in ask(stream=True).events()] == theirs


def test_a_body_has_the_recorded_bytes() -> None:
    assert shape(ask().body) == shape((WIRE / "vllm_responses.json").read_bytes().strip())


def test_the_first_events_do_not_wait_for_the_engine() -> None:
    async def main() -> None:
        async with stage(time_scale=1000.0) as act:
            exchange = await act.open("/v1/responses", {**ASK, "stream": True})
            first = await exchange.read()
            assert first.startswith(b"event: response.created\n")
            assert act.process.engine.counters.generation_tokens == 0
            exchange.close()

    run(main())


def test_an_answer_can_be_asked_for_again_and_continued() -> None:
    async def main() -> None:
        async with stage() as act:
            first = (await act.ask("/v1/responses", ASK)).json()
            again = await act.ask(f"/v1/responses/{first['id']}")
            assert again.json() == first
            turn = {"input": "and?", "max_output_tokens": 2, "previous_response_id": first["id"]}
            second = (await act.ask("/v1/responses", turn)).json()
            assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
            assert second["previous_response_id"] == first["id"]

    run(main())


def test_an_answer_that_was_not_stored_is_not_found() -> None:
    async def main() -> None:
        async with stage() as act:
            body = (await act.ask("/v1/responses", {**ASK, "store": False})).json()
            missing = await act.ask(f"/v1/responses/{body['id']}")
            assert (missing.status, missing.json()["error"]["type"]) == (404, "NotFoundError")
            turn = {**ASK, "previous_response_id": "resp_gone"}
            assert (await act.ask("/v1/responses", turn)).status == 404

    run(main())


def test_stored_answers_die_with_the_process() -> None:
    async def main() -> None:
        async with stage() as act:
            body = (await act.ask("/v1/responses", ASK)).json()
            act.process.restart()
            assert (await act.ask(f"/v1/responses/{body['id']}")).status == 404

    run(main())


def test_the_store_forgets_the_oldest() -> None:
    store = ResponseStore()
    for index in range(STORED_RESPONSES + 1):
        store.keep(f"resp_{index}", b"{}", [])
    assert repr(store) == f"<ResponseStore {STORED_RESPONSES} of at most {STORED_RESPONSES}>"
    assert store.body("resp_1") == b"{}"


def test_a_function_call_streams_its_arguments() -> None:
    tool = {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    events = ask(tools=[tool], tool_choice="required", max_output_tokens=50, stream=True).data()
    kinds = [event["type"] for event in events]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
    assert json.loads(deltas) == {"city": "text"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["arguments"] == deltas


def test_items_and_instructions_make_a_longer_prompt() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    ]
    body = ask(input=items, instructions="be brief").json()
    assert body["instructions"] == "be brief"
    assert body["usage"]["input_tokens"] > ask().json()["usage"]["input_tokens"]
