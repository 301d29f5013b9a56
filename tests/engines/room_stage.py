"""Two SGLang engines that meet in bootstrap rooms."""

from __future__ import annotations

import json
from typing import Any

from tests.engines.mock_stage import Reply
from tests.engines.push_stage import (
    ASK,
    COMPLETIONS,
    Act,
    in_room,
    room,
)

SGLANG: dict[str, Any] = {"dialect": "sglang"}
SLOW: dict[str, Any] = {"dialect": "sglang", "kv_latency_s": 2.0}
"""Engines with a transfer long enough to break in the middle."""


async def split(
    act: Act, body: Any = ASK, path: str = COMPLETIONS, *, number: Any = None
) -> tuple[Reply, Reply]:
    """What prefill and decode answer to one request."""
    both = in_room(body, room() if number is None else number)
    prefill, decode = act.asking("p", path, both), act.asking("d", path, both)
    return await prefill, await decode


def message(reply: Reply) -> str:
    return str(json.loads(reply.body)["message"])
