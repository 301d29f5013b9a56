"""KV events in a live router: whoever keeps prefixes hears what engines hold, and says how well it knows."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.mock.kv_events_config import KvEventsConfig
from engines.mock.settings import MockSettings
from engines.model.text import render_chat
from router.core.prompt_key import Partition
from router.core.request import Api
from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.policies import build
from router.upstream.client import WireRequest
from tests.shell.live import ADMIN, Live, Scene, play
from tests.tokenizer.prompts import directory

MOCK = "qwen2.5-3b"
REPLAYS = KvEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://*:5657")
LIVE_ONLY = KvEventsConfig(endpoint="tcp://*:5557")
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


# --- who is followed --------------------------------------------------------------------------------------


def test_workers_of_a_pool_that_keeps_prefixes_are_followed_where_they_say() -> None:
    async def scene(act: Live) -> None:
        await followed(act, "a", "b")
        assert {source.endpoint for source in act.wire.subscribed} == {"tcp://a:5557", "tcp://b:5557"}
        assert await act.metric("pointsman_worker_kv_events_up", worker="b") == 1

    follow(scene, "a", "b")


def test_sglang_says_where_at_another_route() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        assert act.wire.subscribed[0].replay_endpoint == "tcp://a:5657"

    follow(scene, mock={"dialect": "sglang"})


def test_what_is_written_down_is_believed_without_a_question() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        assert "/kv_event_sources" not in act.mocks["a"].front.seen_by_path

    worker = {"url": "http://a:8000", "name": "a", "kv_events_endpoint": "tcp://a:5557"}
    pool = {"workers": [{**worker, "kv_events_replay_endpoint": "tcp://a:5657"}]}
    follow(scene, pool=pool, kv_events={"follow": "configured"})


def test_each_rank_of_an_engine_is_followed_at_its_own_port() -> None:
    async def scene(act: Live) -> None:
        await followed(act, "a@0", "a@1")
        assert {source.endpoint for source in act.wire.subscribed} == {"tcp://a:5557", "tcp://a:5558"}
        await complete(act, IDS)
        await asyncio.sleep(2)
        holders = [name for name in ("a@0", "a@1") if held(act, IDS, name)]
        assert len(holders) == 1
        assert [await trust(act, name) for name in holders] == [2]

    follow(scene, mock={"dp_size": 2}, pool={"dp_size": 2})


def test_an_engine_that_hides_its_ranks_is_not_followed() -> None:
    async def scene(act: Live) -> None:
        await chat(act)
        assert (act.wire.subscribed, await reason(act)) == ([], "several_ranks")

    follow(scene, mock={"dp_size": 2})


def test_of_an_engine_that_publishes_nothing_no_stream_is_shown() -> None:
    async def scene(act: Live) -> None:
        await chat(act)
        assert (await trust(act), await reason(act)) == (1, "no_endpoint")
        assert await act.metric("pointsman_worker_kv_events_up", worker="a") is None
        assert await act.metric("pointsman_worker_kv_events_gaps_total", worker="a") is None

    follow(scene, events=None)


def test_an_address_that_hides_several_processes_is_judged_by_load_alone() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await complete(act, IDS)
        act.worker("a").shared_address = True
        await asyncio.sleep(2)
        await complete(act, IDS)
        assert (known(act), held(act, IDS), act.wire.open_lines) == (None, 0, 0)
        assert (await trust(act), await reason(act)) == (0, "shared_address")

    follow(scene)


def test_nobody_is_followed_for_a_pool_that_keeps_no_prefixes() -> None:
    async def scene(act: Live) -> None:
        await act.turns()
        assert (act.wire.subscribed, known(act)) == ([], None)

    follow(scene, pool={"policy": "round_robin"})


def test_nobody_is_followed_when_that_is_forbidden() -> None:
    async def scene(act: Live) -> None:
        await chat(act)
        assert (act.wire.subscribed, known(act)) == ([], None)
        assert (await trust(act), await reason(act)) == (1, "off")

    follow(scene, kv_events={"follow": "never"})


def test_a_change_of_policy_starts_and_stops_the_listeners() -> None:
    async def scene(act: Live) -> None:
        act.pool.use(build("cache_aware", {}, 1), "cache_aware")
        await followed(act)
        await complete(act, IDS)
        act.pool.use(build("round_robin", {}, 1), "round_robin")
        await complete(act, IDS)  # events of a pool that keeps nothing reach nobody
        await act.until(lambda: act.wire.open_lines == 0, 2)
        assert known(act) is None
        act.pool.use(build("cache_aware", {}, 1), "cache_aware")
        await followed(act)

    follow(scene, pool={"policy": "round_robin"})


def test_a_worker_that_leaves_is_followed_no_more() -> None:
    async def scene(act: Live) -> None:
        await followed(act, "a", "b")
        await act.ask("/workers/a", method="DELETE", origin=ADMIN)
        await act.turns()
        assert (known(act), act.wire.open_lines) == (None, 1)
        await operate(act, "a", "/reset_prefix_cache")
        await chat(act)

    follow(scene, "a", "b")


def test_an_engine_without_such_a_route_is_asked_once() -> None:
    async def scene(act: Live) -> None:
        await act.until(lambda: act.state("a") == "ready", 5)
        await act.turns()
        await act.until(lambda: act.now > 600, 700)
        paths = [path for path, _ in act.puppets["a"].probes]
        assert (paths.count("/kv_event_sources"), paths.count("/server_info")) == (1, 1)

    play(scene, pool={"policy": "cache_aware"})


def test_without_pyzmq_one_warning_says_what_to_install(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        act.router.events._can_listen = lambda: False
        await act.until(lambda: all(m.worker.state.value == "ready" for m in act.router.fleet), 5)
        await chat(act)
        assert (await trust(act), await reason(act)) == (1, "no_pyzmq")

    with caplog.at_level(logging.WARNING, "pointsman.kv_events"):
        follow(scene, "a", "b", ready=False)
    assert [record.getMessage() for record in caplog.records if "pyzmq" in record.getMessage()] == [
        "worker a publishes KV events, but pyzmq is missing (the extra kv-events); "
        "until then what workers hold is judged by what was sent to them"
    ]


# --- what is known ----------------------------------------------------------------------------------------


def test_text_is_confirmed_and_evicted_by_events_and_stays_approximate() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await chat(act)
        assert (await trust(act), await reason(act)) == (1, "no_tokenizer")
        assert (await act.metric("pointsman_worker_prefix_held_tokens", worker="a") or 0) > 100
        await operate(act, "a", "/reset_prefix_cache")
        await chat(act, "Next.")  # engines tell of it with their next step
        await asyncio.sleep(1)
        assert (await act.metric("pointsman_worker_prefix_held_tokens", worker="a") or 0) < 20
        assert await act.metric("pointsman_worker_kv_events_cleared_total", worker="a") == 1

    follow(scene)


def test_prompts_of_token_ids_are_known_exactly() -> None:
    async def scene(act: Live) -> None:
        await followed(act, "a", "b")
        first = await complete(act, IDS)
        await placed(act, IDS, first)
        assert [await trust(act, first), await reason(act, first)] == [2, None]
        for _ in range(5):
            assert await complete(act, IDS) == first

    follow(scene, "a", "b")


def test_a_prefix_that_the_engine_evicts_is_forgotten() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await complete(act, IDS)
        await placed(act)
        for start in range(10_000, 13_000, 128):
            await complete(act, list(range(start, start + 128)))
        await act.turns()
        assert held(act, IDS) == 0
        assert (await act.metric("pointsman_worker_kv_events_blocks_removed_total", worker="a") or 0) > 8

    follow(scene, mock={"kv_tokens": 1_024})


def test_a_new_incarnation_holds_nothing_and_is_followed_from_its_beginning() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await complete(act, IDS)
        await placed(act)
        act.mocks["a"].process.restart()
        await act.until(lambda: act.worker("a").incarnation == 1, 5)
        assert held(act, IDS) == 0
        await act.until(lambda: act.state("a") == "ready", 30)
        await complete(act, IDS)
        await act.until(lambda: held(act, IDS) == len(IDS) - 1, 5)
        assert await trust(act) == 2

    follow(scene)


# --- what is lost -----------------------------------------------------------------------------------------


def test_lost_events_are_replayed_and_trust_returns() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await complete(act, IDS)
        await placed(act)
        other = list(range(5_000, 5_128))
        act.mocks["a"].process.kv_events.drop(1)  # type: ignore[union-attr]
        await complete(act, other)
        assert held(act, other) == 127  # as it was dispatched
        await complete(act, list(range(7_000, 7_128)))
        await act.turns()
        assert await act.metric("pointsman_worker_kv_events_gaps_total", worker="a") == 1
        assert await act.metric("pointsman_worker_kv_events_filled_total", worker="a") == 1
        assert (await trust(act), held(act, other)) == (2, 127)

    follow(scene)


def test_without_a_replay_trust_falls_and_climbs_back_by_the_reported_tokens() -> None:
    async def ask_for_old_ones(act: Live) -> None:
        for _ in range(4):
            for start in range(20_000, 21_024, 128):
                await complete(act, list(range(start, start + 128)))

    async def scene(act: Live) -> None:
        await complete(act, IDS)
        await asyncio.sleep(2)
        assert (await trust(act), await reason(act)) == (1, "joined_late")
        await ask_for_old_ones(act)
        assert (await trust(act), await reason(act)) == (2, None)
        act.mocks["a"].process.kv_events.drop(1)  # type: ignore[union-attr]
        await complete(act, list(range(5_000, 5_128)))
        await complete(act, list(range(6_000, 6_128)))
        await act.turns()
        assert (await trust(act), await reason(act)) == (1, "joined_late")
        await operate(act, "a", "/reset_prefix_cache")
        await ask_for_old_ones(act)
        assert (await trust(act), await reason(act)) == (2, None)
        assert (await act.metric("pointsman_worker_prefix_error_ratio", worker="a", by="events") or 0) < 0.05

    follow(scene, events=LIVE_ONLY)


def test_events_that_cease_cost_trust_until_they_come_again() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await complete(act, IDS)
        await placed(act)
        act.mocks["a"].process.kv_events.close()  # type: ignore[union-attr]
        await act.turns()
        assert (await trust(act), await reason(act)) == (1, "silent")
        assert await act.metric("pointsman_worker_kv_events_up", worker="a") == 0
        act.mocks["a"].process.kv_events.reopen()  # type: ignore[union-attr]
        await act.turns()
        assert (await trust(act), await reason(act)) == (2, None)

    follow(scene)


def test_the_size_of_the_index_shows() -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        await chat(act)
        await complete(act, IDS)
        await placed(act)
        used = await act.metric("pointsman_prefix_index_bytes", pool="default")
        assert used == act.pool.chooser.prefixes.index.used_bytes > 0
        assert await act.metric("pointsman_prefix_index_capacity_bytes", pool="default") == 2**20
        assert await act.metric("pointsman_prefix_index_entries", pool="default", kind="text") == 1
        assert await act.metric("pointsman_prefix_index_entries", pool="default", kind="events") == 8 + 8
        assert await act.metric("pointsman_prefix_index_evictions_total", pool="default") is not None

    follow(scene, prefix_index={"max_bytes": "1 MiB"})


# --- text through a local tokenizer -----------------------------------------------------------------------


class EnginesOwn:
    """The tokenizer of the mock engine, as far as a chat is concerned."""

    def __init__(self, *_: object) -> None:
        pass

    def ids(self, api: Api, fields: Mapping[str, bytes]) -> tuple[int, ...]:
        assert api is Api.CHAT
        return tuple(render_chat(json.loads(bytes(fields["messages"]))))


def test_with_the_engines_tokenizer_text_is_known_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(act: Live) -> None:
        await followed(act, "a", "b")
        first = await chat(act)
        assert (await trust(act, first), await reason(act, first)) == (2, None)
        for _ in range(5):
            assert await chat(act) == first
        error = await act.metric("pointsman_worker_prefix_error_ratio", worker=first, by="events")
        assert error == pytest.approx(0, abs=0.01)
        await operate(act, first, "/reset_prefix_cache")
        await operate(act, first, "/v1/completions", {"model": MOCK, "prompt": [1], "max_tokens": 1})
        await asyncio.sleep(1)
        assert act.pool.chooser.prefixes.index.store.event_blocks.rows == 0
        assert await act.metric("pointsman_tokenized_prompts_total", outcome="tokenized") == 6
        assert await act.metric("pointsman_tokenize_seconds_count", pool="default") == 6

    monkeypatch.setattr("router.tokenizer.build.Tokenizer", EnginesOwn)
    follow(scene, "a", "b", pool={"tokenizer": str(directory(tmp_path))})


def test_a_tokenizer_that_is_not_the_engines_shows_and_costs_trust(tmp_path: Path) -> None:
    async def scene(act: Live) -> None:
        await followed(act)
        for _ in range(40):
            await chat(act)
        assert (await trust(act), await reason(act)) == (1, "disagrees")
        error = await act.metric("pointsman_worker_prefix_error_ratio", worker="a", by="events")
        assert (error or 0) > 0.5

    follow(scene, pool={"tokenizer": str(directory(tmp_path))})


def test_of_a_pair_the_prefill_workers_are_followed_and_chosen_by_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(act: Live) -> None:
        await followed(act, "p", "q")
        for _ in range(4):
            body = {"model": MOCK, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 4}
            assert (await act.ask("/v1/chat/completions", body)).status == 200
        asked = [act.mocks[name].front.seen_by_path.get("/v1/chat/completions", 0) for name in "pqd"]
        assert sorted(asked[:2]) == [0, 4]
        assert asked[2] == 4
        holder = "p" if asked[0] else "q"
        assert (await trust(act, holder), await trust(act, "d")) == (2, None)
        assert await act.metric("pointsman_tokenized_prompts_total", pool="prefill") == 4

    def pool(role: str, *names: str, **more: Any) -> dict[str, Any]:
        workers = [{"url": f"http://{name}:8000", "name": name} for name in names]
        return {"role": role, "model": MOCK, "workers": workers, **more}

    monkeypatch.setattr("router.tokenizer.build.Tokenizer", EnginesOwn)
    pools = {
        "prefill": pool("prefill", "p", "q", policy="cache_aware", tokenizer=str(directory(tmp_path))),
        "decode": pool("decode", "d", connector="nixl", pd_split_min_tokens=0),
    }
    workers = {"p": mock(role="prefill"), "q": mock(role="prefill"), "d": mock(role="decode")}
    play(scene, workers, pools=pools)
