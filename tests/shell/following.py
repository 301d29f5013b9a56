"""Live engines that publish KV events, and what a router knows of them."""

from __future__ import annotations

import json
from typing import Any

from engines.mock.kv_events_config import KvEventsConfig
from engines.mock.settings import MockSettings
from router.core.prompt_key import Partition
from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.upstream.client import WireRequest
from tests.shell.live import ADMIN, Live, Scene, play

MOCK = "qwen2.5-3b"
REPLAYS = KvEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://*:5657")
TEXT = "The same long beginning of everything that anybody ever asks here. " * 8
IDS = list(range(1_000, 1_128))


def mock(events: KvEventsConfig | None = REPLAYS, **more: Any) -> MockSettings:
    return MockSettings(kv_events=events, time_scale=0.01, **more)


def follow(scene: Scene, *names: str, events: KvEventsConfig | None = REPLAYS, **options: Any) -> None:
    """Runs a scene with engines that publish, behind a pool that keeps prefixes."""
    settings = options.pop("mock", {})
    pool = {"policy": "cache_aware", **options.pop("pool", {})}
    workers = {name: mock(events, **settings) for name in names or ("a",)}
    play(scene, workers, pool=pool, **options)


async def chat(act: Live, text: str = TEXT) -> str:
    """Who answered."""
    body = {"model": MOCK, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return await _answered(act, "/v1/chat/completions", body)


async def complete(act: Live, ids: list[int], tokens: int = 4) -> str:
    return await _answered(act, "/v1/completions", {"model": MOCK, "prompt": ids, "max_tokens": tokens})


async def _answered(act: Live, path: str, body: dict[str, Any]) -> str:
    before = {name: engine.front.seen_by_path.get(path, 0) for name, engine in act.mocks.items()}
    reply = await act.ask(path, body)
    assert reply.status == 200, reply.body
    [name] = [n for n, engine in act.mocks.items() if engine.front.seen_by_path.get(path, 0) > before[n]]
    return name


async def operate(act: Live, name: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Asks an engine behind the router's back."""
    data = b"" if body is None else json.dumps(body).encode()
    request = WireRequest(b"POST", path.encode(), ((b"content-type", b"application/json"),), data)
    answer = await act.client.fetch(act.mocks[name].origin, request, total_s=5, max_bytes=100_000)
    assert answer.status == 200


def known(act: Live, name: str = "a") -> Known | None:
    return act.router.events.known(name)


async def followed(act: Live, *names: str) -> None:
    for name in names or ("a",):
        await act.until(lambda name=name: known(act, name) is Known.WHOLLY, 5)  # type: ignore[misc]


def held(act: Live, ids: list[int], name: str = "a") -> int:
    """Tokens of a prompt of ids that the router believes a worker to hold."""
    index = act.pool.chooser.prefixes.index
    return int(index.match(Partition(MOCK, "", ""), tuple(ids), len(ids)).on(name))


async def placed(act: Live, ids: list[int] = IDS, name: str = "a") -> None:
    """Until events say that a worker holds a prompt. The first of ids changes what is made of events."""
    index = act.pool.chooser.prefixes.index
    await act.until(lambda: index.trust(name, text=False) is Trust.EXACT and held(act, ids, name) > 0, 5)


async def trust(act: Live, name: str = "a") -> float | None:
    return await act.metric("pointsman_worker_prefix_trust", worker=name)


async def reason(act: Live, name: str = "a") -> str | None:
    text = (await act.ask("/metrics", origin=ADMIN)).body.decode()
    for line in text.splitlines():
        if line.startswith("pointsman_worker_prefix_inexact{") and f'worker="{name}"' in line:
            return line.partition('reason="')[2].partition('"')[0]
    return None
