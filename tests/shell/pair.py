"""A router in front of prefill and decode workers, on a virtual network, in virtual time.

The workers are puppets that hand KV over as vLLM's NixlConnector does, as far as a router can see. After
every scene no handle has been shown to a decode engine twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.shell.live import Live, Scene, play
from tests.shell.puppet import MODEL, Ask, Serve, talk

_numbers = itertools.count(1)
LEASE_S = 30.0
"""Of a producer of this kit, unless a scene says otherwise."""
STRICT: dict[str, Any] = {"fallback": "strict"}

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
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
        "kv_transfer_params": params,
    }
    return json.dumps(answer).encode()


def fresh_handle() -> dict[str, Any]:
    """One that nobody else has."""
    return handle(next(_numbers))


async def prefill(ask: Ask) -> None:
    """Answers a prefill leg as it should be, after 20 ms; a whole request as `talk` does."""
    asked = ask.json().get("kv_transfer_params")
    if asked is None:
        await talk(ask)
        return
    assert asked["do_remote_decode"] is True
    await asyncio.sleep(0.02)
    ask.answer(200, prefilled(fresh_handle()))


async def decode(ask: Ask) -> None:
    """Refuses what no context is long enough for, as a release is; otherwise talks."""
    if is_release(ask):
        ask.answer(400, REFUSED)
        return
    await talk(ask)


def refusing_releases(serve: Serve) -> Serve:
    """Serves client's requests so, and refuses releases as an engine does."""

    async def served(ask: Ask) -> None:
        await (decode(ask) if is_release(ask) else serve(ask))

    return served


def _wanted(ask: Ask) -> dict[str, Any]:
    """The body of a request; empty while it has not come whole."""
    try:
        wanted = json.loads(ask.body)
    except ValueError:
        return {}
    return wanted if isinstance(wanted, dict) else {}


def is_release(ask: Ask) -> bool:
    """Whether it only tells a producer to let go."""
    wanted = _wanted(ask)
    return "kv_transfer_params" in wanted and (wanted.get("max_tokens") or 0) > 1_000_000


def of_decode(ask: Ask) -> bool:
    """Whether this is a decode leg of a client's request, and not a release."""
    params = _wanted(ask).get("kv_transfer_params") or {}
    return bool(params.get("do_remote_prefill")) and not is_release(ask)


def of_prefill(ask: Ask) -> bool:
    """Whether this is a prefill leg."""
    params = _wanted(ask).get("kv_transfer_params") or {}
    return bool(params.get("do_remote_decode"))


def whole(ask: Ask) -> bool:
    """Whether this is a client's request that was not split."""
    return "kv_transfer_params" not in ask.json()


def shown(ask: Ask) -> str:
    """The name of the handle that a decode leg or a release carries, or of the transfer that it asks for."""
    params = ask.json()["kv_transfer_params"]
    return str(params.get("remote_request_id") or params["transfer_id"])


def asks(act: Live, *names: str) -> list[Ask]:
    """What came to these workers, or to all of them, in the order it came."""
    chosen = [act.puppets[name] for name in names] if names else list(act.puppets.values())
    return sorted((ask for puppet in chosen for ask in puppet.asks), key=lambda ask: ask.number)


def counts(act: Live, *names: str) -> list[int]:
    """How many of the clients' requests came to each of these workers; releases are none."""
    return [sum(not is_release(ask) for ask in act.puppets[name].asks) for name in names]


def assert_shown_once(act: Live) -> None:
    """No handle has come to two decode legs, nor to one after it was released."""
    legs = Counter(shown(ask) for ask in asks(act) if of_decode(ask))
    assert all(count == 1 for count in legs.values()), legs
    released = {shown(ask) for ask in asks(act) if is_release(ask)}
    assert not released & legs.keys(), released & legs.keys()


def workers(names: Sequence[str], **each: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of workers that are named after their hosts; `each`: more of single ones."""
    return [{"url": f"http://{name}:8000", "name": name, **each.get(name, {})} for name in names]


def pools(
    prefills: Sequence[str],
    decodes: Sequence[str],
    *,
    prefill_pool: Mapping[str, Any] | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    **decode_pool: Any,
) -> dict[str, Any]:
    """Settings of two pools whose workers are named after their hosts. Everything is split."""
    more = each or {}
    return {
        "prefill": {
            "role": "prefill",
            "policy": "round_robin",
            "workers": workers(prefills, **more),
            **(prefill_pool or {}),
        },
        "decode": {
            "role": "decode",
            "policy": "round_robin",
            "connector": "nixl",
            "pd_split_min_tokens": 0,
            "workers": workers(decodes, **more),
            **decode_pool,
        },
    }


def play_pair(
    scene: Scene,
    prefills: Mapping[str, Serve] | None = None,
    decodes: Mapping[str, Serve] | None = None,
    *,
    prefill_pool: Mapping[str, Any] | None = None,
    decode_pool: Mapping[str, Any] | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    strands: bool = False,
    **options: Any,
) -> None:
    """Runs a scene; one prefill worker `p` and one decode worker `d` unless others are given.

    Args:
        each: settings of single workers.
        strands: the scene leaves KV that nobody fetches, which counts until the lease ends, and no longer.
    """
    prefills = {"p": prefill} if prefills is None else prefills
    decodes = {"d": decode} if decodes is None else decodes
    made = pools(tuple(prefills), tuple(decodes), prefill_pool=prefill_pool, each=each, **(decode_pool or {}))

    async def whole_scene(act: Live) -> None:
        await scene(act)
        assert_shown_once(act)
        if strands:
            assert stranded(act) > 0
            await asyncio.sleep(LEASE_S)

    play(whole_scene, {**prefills, **decodes}, pools=made, **options)


def pool(act: Live, name: str) -> Any:
    """The pool of this role."""
    return act.router.fleet.dispatchers[name].pool


def partners(act: Live) -> Any:
    """What the two pools of the one pair there is share."""
    (topology,) = act.router.fleet.topologies
    return topology.partners


def budget(act: Live) -> Any:
    """The prefill budgets of the one pair there is."""
    return partners(act).budget


def stranded(act: Live) -> int:
    """Tokens of KV that producers hold for nobody now, as far as the router knows."""
    budget(act).sweep(act.loop.time())
    return int(budget(act).stranded())
