"""KV events in a live router: whoever keeps prefixes hears what engines hold, and says how well it knows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.policies import build
from tests.shell.following import (
    IDS,
    chat,
    complete,
    follow,
    followed,
    held,
    known,
    operate,
    placed,
    reason,
    trust,
)
from tests.shell.live import ADMIN, Live, play

# --- who is followed -------------------------------------------------------------------------------------


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


# --- what is known ---------------------------------------------------------------------------------------


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
