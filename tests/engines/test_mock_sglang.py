"""The SGLang dialect: its events, errors, names and routes."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engines.model.text import encode
from router.virtual.clock import run
from tests.engines.mock_stage import CHAT, TEXT, Reply, stage


def ask(path: str, body: object = None, headers: dict[str, str] | None = None, **settings: Any) -> Reply:
    async def main() -> Reply:
        async with stage(dialect="sglang", **settings) as act:
            return await act.ask(path, body, headers)

    return run(main())


def test_the_finish_of_a_chat_is_an_event_of_its_own() -> None:
    reply = ask("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    events = reply.data()
    assert list(events[0]) == ["id", "object", "created", "model", "choices", "usage"]
    assert events[0]["choices"][0]["delta"] == {
        "role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None,
    }  # fmt: skip
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-2])
    finish = events[-2]["choices"][0]
    assert (finish["finish_reason"], finish["matched_stop"]) == ("length", None)
    assert finish["delta"]["content"] is None
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert reply.events()[-1] == b"data: [DONE]"


def test_both_dialects_say_the_same_text() -> None:
    async def vllm() -> Reply:
        async with stage() as act:
            return await act.ask("/v1/chat/completions", CHAT)

    ours = ask("/v1/chat/completions", CHAT).json()
    assert ours["choices"][0]["message"]["content"] == run(vllm()).json()["choices"][0]["message"]["content"]
    assert list(ours["choices"][0]["message"]) == ["role", "content", "reasoning_content", "tool_calls"]


def test_a_text_completion_ends_in_its_last_event() -> None:
    events = ask("/v1/completions", {**TEXT, "stream": True}).data()
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "length"]
    assert (
        "".join(event["choices"][0]["text"] for event in events)
        == (ask("/v1/completions", TEXT).json()["choices"][0]["text"])
    )


def test_any_model_name_is_served_under_that_name() -> None:
    assert ask("/v1/chat/completions", {**CHAT, "model": "whatever"}).json()["model"] == "whatever"


def test_the_id_is_the_clients_rid_and_never_the_header() -> None:
    body = ask("/v1/chat/completions", {**CHAT, "rid": "mine"}, {"x-request-id": "other"}).json()
    assert body["id"] == "mine"


def test_errors_are_flat() -> None:
    reply = ask("/v1/chat/completions", {"messages": 5})
    assert reply.status == 400
    assert list(reply.json()) == ["object", "message", "type", "param", "code"]


def test_what_vllm_clips_is_refused() -> None:
    reply = ask("/v1/completions", {"prompt": "x" * 400, "max_tokens": 100}, max_model_len=128)
    assert reply.status == 400
    assert "exceeds" in reply.json()["message"]
    too_long = ask("/v1/completions", {"prompt": "x" * 800}, max_model_len=128)
    assert "longer than the model's context length" in too_long.json()["message"]


def test_generate_streams_the_whole_text_so_far() -> None:
    body = {"text": "the quick brown fox", "sampling_params": {"max_new_tokens": 4}, "stream": True}
    reply = ask("/generate", body)
    texts = [event["text"] for event in reply.data()]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    last = reply.data()[-1]
    assert last["text"] == ask("/v1/completions", TEXT).json()["choices"][0]["text"]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert last["output_ids"] == encode(last["text"])
    assert reply.events()[-1] == b"data: [DONE]"


def test_generate_answers_a_batch_with_a_list_and_one_with_an_object() -> None:
    params = {"max_new_tokens": 2}
    one = ask("/generate", {"input_ids": encode("abcd"), "sampling_params": params}).json()
    assert one["meta_info"]["prompt_tokens"] == 1
    many = ask("/generate", {"text": ["abcd", "efgh"], "sampling_params": params}).json()
    assert many[0]["text"] == one["text"]
    assert len(many) == 2


def test_generate_stops_at_a_string_and_says_which() -> None:
    text = ask("/v1/completions", {**TEXT, "max_tokens": 8}).json()["choices"][0]["text"]
    body = {"text": TEXT["prompt"], "sampling_params": {"max_new_tokens": 8, "stop": text[9:12]}}
    meta = ask("/generate", body).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": text[9:12]}


def test_metrics_have_sglangs_names_and_labels_and_no_creation_dates() -> None:
    async def main() -> str:
        async with stage(dialect="sglang", kv_tokens=1600, max_model_len=512) as act:
            await act.ask("/v1/completions", TEXT)
            return (await act.ask("/metrics")).body.decode()

    text = run(main())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, value in (
        ("num_running_reqs", 0),
        ("num_queue_reqs", 0),
        ("token_usage", 0.0),
        ("max_total_num_tokens", 1600),
        ("page_size", 16),
        ("num_pages", 100),
        ("context_len", 512),
    ):
        (sample,) = families[f"sglang:{name}"].samples
        assert sample.value == value, name
        assert list(sample.labels) == ["engine_type", "model_name", "moe_ep_rank", "pp_rank", "tp_rank"]
    assert families["sglang:generation_tokens"].samples[0].value == 4
    assert "_created" not in text
    assert "process_start_time_seconds" not in text


def test_throughput_is_counted_between_two_scrapes() -> None:
    async def main() -> float:
        async with stage(dialect="sglang") as act:
            await act.ask("/metrics")
            await act.ask("/v1/completions", {**TEXT, "max_tokens": 50, "ignore_eos": True})
            text = (await act.ask("/metrics")).body.decode()
            line = next(line for line in text.splitlines() if line.startswith("sglang:gen_throughput{"))
            return float(line.rsplit(" ", 1)[1])

    assert run(main()) > 10


def test_health_generates_a_token_and_ready_does_not() -> None:
    async def main() -> None:
        async with stage(dialect="sglang") as act:
            counters = act.process.engine.counters
            assert (await act.ask("/ready")).status == 200
            assert counters.generation_tokens == 0
            assert (await act.ask("/health")).status == 200
            assert counters.generation_tokens == 1

    run(main())


def test_loads_and_server_info_say_what_a_router_reads() -> None:
    async def main() -> None:
        async with stage(dialect="sglang", max_num_seqs=7, kv_tokens=1600, max_model_len=512) as act:
            (load,) = (await act.ask("/v1/loads")).json()["loads"]
            assert (load["max_running_requests"], load["max_total_num_tokens"]) == (7, 1600)
            assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
            for path in ("/server_info", "/get_server_info"):
                info = (await act.ask(path)).json()
                assert (info["max_running_requests"], info["page_size"]) == (7, 16)
            assert (await act.ask("/get_model_info")).json()["is_generation"] is True
            assert (await act.ask("/v1/models")).json()["data"][0]["owned_by"] == "sglang"

    run(main())


def test_abort_request_ends_one_stream_and_flush_waits_for_an_idle_engine() -> None:
    async def main() -> None:
        async with stage(dialect="sglang") as act:
            body = {**TEXT, "max_tokens": 500, "ignore_eos": True, "stream": True}
            one = asyncio.ensure_future(act.ask("/v1/completions", {**body, "rid": "one"}))
            two = asyncio.ensure_future(act.ask("/v1/completions", {**body, "rid": "two", "max_tokens": 20}))
            await asyncio.sleep(0.05)
            assert (await act.ask("/flush_cache", method="POST")).status == 400
            await act.ask("/abort_request", {"rid": "one"})
            assert (await one).data()[-1]["choices"][0]["finish_reason"] == "abort"
            assert (await two).data()[-1]["choices"][0]["finish_reason"] == "length"
            assert (await act.ask("/flush_cache", method="POST")).status == 200

    run(main())


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/metrics", 200), ("/server_info", 401)])
def test_the_key_guards_all_but_health_and_metrics(path: str, status: int) -> None:
    assert ask(path, api_key="secret").status == status


def test_a_tool_call_has_sglangs_null_fields() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    body = {**CHAT, "tools": [tool], "tool_choice": "required", "max_tokens": 20}
    (call,) = ask("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {}
    events = ask("/v1/chat/completions", {**body, "stream": True}).data()
    assert events[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "f"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
