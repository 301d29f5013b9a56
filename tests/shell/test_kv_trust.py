"""How far what is known of caches is relied upon in a live router: what is lost, and prompts of text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.mock.kv_events_config import KvEventsConfig
from engines.model.text import render_chat
from router.core.request import Api
from tests.shell.following import (
    IDS,
    MOCK,
    TEXT,
    chat,
    complete,
    follow,
    followed,
    held,
    mock,
    operate,
    placed,
    reason,
    trust,
)
from tests.shell.live import Live, play
from tests.tokenizer.prompts import directory

LIVE_ONLY = KvEventsConfig(endpoint="tcp://*:5557")


# --- what is lost ----------------------------------------------------------------------------------------


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


# --- text through a local tokenizer ----------------------------------------------------------------------


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
