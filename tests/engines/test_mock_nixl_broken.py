"""KV that is not there any more, and hand-overs broken on purpose: nobody gets a right answer by chance."""

from __future__ import annotations

import asyncio

import pytest

from engines.mock.settings import MockSettings
from router.upstream.client import Upstream
from router.upstream.settings import UpstreamSettings
from router.virtual.clock import run
from tests.engines.mock_stage import Reply, Stage
from tests.engines.pd_stage import (
    ASK,
    BLOCKS,
    CHAT,
    COMPLETIONS,
    ERROR,
    PROMPT,
    SIZE,
    WANTED,
    Pair,
    busy,
    counted,
    engine_on,
    pair,
    play,
    right,
    text_of,
)

# --- KV that is not there any more -----------------------------------------------------------------------


def test_unknown_blocks_at_a_living_engine_fail_at_once() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_block_ids": [[9001 + n for n in range(BLOCKS)]]}
        start = act.now
        reply = await act.decoded(handle)
        assert (reply.status, reply.body) == (500, ERROR)
        assert act.now - start < 0.05

    play(scene)


def test_fewer_blocks_than_the_prompt_has_kill_the_engine_core() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_block_ids": [[1, 2]]}
        assert (await act.decoded(handle)).status == 500
        assert not act.decode.process.up

    play(scene)


def test_a_decode_after_the_lease_gets_200_and_a_wrong_text() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        await asyncio.sleep(30.1)
        reply = await act.decoded(handle)
        assert reply.status == 200
        assert text_of(reply).isupper()
        assert (counted(act)["expired"], counted(act)["late_releases"]) == (1, 1)
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_bytes_transferred_count"] == 1
        assert scraped["nixl_num_failed_transfers_total"] == 0
        assert scraped["external_prefix_cache_hits_total"] == 110
        produced = await act.scrape(act.prefill)
        assert produced["nixl_num_notifications_after_expiry_total"] == 1

    play(scene)


def test_a_handle_used_twice_is_right_where_the_prefix_is_and_wrong_elsewhere() -> None:
    async def scene(act: Pair) -> None:
        peers = Upstream(act.network.connect, asyncio.get_running_loop().time, UpstreamSettings(max_idle=0))
        other = engine_on(act.network, "e", MockSettings(role="decode", **SIZE), peers)
        handle = await act.handle()
        first = await act.decoded(handle)
        again = await act.decoded(handle)
        assert text_of(again) == text_of(first) == await right(act)
        assert counted(act)["late_releases"] == 1
        elsewhere = await other.ask(COMPLETIONS, {**ASK, "kv_transfer_params": handle})
        assert (elsewhere.status, text_of(elsewhere).isupper()) == (200, True)
        assert counted(act)["late_releases"] == 2
        await other.upstream.aclose()
        other.process.close()
        await peers.aclose()

    play(scene)


def test_the_handle_of_another_prompt_gives_a_wrong_text() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        other = {**ASK, "prompt": "another prompt of about that length, no word of it the same. " * 7}
        assert text_of(await act.decoded(handle, {**other, "prompt": other["prompt"][:440]})).isupper()
        assert act.prefill_blocks == 0

    play(scene)


def test_an_unknown_request_with_known_blocks_gives_a_wrong_text() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_request_id": "cmpl-nobody-0-00000000"}
        assert text_of(await act.decoded(handle)).isupper()
        assert counted(act)["late_releases"] == 1
        assert act.prefill_blocks == BLOCKS

    play(scene)


def test_two_answers_from_one_handle_are_one_too_many() -> None:
    async def scene(act: Pair) -> None:
        reply = await act.decoded(await act.handle(), {**ASK, "n": 2, "temperature": 1})
        texts = [choice["text"] for choice in reply.json()["choices"]]
        assert [text.isupper() for text in texts] == [False, True]
        assert counted(act)["late_releases"] == 1

    play(scene)


