"""What goes wrong between two engines, and that each sees what a real pair was recorded to show."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engines.pd_stage import (
    ASK,
    BLOCKS,
    LONG,
    Pair,
    busy,
    counted,
    play,
    right,
    text_of,
)

# --- leases ----------------------------------------------------------------------------------------------


def test_a_prefill_that_nobody_reads_is_freed_at_the_end_of_its_lease() -> None:
    async def scene(act: Pair) -> None:
        start = act.now
        await act.handle()
        took = act.now - start
        await asyncio.sleep(12.0 - took)
        assert act.prefill_blocks == BLOCKS
        await asyncio.sleep(took + 0.001)
        assert act.prefill_blocks == 0
        scraped = await act.scrape(act.prefill)
        assert scraped["nixl_num_kv_expired_reqs_total"] == 1
        assert scraped["kv_cache_usage_perc"] == 0

    play(scene, kv_lease_s=12.0)


def test_a_request_in_the_decode_queue_keeps_the_lease_alive() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        running = await busy(act)
        waiting = asyncio.ensure_future(act.decoded(handle))
        for _ in range(9):
            await asyncio.sleep(2.0)
            assert act.prefill_blocks == BLOCKS
            scraped = await act.scrape(act.decode)
            assert scraped['num_requests_kv_fetch_by_stage{stage="waiting_to_start"}'] == 1
            assert scraped['num_requests_waiting_by_reason{reason="capacity"}'] == 1
        assert text_of(await waiting) == await right(act)
        await asyncio.gather(*running)

    play(scene, kv_lease_s=12.0, time_scale=4.0, decode={"max_num_seqs": 1})


def test_a_beat_gives_two_thirds_of_a_lease_from_its_time() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        running = await busy(act)
        start = act.now
        waiting = asyncio.ensure_future(act.decoded(handle))
        await asyncio.sleep(16.9)
        end = act.prefill.process.engine.kept.next_end
        # Beats at 0 (which only shakes hands), 2, 4, … 16.
        assert end == pytest.approx(start + 16.0 + 8.0, abs=0.01)
        waiting.cancel()
        await asyncio.sleep(0.3)
        assert act.prefill_blocks == 0
        await asyncio.gather(*running)

    play(scene, kv_lease_s=12.0, time_scale=4.0, decode={"max_num_seqs": 1})


def test_without_tp_size_a_lease_is_not_prolonged() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        del handle["tp_size"]
        running = await busy(act)
        waiting = asyncio.ensure_future(act.decoded(handle))
        await asyncio.sleep(12.1)
        assert act.prefill_blocks == 0
        assert text_of(await waiting).isupper()
        await asyncio.gather(*running)

    play(scene, kv_lease_s=12.0, time_scale=4.0, decode={"max_num_seqs": 1})


# --- clients that leave, requests that are refused -------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_decode_queue_frees_the_prefill(stream: bool) -> None:
    """vLLM tells the prefill engine twice when the answer was to be whole."""

    async def scene(act: Pair) -> None:
        handle = await act.handle()
        running = await busy(act)
        waiting = asyncio.ensure_future(act.decoded(handle, {**ASK, "stream": stream}))
        await asyncio.sleep(1.0)
        assert act.prefill_blocks == BLOCKS
        waiting.cancel()
        await asyncio.sleep(0.3)
        assert act.prefill_blocks == 0
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_bytes_transferred_count"] == 0
        assert (counted(act)["expired"], counted(act)["late_releases"]) == (0, 0 if stream else 1)
        await asyncio.gather(*running)

    play(scene, time_scale=4.0, decode={"max_num_seqs": 1})


def test_a_client_that_leaves_during_the_transfer_frees_both_at_its_end() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        waiting = asyncio.ensure_future(act.decoded(handle))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.sleep(0.4)
        assert (act.prefill_blocks, act.decode_blocks) == (BLOCKS, BLOCKS)
        assert act.decode.process.in_progress == 0
        await asyncio.sleep(0.2)
        assert (act.prefill_blocks, act.decode_blocks) == (0, 0)
        assert counted(act)["late_releases"] == 1

    play(scene, kv_latency_s=1.0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_after_the_transfer_costs_nobody_anything(stream: bool) -> None:
    """But a whole answer is told to the prefill engine a second time: nothing was read late."""

    async def scene(act: Pair) -> None:
        handle = await act.handle(LONG)
        waiting = asyncio.ensure_future(act.decoded(handle, {**LONG, "stream": stream}))
        await asyncio.sleep(0.3)
        waiting.cancel()
        await asyncio.sleep(0.1)
        act.assert_zero()
        assert counted(act)["late_releases"] == (0 if stream else 1)

    play(scene)


REFUSED: list[tuple[dict[str, Any], int, str | None]] = [
    ({"max_tokens": 5000}, 400, "max_tokens"),
    ({"model": "nope"}, 404, "model"),
    ({"min_tokens": 100}, 400, None),
    ({"temperature": -1}, 400, "temperature"),
]


@pytest.mark.parametrize(("fields", "status", "param"), REFUSED)
def test_a_decode_that_is_refused_frees_the_prefill_without_a_transfer(
    fields: dict[str, Any], status: int, param: str | None
) -> None:
    async def scene(act: Pair) -> None:
        reply = await act.decoded(await act.handle(), {**ASK, **fields})
        assert (reply.status, reply.json()["error"]["param"]) == (status, param)
        await asyncio.sleep(0.5)
        assert act.prefill_blocks == 0
        assert (await act.scrape(act.decode))["nixl_bytes_transferred_count"] == 0
        assert counted(act)["expired"] == 0

    play(scene)


def test_a_decode_that_finds_the_queue_full_frees_the_prefill() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        running = await busy(act)
        assert (await act.decoded(handle)).status == 503
        await asyncio.sleep(0.5)
        assert act.prefill_blocks == 0
        await asyncio.gather(*running)

    play(scene, decode={"max_num_queued_reqs": 1})


def test_a_body_of_the_wrong_shape_tells_nobody() -> None:
    async def scene(act: Pair) -> None:
        reply = await act.decoded(await act.handle(), {**ASK, "max_tokens": "many"})
        assert reply.status == 400
        await asyncio.sleep(0.5)
        assert act.prefill_blocks == BLOCKS

    play(scene)
