"""The bytes of chat.completions, against what a real vLLM 0.32 sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from router.virtual.clock import run
from tests.engines.mock_stage import CHAT, stage

WIRE = Path(__file__).parent.parent / "wire"


def shape(event: bytes) -> bytes:
    """An event with its values blotted out: keys, order, nulls, braces and spaces stay."""
    data = re.sub(rb'"(id|model|content|text|system_fingerprint)":"(?:[^"\\]|\\.)*"', rb'"\1":"*"', event)
    data = re.sub(rb'"(prompt_token_ids|token_ids)":\[[0-9,]*\]', rb'"\1":[*]', data)
    return re.sub(rb":[0-9.]+(?=[,}])", b":0", data)


def recorded(name: str) -> list[bytes]:
    body = (WIRE / name).read_bytes()
    start = body.index(b"data:")
    return [shape(event) for event in body[start:].split(b"\n\n") if event]


def streamed(**fields: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        async with stage() as act:
            reply = await act.ask("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream": True, **fields})
            return reply.events()

    return run(main())


def test_a_plain_stream_has_the_recorded_bytes() -> None:
    assert [shape(event) for event in streamed()] == recorded("vllm_chat_plain.sse")


def test_a_stream_with_usage_has_the_recorded_bytes() -> None:
    events = streamed(stream_options={"include_usage": True})
    assert [shape(event) for event in events] == recorded("vllm_chat_usage.sse")


def test_continuous_usage_and_token_ids_have_the_recorded_bytes() -> None:
    events = streamed(
        stream_options={"include_usage": True, "continuous_usage_stats": True}, return_token_ids=True
    )
    assert [shape(event) for event in events] == recorded("vllm_chat_continuous.sse")
