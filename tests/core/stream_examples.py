"""Streams as engines write them, recorded and made, and what a scanner makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from router.core.request import Api
from router.core.stream import StreamScanner

WIRE = Path(__file__).parents[1] / "wire"
STREAMS = sorted(WIRE.glob("*.sse"))
APIS = {
    "chat": Api.CHAT,
    "completions": Api.COMPLETIONS,
    "messages": Api.MESSAGES,
    "responses": Api.RESPONSES,
}

DONE = b"data: [DONE]\n\n"


def api_of(path: Path) -> Api:
    return APIS[path.stem.split("_")[1]]


def scan(api: Api, pieces: Iterable[bytes], **options: Any) -> tuple[StreamScanner, bytes]:
    scanner = StreamScanner(api, **options)
    forwarded = b"".join([scanner.feed(piece) for piece in pieces])
    return scanner, forwarded + scanner.flush()


def by(size: int, data: bytes) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def sse(value: object, *, spaced: bool = False) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def chunk(
    text: str | None = "a",
    *,
    index: int = 0,
    finish: str | None = None,
    ids: list[int] | None = None,
    spaced: bool = False,
    **extra: object,
) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    event = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        **extra,
    }
    return sse(event, spaced=spaced)


def role(index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def usage_chunk(completion: int = 3, *, spaced: bool = False) -> bytes:
    usage = {"prompt_tokens": 7, "total_tokens": 7 + completion, "completion_tokens": completion}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    return sse(event, spaced=spaced)
