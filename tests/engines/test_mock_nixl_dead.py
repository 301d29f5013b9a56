"""Engines that cannot be reached, or die, while KV goes from one to the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.core.errors import RouterError
from tests.engines.mock_stage import PORT
from tests.engines.pd_stage import (
    ASK,
    BLOCKS,
    CHAT,
    COMPLETIONS,
    ERROR,
    PROMPT,
    Pair,
    counted,
    play,
    right,
    text_of,
)

EVENT = (
    b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", '
    b'"param": null, "code": 500}}'
)


# --- engines that cannot be reached ----------------------------------------------------------------------


def test_an_engine_that_was_never_seen_is_waited_for_five_seconds() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_port": PORT + 1}
        for body, expected in ((ASK, None), ({**ASK, "stream": True}, [EVENT, b"data: [DONE]"])):
            start = act.now
            reply = await act.decoded(handle, body)
            assert act.now - start == pytest.approx(5.0, abs=0.1)
            if expected is None:
                assert (reply.status, reply.body) == (500, ERROR)
            else:
                assert (reply.status, reply.events()) == (200, expected)
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_num_failed_transfers_total"] == 2
        assert scraped["nixl_num_failed_notifications_total"] == 0
        assert scraped['request_success_total{finished_reason="error"}'] == 2
        assert scraped["external_prefix_cache_hits_total"] == 220
        assert scraped['prompt_tokens_by_source_total{source="external_kv_transfer"}'] == 0
        assert act.decode_blocks == 0
        assert act.prefill_blocks == BLOCKS

    play(scene)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_a_failed_load_is_an_error_of_each_api(path: str) -> None:
    async def scene(act: Pair) -> None:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}
        if path == "/v1/responses":
            body = {"input": PROMPT, "max_output_tokens": 6}
        handle = {**await act.handle(body, path), "remote_port": PORT + 1}
        assert (await act.decoded(handle, body, path)).status == 500
        events = (await act.decoded(handle, {**body, "stream": True}, path)).events()
        if path == CHAT:
            assert events == [EVENT, b"data: [DONE]"]
        else:
            assert events[-1].startswith(b"event: error")

    play(scene)


def test_an_engine_that_answers_nothing_is_waited_for_as_long() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        act.network.hang("p", PORT)
        start = act.now
        assert (await act.decoded(handle)).status == 500
        assert act.now - start == pytest.approx(5.0, abs=0.1)

    play(scene)


def test_requests_that_wait_for_one_handshake_fail_together_and_count_it_once() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_port": PORT + 1}
        replies = await asyncio.gather(*(act.decoded(handle) for _ in range(3)))
        assert [reply.status for reply in replies] == [500] * 3
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_num_failed_transfers_total"] == 1
        assert scraped['request_success_total{finished_reason="error"}'] == 3

    play(scene)


def test_an_engine_that_comes_up_within_the_handshake_is_found() -> None:
    async def scene(act: Pair) -> None:
        handle = await act.handle()
        act.network.refuse("p", PORT)
        asyncio.get_running_loop().call_later(2.0, act.network.accept, "p", PORT)
        assert (await act.decoded(handle)).status == 200

    play(scene)


def test_a_known_engine_that_died_fails_at_once() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        handle = await act.handle({**ASK, "prompt": PROMPT[1:]})
        act.crash(act.prefill, 20)
        for body in (ASK, {**ASK, "stream": True}):
            start = act.now
            reply = await act.decoded(handle, {**body, "prompt": PROMPT[1:]})
            assert act.now - start < 0.05
            assert reply.status == (200 if "stream" in body else 500)
        assert (await act.scrape(act.decode))["nixl_num_failed_transfers_total"] == 2
        plain = await act.decode.ask(COMPLETIONS, ASK)
        assert plain.status == 200

    play(scene)


def test_a_refused_decode_that_cannot_tell_a_dead_engine_counts_a_failed_notification() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        handle = await act.handle()
        act.network.refuse("p", PORT)
        assert (await act.decoded(handle, {**ASK, "max_tokens": 5000})).status == 400
        await asyncio.sleep(0.1)
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_num_failed_notifications_total"] == 1
        assert scraped["nixl_num_failed_transfers_total"] == 1
        act.network.accept("p", PORT)

    play(scene)


def test_an_engine_that_dies_during_the_transfer_fails_it() -> None:
    async def scene(act: Pair) -> None:
        decoding = asyncio.ensure_future(act.decoded(await act.handle()))
        await asyncio.sleep(0.5)
        act.crash(act.prefill, 0.1)
        reply = await decoding
        assert (reply.status, reply.body) == (500, ERROR)
        assert act.decode_blocks == 0

    play(scene, kv_latency_s=1.0)


def test_a_restarted_engine_is_another_one_and_has_nothing_of_the_first() -> None:
    async def scene(act: Pair) -> None:
        await act.split()
        old = await act.handle()
        act.crash(act.prefill, 1)
        await asyncio.sleep(1.1)
        assert act.prefill_blocks == 0
        start = act.now
        assert (await act.decoded(old)).status == 500
        assert act.now - start < 0.05
        new = await act.handle()
        assert new["remote_engine_id"] != old["remote_engine_id"]
        assert text_of(await act.decoded(new)) == await right(act)

    play(scene)


def test_a_handle_of_an_earlier_life_fails_at_the_handshake_too() -> None:
    async def scene(act: Pair) -> None:
        old = await act.handle()
        act.crash(act.prefill, 1)
        await asyncio.sleep(1.1)
        start = act.now
        assert (await act.decoded(old)).status == 500
        assert act.now - start < 0.05

    play(scene)


def test_a_decode_engine_that_crashes_leaves_the_prefill_to_its_lease() -> None:
    async def scene(act: Pair) -> None:
        decoding = asyncio.ensure_future(act.decoded(await act.handle()))
        await asyncio.sleep(0.5)
        act.crash(act.decode, 1)
        with pytest.raises(RouterError):
            await decoding
        await asyncio.sleep(2)
        assert act.prefill_blocks == BLOCKS
        await asyncio.sleep(28)
        assert act.prefill_blocks == 0
        assert counted(act)["expired"] == 1

    play(scene, kv_latency_s=1.0)


def test_engines_of_two_models_do_not_pair() -> None:
    async def scene(act: Pair) -> None:
        start = act.now
        assert (await act.decoded(await act.handle())).status == 500
        assert act.now - start < 0.5

    play(scene, decode={"model": "llama-3-8b", "served_model_name": "qwen2.5-3b"})


def test_the_recompute_policy_computes_the_prompt_after_the_same_wait() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_port": PORT + 1}
        start = act.now
        reply = await act.decoded(handle)
        assert 5.0 < act.now - start < 5.5
        assert text_of(reply) == await right(act)
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        scraped = await act.scrape(act.decode)
        assert scraped["nixl_num_failed_transfers_total"] == 1
        assert scraped['request_success_total{finished_reason="error"}'] == 0

    play(scene, kv_load_failure_policy="recompute")


def test_one_lost_answer_ends_all_of_its_request() -> None:
    async def scene(act: Pair) -> None:
        handle = {**await act.handle(), "remote_port": PORT + 1}
        reply = await act.decoded(handle, {**ASK, "n": 3, "temperature": 1})
        assert reply.status == 500
        await asyncio.sleep(0.1)
        assert act.decode_blocks == 0
        assert act.decode.process.in_progress == 0

    play(scene)
