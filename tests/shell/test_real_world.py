"""Answers of real engines, replayed byte for byte: what they were seen to send, the router must read rightly.

`make test-real` asks the engines themselves; this holds the same in every run of the suite.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import Ask, Serve, answering

WIRE = Path(__file__).parent.parent / "wire"
MLX = (WIRE / "mlx_lm_chat_usage.http").read_bytes()
MLX_HEAD, _, MLX_BODY = MLX.partition(b"\r\n\r\n")
SIGTERM = (WIRE / "vllm_messages_sigterm.sse").read_bytes()
USAGE_TOO = {**STREAM, "stream_options": {"include_usage": True}}


def replaying(data: bytes, piece_bytes: int, gap_s: float = 0.001) -> Serve:
    """Sends recorded bytes in pieces of any size, and closes."""

    async def serve(ask: Ask) -> None:
        for start in range(0, len(data), piece_bytes):
            ask.send(data[start : start + piece_bytes])
            await asyncio.sleep(gap_s)
        ask.ended = True
        ask.close()

    return serve


@pytest.mark.parametrize("piece_bytes", [7, 100, 1_000, 100_000])
def test_mlx_lm_over_http_1_0_arrives_whole(piece_bytes: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, USAGE_TOO)
        assert reply.status == 200
        assert reply.body == MLX_BODY
        assert reply.broken is None

    play(scene, {"a": replaying(MLX, piece_bytes)})


@pytest.mark.parametrize("piece_bytes", [7, 100, 1_000, 100_000])
def test_the_usage_event_of_mlx_lm_is_hidden_from_those_who_did_not_ask(piece_bytes: int) -> None:
    events = MLX_BODY.split(b"\n\n")
    rest = b"\n\n".join(event for event in events if b'"choices": []' not in event)
    assert rest != MLX_BODY

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == rest
        assert reply.broken is None

    play(scene, {"a": replaying(MLX, piece_bytes)})


def test_the_prompt_progress_of_mlx_lm_commits_nothing() -> None:
    """Its comments come while the prompt is computed; an engine that dies then is replaced unseen."""
    start = MLX_BODY.index(b"data: ")
    progress = MLX_HEAD + b"\r\n\r\n" + MLX_BODY[:start]
    assert progress.endswith(b": keepalive 38/38\n\n")
    served = iter((replaying(progress, 1_000), replaying(MLX, 1_000)))

    async def serve(ask: Ask) -> None:
        await next(served)(ask)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, USAGE_TOO)
        assert reply.body == MLX_BODY
        assert sorted(len(puppet.asks) for puppet in act.puppets.values()) == [1, 1]

    play(scene, {"a": serve, "b": serve})


def test_mlx_lm_cut_in_the_middle_is_no_whole_answer() -> None:
    """Over HTTP/1.0 a dead engine and a finished one close alike; only the stream itself tells them apart."""
    cut = MLX.index(b'"finish_reason": "length"')

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, USAGE_TOO)
        assert reply.broken is not None
        assert b"[DONE]" not in reply.body

    play(scene, {"a": replaying(MLX[:cut], 1_000)})


@pytest.mark.parametrize("piece_bytes", [7, 100_000])
def test_a_message_that_vllm_aborted_is_no_whole_one(piece_bytes: int) -> None:
    """Told to stop, vLLM ends a stream of Messages cleanly, with a stop reason of null."""

    async def serve(ask: Ask) -> None:
        ask.begin()
        for start in range(0, len(SIGTERM), piece_bytes):
            ask.event(SIGTERM[start : start + piece_bytes])
            await asyncio.sleep(0.001)
        ask.end()

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/messages", {**STREAM, "max_tokens": 100})
        assert reply.broken is not None
        assert b"message_stop" not in reply.body
        # Told in words, unless the engine had begun another event by then.
        assert b"event: error" in reply.body or not reply.body.endswith(b"\n\n")

    play(scene, {"a": serve})


def test_a_whole_message_that_vllm_aborted_is_had_elsewhere() -> None:
    whole = json.loads((WIRE / "vllm_messages.json").read_bytes())
    aborted = json.dumps({**whole, "stop_reason": None}).encode()
    good = json.dumps(whole).encode()
    served = iter((answering(200, aborted), answering(200, good)))

    async def serve(ask: Ask) -> None:
        await next(served)(ask)

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/messages", {**ASK, "max_tokens": 100})
        assert (reply.status, reply.body) == (200, good)

    play(scene, {"a": serve, "b": serve})


def test_what_mlx_lm_reports_is_what_is_counted() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        assert await act.metric("pointsman_prompt_tokens_total") == 38
        assert await act.metric("pointsman_output_tokens_total") == 5

    play(scene, {"a": replaying(MLX, 1_000)})