def test_a_wrong_tool_call_is_seen_to_be_wrong() -> None:
    async def scene(act: Pair) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"const": {"a": 1, "b": "text"}}}}
        body = {
            "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20, "tools": [tool],
            "tool_choice": "required",
        }  # fmt: skip
        stale = await act.handle(body, CHAT)
        await act.decoded(stale, {**body, "max_tokens": 5000}, CHAT)
        await asyncio.sleep(0.1)

        def arguments(reply: Reply) -> str:
            call = reply.json()["choices"][0]["message"]["tool_calls"][0]
            return str(call["function"]["arguments"])

        assert arguments(await act.decoded(stale, body, CHAT)).isupper()
        assert arguments(await act.prefill.ask(CHAT, body)) == '{"a":1,"b":"text"}'

    play(scene)


# --- faults that are switched on -------------------------------------------------------------------------


def test_a_lost_handle_strands_the_blocks() -> None:
    async def scene(act: Pair) -> None:
        await act.prefill.fault("lose_handle", count=1)
        reply = await act.prefill.ask(COMPLETIONS, {**ASK, "max_tokens": 1, "kv_transfer_params": WANTED})
        assert (reply.status, reply.json()["kv_transfer_params"]) == (200, None)
        assert act.prefill_blocks == BLOCKS
        assert (await act.split()).status == 200
        await asyncio.sleep(30)
        assert counted(act)["expired"] == 1

    play(scene)


@pytest.mark.parametrize("lease_s", [None, 2.0])
def test_a_cut_lease_ends_early_and_no_heartbeat_helps(lease_s: float | None) -> None:
    async def scene(act: Pair) -> None:
        await act.prefill.fault("lease_cut", count=1, delay_s=lease_s)
        handle = await act.handle()
        running = await busy(act)
        decoding = asyncio.ensure_future(act.decoded(handle))
        await asyncio.sleep((lease_s or 0.0) + 0.1)
        assert act.prefill_blocks == 0
        assert text_of(await decoding).isupper()
        await asyncio.gather(*running)

    play(scene, kv_lease_s=12.0, time_scale=4.0, decode={"max_num_seqs": 1})


@pytest.mark.parametrize(("fields", "slower_s"), [({"factor": 5}, 4.0), ({"delay_s": 3}, 3.0)])
def test_a_slow_transfer_is_longer_by_so_much(fields: dict[str, float], slower_s: float) -> None:
    async def scene(act: Pair) -> None:
        took = []
        for prompt in (PROMPT, PROMPT[1:]):
            body = {**ASK, "prompt": prompt}
            handle = await act.handle(body)
            start = act.now
            assert (await act.decoded(handle, body)).status == 200
            took.append(act.now - start)
            await act.decode.fault("transfer_slow", count=1, **fields)
        assert took[1] - took[0] == pytest.approx(slower_s, rel=0.02)

    play(scene, kv_latency_s=1.0)


def test_a_failed_transfer_fails_after_its_time_and_leaves_the_prefill_to_its_lease() -> None:
    async def scene(act: Pair) -> None:
        await act.decode.fault("transfer_failed", count=1)
        handle = await act.handle()
        start = act.now
        reply = await act.decoded(handle)
        assert (reply.status, reply.body) == (500, ERROR)
        assert act.now - start == pytest.approx(1.0, abs=0.1)
        assert (act.prefill_blocks, act.decode_blocks) == (BLOCKS, 0)
        assert (await act.scrape(act.decode))["nixl_num_failed_transfers_total"] == 1
        assert (await act.split()).status == 200

    play(scene, kv_latency_s=1.0)


def test_faults_of_hand_overs_hit_nothing_else_and_are_cleared_with_the_others() -> None:
    async def main() -> None:
        async with pair() as act:
            await act.prefill.fault("lose_handle", count=1)
            for _ in range(3):
                await act.prefill.ask(COMPLETIONS, ASK)
            assert [fault["hits"] for fault in (await act.prefill.state())["faults"]] == [0]
            await act.prefill.ask("/mock/faults", method="DELETE")
            await act.handle()

    run(main())


def test_a_message_that_is_none_is_refused_and_an_engine_without_a_connector_has_no_side_channel() -> None:
    async def main() -> None:
        async with pair(decode={"kv_connector": "none"}) as act:
            stages: list[tuple[Stage, int]] = [(act.prefill, 400), (act.decode, 404)]
            for which, status in stages:
                assert (await which.ask("/mock/kv", {"type": "gossip"})).status == status

    run(main())
