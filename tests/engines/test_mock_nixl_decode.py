"""What a decode engine makes of a handle, and counts, as vLLM with its NixlConnector does."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.pd_stage import ASK, BLOCKS, CHAT, PROMPT, WANTED, Pair, play


def test_what_the_decode_engine_counts_is_what_was_recorded() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        counted = await act.scrape(act.decode)
        block_bytes = act.decode.process.hardware.link.block_bytes
        expected = {
            "nixl_xfer_time_seconds_count": 1.0,
            "nixl_post_time_seconds_count": 1.0,
            "nixl_bytes_transferred_count": 1.0,
            "nixl_bytes_transferred_sum": float(BLOCKS * block_bytes),
            "nixl_num_descriptors_count": 1.0,
            "nixl_num_descriptors_sum": 36.0,
            "nixl_num_failed_transfers_total": 0.0,
            "prefix_cache_queries_total": 110.0,
            "prefix_cache_hits_total": 0.0,
            "external_prefix_cache_queries_total": 110.0,
            "external_prefix_cache_hits_total": 110.0,
            "prompt_tokens_total": 110.0,
            'prompt_tokens_by_source_total{source="external_kv_transfer"}': 110.0,
            'prompt_tokens_by_source_total{source="local_compute"}': 0.0,
            'prompt_tokens_by_source_total{source="local_cache_hit"}': 0.0,
            "prompt_tokens_cached_total": 110.0,
            'prompt_tokens_cached_by_source_total{source="p2p"}': 110.0,
            "request_prefill_kv_computed_tokens_sum": 110.0,
        }
        assert {name: counted[name] for name in expected} == expected

    play(scene)


def test_the_transfer_takes_its_bytes_over_the_bandwidth_and_its_latency() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        handle = await act.handle({**ASK, "prompt": PROMPT[1:]})
        link = act.decode.process.hardware.link
        expected = 0.5 + BLOCKS * link.block_bytes * 8 / 1e9
        start = act.now
        decoding = asyncio.ensure_future(act.decoded(handle, {**ASK, "prompt": PROMPT[1:]}))
        await asyncio.sleep(expected - 0.001)
        assert act.decode.process.engine.kv_fetch_by_stage["in_progress"] == 1
        assert act.prefill_blocks == act.decode_blocks == BLOCKS
        await decoding
        steps = act.decode.process.engine._clock.step_from_totals
        assert steps is not None
        assert act.now - start > expected
        counted = await act.scrape(act.decode)
        assert counted["nixl_xfer_time_seconds_sum"] == pytest.approx(2 * expected)

    play(scene, kv_bandwidth_gbps=1.0, kv_latency_s=0.5)


def test_only_blocks_that_are_missing_are_read() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        reply = await act.split()
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        counted = await act.scrape(act.decode)
        block_bytes = act.decode.process.hardware.link.block_bytes
        assert counted["nixl_bytes_transferred_sum"] == (BLOCKS + 1) * block_bytes
        assert counted['prompt_tokens_by_source_total{source="local_cache_hit"}'] == 96
        assert counted["external_prefix_cache_hits_total"] == 110 + 14

    play(scene)


def test_usage_gives_the_cached_tokens_of_the_prefill_engine() -> None:
    async def scene(act: Pair) -> None:
        first, second = (await act.split()).json(), (await act.split()).json()
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, second)]
        assert cached == [0, 96]

    play(scene)


def test_older_handles_have_the_decode_engine_count_all_as_cached() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        del handle["remote_prefill_cached_tokens"]
        reply = await act.decoded(handle)
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 110

    play(scene)


def test_flat_block_ids_of_older_engines_are_read_too() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        await act.decoded({**handle, "remote_block_ids": handle["remote_block_ids"][0]})
        assert act.prefill_blocks == 0

    play(scene)


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_a_handle_that_is_not_complete_is_ignored(missing: str) -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        del handle[missing]
        reply = await act.decoded(handle)
        assert reply.status == 200
        counted = await act.scrape(act.decode)
        assert counted['prompt_tokens_by_source_total{source="local_compute"}'] == 110
        assert counted["nixl_bytes_transferred_count"] == 0
        assert act.prefill_blocks == BLOCKS

    play(scene)


def test_a_fetch_without_blocks_kills_the_engine_core() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_block_ids": []}
        reply = await act.decoded(handle)
        assert (reply.status, "EngineCore encountered" in reply.json()["error"]["message"]) == (500, True)
        assert not act.decode.process.up

    play(scene)


def test_prompt_token_ids_take_the_place_of_the_prompt() -> None:
    async def scene(act: Pair) -> None:
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "return_token_ids": True}
        first = await act.prefill.ask(CHAT, {**body, "max_tokens": 1, "kv_transfer_params": WANTED})
        handle, ids = (first.json()[name] for name in ("kv_transfer_params", "prompt_token_ids"))
        other = {**body, "messages": [{"role": "user", "content": "never rendered"}]}
        reply = await act.decoded({**handle, "prompt_token_ids": ids}, other, CHAT)
        assert reply.json()["prompt_token_ids"] == ids
        alone = await act.decode.ask(CHAT, body)
        assert reply.json()["choices"] == alone.json()["choices"]

    play(scene)


@pytest.mark.parametrize("ids", [[], "text", [1, "2"], [-1], [True], [1 << 32]])
def test_prompt_token_ids_that_are_none_are_refused_and_let_the_prefill_go(ids: object) -> None:
    async def scene(act: Pair) -> None:
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}
        handle = await act.handle(body, CHAT)
        reply = await act.decoded({**handle, "prompt_token_ids": ids}, body, CHAT)
        assert reply.status == 400
        assert reply.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"
        await asyncio.sleep(0.5)
        assert act.prefill_blocks == 0

    play(scene)


@pytest.mark.parametrize("ids", [[1, 2, 3], "text", [-1]])
def test_a_completion_does_not_look_at_prompt_token_ids(ids: object) -> None:
    async def scene(act: Pair) -> None:
        reply = await act.decoded({**await act.handle(), "prompt_token_ids": ids})
        assert (reply.status, reply.json()["usage"]["prompt_tokens"]) == (200, 110)
        assert act.prefill_blocks == 0

    play(scene)


def test_a_decode_engine_has_created_none_of_what_it_fetched() -> None:
    async def scene(act: Pair) -> None:
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}
        alone = (await act.prefill.ask(CHAT, body)).json()["usage"]
        assert alone["prompt_tokens_details"]["created_cache_tokens"] == alone["prompt_tokens"] // 16 * 16
        assert act.prefill.process.engine.reset_prefix_cache()
        split = (await act.split(body, CHAT)).json()["usage"]
        assert split["prompt_tokens_details"]["created_cache_tokens"] == 0
        answer = await act.split({"input": PROMPT + "now", "max_output_tokens": 6}, "/v1/responses")
        assert answer.json()["usage"]["input_tokens_details"]["cache_write_tokens"] == 0

    play(scene)


def test_prompt_logprobs_compute_the_prompt_and_free_the_prefill_without_a_transfer() -> None:
    async def scene(act: Pair) -> None:
        body = {**ASK, "prompt_logprobs": 2}
        reply = await act.decoded(await act.handle(body), body)
        assert len(reply.json()["choices"][0]["prompt_logprobs"]) == 110
        counted = await act.scrape(act.decode)
        assert counted['prompt_tokens_by_source_total{source="local_compute"}'] == 110
        assert counted["nixl_bytes_transferred_count"] == 0
        assert act.prefill_blocks == 0
        assert (await act.scrape(act.prefill))["nixl_num_kv_expired_reqs_total"] == 0

    play(scene)
