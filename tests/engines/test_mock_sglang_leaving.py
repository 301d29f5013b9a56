"""Of two SGLang engines in a room one leaves, or never comes."""

from __future__ import annotations

import asyncio

import pytest

from tests.engines.push_stage import (
    ASK,
    COMPLETIONS,
    PROMPT,
    Act,
    in_room,
    play,
    room,
    text_of,
)
from tests.engines.room_stage import SGLANG, SLOW, message, split


def test_a_decode_that_leaves_fails_its_prefill() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        decode = act.asking("d", COMPLETIONS, both)
        prefill = act.asking("p", COMPLETIONS, both)
        await act.until(lambda: act.state("p")["kept"] == 1)
        decode.cancel()
        reply = await prefill
        assert reply.status == 500
        assert "Aborted by AbortReq" in message(reply)
        assert act.blocks("p") == 0

    play(scene, **SLOW)


def test_a_prefill_that_is_left_in_the_queue_fails_its_decode_at_once() -> None:
    async def scene(act: Act) -> None:
        both = in_room({**ASK, "prompt": PROMPT * 4}, room())
        prefill = act.asking("p", COMPLETIONS, both)
        decode = act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act["p"].process.engine.running == 1)
        left = act.now
        prefill.cancel()
        reply = await decode
        assert reply.status == 500
        assert "Decode transfer failed" in message(reply)
        assert act.now - left < 0.1

    play(scene, **SGLANG)


def test_a_prefill_that_is_left_during_the_transfer_fails_its_decode() -> None:
    async def scene(act: Act) -> None:
        both = in_room({**ASK, "stream": True}, room())
        prefill = act.asking("p", COMPLETIONS, both)
        decode = act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act.state("p")["kept"] == 1)
        await asyncio.sleep(0.5)
        prefill.cancel()
        reply = await decode
        assert reply.status == 200
        assert b'"error"' in reply.body

    play(scene, **SLOW)


def test_a_prefill_without_a_decode_gives_its_room_up_after_the_time_out() -> None:
    async def scene(act: Act) -> None:
        started = act.now
        reply = await act["p"].ask(COMPLETIONS, in_room(ASK, 77))
        assert reply.status == 500
        assert "Prefill bootstrap failed" in message(reply)
        assert act.now - started == pytest.approx(300.0, abs=0.1)

    play(scene, **SGLANG)


def test_a_decode_without_a_prefill_fails_after_the_time_out() -> None:
    async def scene(act: Act) -> None:
        started = act.now
        reply = await act["d"].ask(COMPLETIONS, in_room(ASK, 77))
        assert reply.status == 500
        assert act.now - started == pytest.approx(20.0, abs=0.1)

    play(scene, disaggregation_timeout_s=20.0, settled_s=30.0, **SGLANG)


def test_a_decode_gives_an_unknown_host_up_after_fifteen_tries() -> None:
    async def scene(act: Act) -> None:
        started = act.now
        reply = await act["d"].ask(COMPLETIONS, in_room(ASK, 77, "nowhere"))
        assert reply.status == 500
        assert 14.0 <= act.now - started < 30.0

    play(scene, **SGLANG)


def test_a_dead_prefill_engine_is_missed_after_two_heartbeats() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        decode = act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act.blocks("d") == 7)
        await asyncio.sleep(0.1)
        started = act.now
        act.crash("p", back_after_s=60.0)
        reply = await decode
        assert reply.status == 500
        assert "Losing connection with prefill instance" in message(reply)
        assert 5.0 < act.now - started < 12.0

    play(scene, settled_s=70.0, **SGLANG)


def test_a_decode_engine_that_dies_during_the_transfer_fails_the_prefill() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        prefill = act.asking("p", COMPLETIONS, both)
        decode = act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act.state("p")["kept"] == 1)
        act.crash("d", back_after_s=1.0)
        reply = await prefill
        assert reply.status == 500
        assert "Prefill transfer failed" in message(reply)
        await asyncio.gather(decode, return_exceptions=True)

    play(scene, **SLOW)


def test_a_failed_transfer_fails_both() -> None:
    async def scene(act: Act) -> None:
        act.fault("d", kind="transfer_failed", count=1)
        prefill, decode = await split(act)
        assert (prefill.status, decode.status) == (500, 500)
        prefill, decode = await split(act)
        assert (prefill.status, decode.status) == (200, 200)

    play(scene, **SGLANG)


def test_a_lost_room_lets_both_wait_for_their_time_out() -> None:
    async def scene(act: Act) -> None:
        act.fault("p", kind="lose_handle", count=1)
        started = act.now
        prefill, decode = await split(act)
        assert (prefill.status, decode.status) == (500, 500)
        assert act.now - started == pytest.approx(20.0, abs=1.0)

    play(scene, disaggregation_timeout_s=20.0, **SGLANG)


def test_a_slow_transfer_lasts_longer() -> None:
    async def scene(act: Act) -> None:
        act.fault("d", kind="transfer_slow", delay_s=12.0, count=1)
        started = act.now
        _, decode = await split(act)
        assert text_of(decode) == text_of(await act.alone())
        assert act.now - started > 12.0

    play(scene, **SGLANG)
