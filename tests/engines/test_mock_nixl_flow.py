"""A request split over two mock engines: what each leg answers, and what each engine holds and counts."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from router.virtual.clock import run
from tests.engines.mock_stage import stage
from tests.engines.pd_stage import (
    ASK,
    BLOCKS,
    CHAT,
    COMPLETIONS,
    PROMPT,
    SIZE,
    WANTED,
    Pair,
    pair,
    play,
    text_of,
)

KEYS = [
    "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
    "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens",
    "remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens",
]  # fmt: skip


def test_a_prefill_answers_with_the_fourteen_keys_in_the_recorded_order() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle(headers={"x-request-id": "req-1"})
        assert list(handle) == KEYS
        assert handle["remote_block_ids"] == [[1, 2, 3, 4, 5, 6, 7]]
        assert re.fullmatch(r"cmpl-req-1-0-[0-9a-f]{8}", handle["remote_request_id"])
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{17}[0-9a-f]{4}", handle["remote_engine_id"])
        rest = {name: handle[name] for name in KEYS if name not in KEYS[2:5]}
        assert rest == {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_host": "p", "remote_port": 9000,
            "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 110,
            "remote_blocks_expiry_time": None, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0,
        }  # fmt: skip

    play(scene)


APIS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, ASK, r"cmpl-x-0-[0-9a-f]{8}"),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}, r"chatcmpl-x-[0-9a-f]{8}"),
    ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6},
     r"chatcmpl-x-[0-9a-f]{8}"),
    ("/v1/responses", {"input": PROMPT, "max_output_tokens": 6}, r"resp_x-[0-9a-f]{8}"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "name"), APIS)
def test_every_api_hands_over(path: str, body: dict[str, Any], name: str) -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle(body, path, {"x-request-id": "x"})
        assert list(handle) == KEYS
        assert re.fullmatch(name, handle["remote_request_id"])
        reply = await act.decoded(handle, body, path)
        assert reply.status == 200
        assert reply.json().get("kv_transfer_params") is None
        counted = await act.scrape(act.decode)
        assert counted['prompt_tokens_by_source_total{source="local_compute"}'] == 0
        assert act.prefill_blocks == 0

    play(scene)


def test_two_prefills_never_share_a_name() -> None:
    async def scene(act: Pair) -> None:
        names = {(await act.handle(headers={"x-request-id": "same"}))["remote_request_id"] for _ in range(3)}
        assert len(names) == 3

    play(scene)


def test_without_a_connector_nothing_is_handed_over() -> None:
    async def main() -> None:
        async with stage(**SIZE) as act:
            reply = await act.ask(COMPLETIONS, {**ASK, "max_tokens": 1, "kv_transfer_params": WANTED})
            assert reply.json()["kv_transfer_params"] is None
            assert act.process.engine.kv_usage == 0.0

    run(main())


def test_held_blocks_show_in_the_usage_while_nothing_runs() -> None:
    async def scene(act: Pair) -> None:
        await act.handle()
        counted = await act.scrape(act.prefill)
        assert counted["kv_cache_usage_perc"] == pytest.approx(BLOCKS / 100)
        assert counted["num_requests_running"] == counted["num_requests_waiting"] == 0
        assert counted["external_prefix_cache_queries_total"] == 110
        assert counted["external_prefix_cache_hits_total"] == 0
        assert counted['prompt_tokens_by_source_total{source="local_compute"}'] == 110

    play(scene)


def test_a_split_request_answers_as_an_unsplit_one_and_frees_the_prefill() -> None:
    async def scene(act: Pair) -> None:
        alone = (await act.prefill.ask(COMPLETIONS, ASK)).json()
        split = (await act.split()).json()
        assert split["choices"] == alone["choices"]
        assert act.prefill_blocks == 0

    play(scene)


def test_engines_of_either_role_serve_plain_requests_wholly() -> None:
    async def scene(act: Pair) -> None:
        texts = [text_of(await one.ask(COMPLETIONS, ASK)) for one in (act.prefill, act.decode)]
        assert texts[0] == texts[1] != ""

    play(scene)


def test_roles_do_not_matter_to_the_connector() -> None:
    async def main() -> None:
        async with pair(decode={"role": "both", "kv_connector": "nixl"}) as act:
            reply = await act.decode.ask(COMPLETIONS, {**ASK, "max_tokens": 1, "kv_transfer_params": WANTED})
            handle = reply.json()["kv_transfer_params"]
            answer = await act.prefill.ask(COMPLETIONS, {**ASK, "kv_transfer_params": handle})
            assert answer.status == 200
            assert act.decode_blocks == 0

    run(main())


def test_a_prefill_leg_that_streams_has_no_handle_and_strands_its_blocks() -> None:
    async def scene(act: Pair) -> None:
        body = {**ASK, "max_tokens": 1, "stream": True, "kv_transfer_params": WANTED}
        reply = await act.prefill.ask(COMPLETIONS, body)
        assert b"kv_transfer_params" not in reply.body
        assert act.prefill_blocks == BLOCKS
        await asyncio.sleep(29.9)
        assert act.prefill_blocks == BLOCKS
        await asyncio.sleep(0.2)
        assert act.prefill_blocks == 0
        assert (await act.scrape(act.prefill))["nixl_num_kv_expired_reqs_total"] == 1

    play(scene)


def test_of_several_answers_only_the_last_ones_handle_is_given() -> None:
    async def scene(act: Pair) -> None:
        body = {**ASK, "temperature": 1, "n": 2, "max_tokens": 1, "kv_transfer_params": WANTED}
        reply = await act.prefill.ask(COMPLETIONS, body, {"x-request-id": "N"})
        handle = reply.json()["kv_transfer_params"]
        assert re.fullmatch(r"1_cmpl-N-0-[0-9a-f]{8}", handle["remote_request_id"])
        assert len(reply.json()["choices"]) == 2
        held = act.prefill_blocks
        await act.decoded(handle)
        assert held > act.prefill_blocks > 0
        await asyncio.sleep(30)
        assert (await act.scrape(act.prefill))["nixl_num_kv_expired_reqs_total"] == 1

    play(scene)


def test_of_several_prompts_only_the_firsts_handle_is_given() -> None:
    async def scene(act: Pair) -> None:
        body = {**ASK, "prompt": [PROMPT, PROMPT[1:]], "max_tokens": 1, "kv_transfer_params": WANTED}
        reply = await act.prefill.ask(COMPLETIONS, body, {"x-request-id": "O"})
        assert re.fullmatch(r"cmpl-O-0-[0-9a-f]{8}", reply.json()["kv_transfer_params"]["remote_request_id"])
        await asyncio.sleep(30)
        assert (await act.scrape(act.prefill))["nixl_num_kv_expired_reqs_total"] == 2

    play(scene)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_tokens": 5}, "min_tokens must be less than or equal to max_tokens=1, got 5."),
        (
            {"stream_options": {"include_usage": True}},
            "Stream options can only be defined when `stream=True`.",
        ),
    ],
)
def test_what_a_proxy_must_take_off_a_prefill_leg_is_refused(fields: dict[str, Any], message: str) -> None:
    async def scene(act: Pair) -> None:
        body = {**ASK, "max_tokens": 1, "kv_transfer_params": WANTED, **fields}
        reply = await act.prefill.ask(COMPLETIONS, body)
        assert (reply.status, reply.json()["error"]["message"]) == (400, message)
        assert act.prefill_blocks == 0

    play(scene)


def test_an_answer_that_stops_at_its_first_token_is_retained_too() -> None:
    async def scene(act: Pair) -> None:
        alone = await act.prefill.ask(COMPLETIONS, {**ASK, "return_token_ids": True})
        stop = {"stop_token_ids": alone.json()["choices"][0]["token_ids"][:1]}
        reply = await act.prefill.ask(COMPLETIONS, {**prefill(ASK), **stop})
        assert reply.json()["choices"][0]["finish_reason"] == "stop"
        split = await act.decoded(reply.json()["kv_transfer_params"], {**ASK, **stop})
        assert split.json()["choices"][0]["finish_reason"] == "stop"
        assert act.prefill_blocks == 0

    play(scene)


def prefill(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "max_tokens": 1, "kv_transfer_params": WANTED}


def test_a_prefill_that_its_client_leaves_retains_nothing() -> None:
    async def scene(act: Pair) -> None:
        asking = asyncio.ensure_future(act.prefill.ask(COMPLETIONS, prefill({**ASK, "prompt": PROMPT * 4})))
        await asyncio.sleep(0.005)
        assert act.prefill_blocks > 0
        asking.cancel()
        await asyncio.sleep(0.1)
        assert act.prefill_blocks == 0
        assert act.prefill.process.connector is not None
        assert act.prefill.process.connector.state()["kept"] == 0

    play(scene)


def test_series_of_the_connector_come_first_and_only_with_it() -> None:
    async def scene(act: Pair) -> None:
        for which, consumer in ((act.prefill, False), (act.decode, True)):
            text = (await which.ask("/metrics")).body.decode()
            names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE vllm:")]
            assert [name for name in names if not name.endswith("_created")][:9] == [
                "vllm:nixl_xfer_time_seconds", "vllm:nixl_post_time_seconds", "vllm:nixl_bytes_transferred",
                "vllm:nixl_num_descriptors", "vllm:nixl_num_failed_transfers_total",
                "vllm:nixl_num_failed_notifications_total", "vllm:nixl_num_kv_expired_reqs_total",
                "vllm:nixl_num_notifications_after_expiry_total", "vllm:estimated_flops_per_gpu_total",
            ]  # fmt: skip
            assert ("vllm:num_requests_kv_fetch_by_stage" in names) == consumer
            assert 'nixl_bytes_transferred_bucket{engine="0",le="2048.0"' in text
            assert 'nixl_bytes_transferred_bucket{engine="0",le="8.589934592e+09"' in text

    play(scene)
