"""What tests of faults send, and how they see a connection end."""

from __future__ import annotations

import asyncio

from router.core.errors import UpstreamBroken, UpstreamClosed
from router.upstream.exchange import Exchange
from tests.engines.mock_stage import TEXT, Stage

STREAM = {**TEXT, "max_tokens": 6, "ignore_eos": True, "stream": True}


async def broken_off(exchange: Exchange) -> bytes:
    """Read until the connection breaks, and say what came before."""
    received = b""
    try:
        while chunk := await exchange.read():
            received += chunk
    except (UpstreamClosed, UpstreamBroken):
        return received
    raise AssertionError(f"the answer ended cleanly after {received!r}")


async def silent_after(exchange: Exchange, patience_s: float) -> bytes:
    """Read until nothing comes for the patience, and say what came before."""
    received = b""
    try:
        async with asyncio.timeout(patience_s):
            while chunk := await exchange.read():
                received += chunk
    except TimeoutError:
        return received
    raise AssertionError(f"the answer ended after {received!r}")


def idle(act: Stage) -> bool:
    return act.process.engine.idle and act.process.in_progress == 0 and act.process.engine.kv_usage == 0.0
