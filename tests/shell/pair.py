"""A router in front of prefill and decode workers, on a virtual network, in virtual time.

The workers are puppets that hand KV over as vLLM's NixlConnector does, as far as a router can see.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.shell.live import Live, Scene, play
from tests.shell.puppet import Ask, Serve, answering, talk

_numbers = itertools.count(1)

REFUSED = json.dumps(
    {"error": {"message": "max_tokens=9 cannot be greater than max_model_len=8.", "code": 400}}
).encode()


def handle(number: int) -> dict[str, Any]:
    """What a producer answers: opaque to the router, told apart by its number."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[number, number + 1]],
        "remote_engine_id": "prefill-0",
        "remote_request_id": f"cmpl-{number}",
        "remote_host": "p",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": 7,
    }


def prefilled(params: Any) -> bytes:
    """The whole answer of a prefill leg."""
    message = {"role": "assistant", "content": "w"}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
        "kv_transfer_params": params,
    }
    return json.dumps(answer).encode()


async def prefill(ask: Ask) -> None:
    """Answers a prefill leg as it should be, after 20 ms; a whole request as `talk` does."""
    asked = ask.json().get("kv_transfer_params")
    if asked is None:
        await talk(ask)
        return
    assert asked["do_remote_decode"] is True
    await asyncio.sleep(0.02)
    ask.answer(200, prefilled(handle(next(_numbers))))


async def decode(ask: Ask) -> None:
    """Refuses what no context is long enough for, as a release is; otherwise talks."""
    if ask.json().get("max_tokens", 0) > 1_000_000:
        ask.answer(400, REFUSED)
        return
    await talk(ask)


def of_decode(ask: Ask) -> bool:
    """Whether this is a decode leg of a client's request, and not a release."""
    return bool(ask.json().get("kv_transfer_params")) and ask.json().get("max_tokens", 0) < 1_000_000


def pools(prefills: Sequence[str], decodes: Sequence[str], **decode_pool: Any) -> dict[str, Any]:
    """Settings of two pools whose workers are named after their hosts. Everything is split."""

    def workers(names: Sequence[str]) -> list[dict[str, str]]:
        return [{"url": f"http://{name}:8000", "name": name} for name in names]

    return {
        "prefill": {"role": "prefill", "policy": "round_robin", "workers": workers(prefills)},
        "decode": {
            "role": "decode",
            "policy": "round_robin",
            "connector": "nixl",
            "pd_split_min_tokens": 0,
            "workers": workers(decodes),
            **decode_pool,
        },
    }


def play_pair(
    scene: Scene,
    prefills: Mapping[str, Serve] | None = None,
    decodes: Mapping[str, Serve] | None = None,
    *,
    decode_pool: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Runs a scene; one prefill worker `p` and one decode worker `d` unless others are given."""
    prefills = {"p": prefill} if prefills is None else prefills
    decodes = {"d": decode} if decodes is None else decodes
    made = pools(tuple(prefills), tuple(decodes), **(decode_pool or {}))
    play(scene, {**prefills, **decodes}, pools=made, **options)


def budget(act: Live) -> Any:
    """The prefill budgets of the one pair there is."""
    (topology,) = act.router.fleet.topologies
    return topology.partners.budget


__all__ = [
    "Ask",
    "answering",
    "budget",
    "decode",
    "handle",
    "of_decode",
    "play_pair",
    "pools",
    "prefill",
    "prefilled",
]
