"""KV that goes from one data-parallel rank to another, of another engine."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.pd_stage import ASK, COMPLETIONS, LONG, Pair, play, right, text_of

RANK = "x-data-parallel-rank"


def held(act: Pair) -> list[int]:
    """Blocks that each rank of the prefill engine holds."""
    return [rank.engine._scheduler.kv.used_blocks for rank in act.prefill.process.ranks]


@pytest.mark.parametrize(("source", "target"), [("0", "1"), ("1", "0"), ("1", "1")])
def test_the_rank_that_prefilled_keeps_the_kv_and_any_rank_reads_it(source: str, target: str) -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle(headers={RANK: source})
        assert handle["remote_engine_id"].endswith(f"_dp{source}")
        assert [blocks > 0 for blocks in held(act)] == [source == "0", source == "1"]
        body = {**ASK, "kv_transfer_params": handle}
        reply = await act.decode.ask(COMPLETIONS, body, {RANK: target})
        assert text_of(reply) == await right(act)
        assert held(act) == [0, 0]
        fetched = [rank.engine.counters.prompt_tokens_external for rank in act.decode.process.ranks]
        assert [tokens > 0 for tokens in fetched] == [target == "0", target == "1"]

    play(scene, dp_size=2)


def test_ranks_have_names_of_their_own_and_one_port() -> None:
    async def scene(act: Pair) -> None:
        handles = [await act.handle(headers={RANK: rank}) for rank in ("0", "1")]
        assert len({handle["remote_engine_id"] for handle in handles}) == 2
        assert len({(handle["remote_host"], handle["remote_port"]) for handle in handles}) == 1
        for handle in handles:
            await act.decode.ask(COMPLETIONS, {**ASK, "kv_transfer_params": handle})

    play(scene, dp_size=2)


def test_the_lease_of_another_rank_is_prolonged_while_the_decode_waits() -> None:
    async def scene(act: Pair) -> None:
        filling = asyncio.ensure_future(act.decode.ask(COMPLETIONS, {**LONG, "max_tokens": 300}, {RANK: "0"}))
        await asyncio.sleep(0.05)
        handle = await act.handle(headers={RANK: "1"})
        body = {**ASK, "kv_transfer_params": handle}
        began = act.now
        waiting = asyncio.ensure_future(act.decode.ask(COMPLETIONS, body, {RANK: "0"}))
        await filling
        assert act.now - began > 2.0
        assert text_of(await waiting) == await right(act)
        connectors = [rank.connector for rank in act.prefill.process.ranks]
        assert [one.state()["expired"] for one in connectors if one is not None] == [0, 0]

    # One slot, and a lease that would be over long before the slot is free.
    play(scene, dp_size=2, decode={"max_num_seqs": 1}, kv_lease_s=2.0)


def test_a_rank_that_is_gone_is_missed_like_any_engine() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle(headers={RANK: "1"})
        act.crash(act.prefill, 0.1)
        await asyncio.sleep(1.0)
        reply = await act.decode.ask(COMPLETIONS, {**ASK, "kv_transfer_params": handle})
        assert reply.status == 500

    play(scene, dp_size=2)


def test_every_rank_shows_the_series_of_its_transfers() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle(headers={RANK: "1"})
        await act.decode.ask(COMPLETIONS, {**ASK, "kv_transfer_params": handle}, {RANK: "1"})
        text = (await act.decode.ask("/metrics")).body.decode()
        counts = [line for line in text.splitlines() if line.startswith("vllm:nixl_xfer_time_seconds_count")]
        assert [line.rpartition(" ")[2] for line in counts] == ["0.0", "1.0"]
        assert ['engine="0"' in counts[0], 'engine="1"' in counts[1]] == [True, True]
        assert text.count("# TYPE vllm:nixl_xfer_time_seconds histogram") == 1

    play(scene, dp_size=2)
