"""The scenarios of `benchmarks.routing` with the whole router and four mock engines, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.routing.scenarios import SCENARIOS, Answered, Messages, Turn, body, busiest, play, stays
from engines.mock.settings import MockSettings
from router.virtual.clock import run
from tests.shell.live import CHAT, Live, live
from tests.shell.puppet import MODEL

SCRAPED_S = 3.0
"""After so long every engine has said that it is idle, and nothing is taken for the load of others."""
NAMES = ("w0", "w1", "w2", "w3")


@dataclass(frozen=True)
class Quality:
    """What `benchmarks.routing` shows of one router."""

    busiest: float
    stays: float | None
    hits: float
    turns: Sequence[Turn]


def engines() -> dict[str, MockSettings]:
    return {name: MockSettings(served_model_name=MODEL) for name in NAMES}


async def ask(act: Live, messages: Messages, tokens: int) -> Answered:
    reply = await act.ask(CHAT, body(MODEL, messages, tokens))
    assert reply.status == 200, reply.body
    worker = reply.header("x-pointsman-worker")
    assert worker is not None
    return Answered(worker, reply.json()["choices"][0]["message"]["content"])


def quality(scenario: str, requests: int, seed: int = 1, **pool: Any) -> Quality:
    """Plays one scenario."""

    async def main() -> Quality:
        async with live(engines(), pool=pool, server={"expose_routing_headers": True}, seed=seed) as act:
            turns = await play(SCENARIOS[scenario], requests, partial(ask, act), seed)
            counters = [mock.process.engine.counters for mock in act.mocks.values()]
            queries = sum(one.prefix_queries_tokens for one in counters)
            hits = sum(one.prefix_hits_tokens for one in counters) / queries
            await asyncio.sleep(SCRAPED_S)
            act.assert_zero()
            await act.aclose()
        return Quality(busiest(turns, len(NAMES)), stays(turns), hits, turns)

    return run(main())
