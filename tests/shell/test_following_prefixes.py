"""The policies that follow prefixes, live: a conversation stays, and what engines report is learned."""

from __future__ import annotations

from typing import Any

import pytest

from engines.mock.settings import MockSettings
from tests.shell.live import CHAT, Live, play
from tests.shell.puppet import MODEL

RULES = "You answer for the railway of the valley, and you know every train. " * 40


def asking(*words: str, stream: bool) -> dict[str, Any]:
    """A conversation of these turns under one system prompt."""
    messages = [{"role": "system", "content": RULES}]
    messages += [{"role": "user", "content": word} for word in words]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, "stream": stream}


@pytest.mark.parametrize("policy", ["cache_aware", "preble"])
@pytest.mark.parametrize("stream", [False, True])
def test_later_turns_go_where_the_first_one_went_and_cached_tokens_are_learned(
    policy: str, stream: bool
) -> None:
    async def scene(act: Live) -> None:
        owners: set[str | None] = set()
        for turn in range(4):
            words = [f"And the train at {hour}?" for hour in range(turn + 1)]
            reply = await act.ask(CHAT, asking(*words, stream=stream))
            assert reply.status == 200
            owners.add(reply.header("x-pointsman-worker"))
            assert act.pool.chooser.prefixes.claims == 0
        (owner,) = owners
        holder = act.pool.chooser.prefixes.index.holder(owner)
        # The first prompt was expected to be new, and was; the mock told of all others how much it found.
        assert holder.beliefs.samples == 3
        assert holder.beliefs.overclaim < 0.1

    mocks = {name: MockSettings(served_model_name=MODEL) for name in "abc"}
    play(scene, mocks, pool={"policy": policy}, server={"expose_routing_headers": True})
