"""What the router reads of a real vLLM's metrics, and what they say while requests run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.real.processes import until
from tests.real.stage import SETTLED_S
from tests.real.vllm import BLOCK_TOKENS, KV_BLOCKS, MAX_SEQUENCES, Pair, VllmEngine, chat
from tests.real.vllm_bodies import CHAT, USAGE
from tests.real.wire import Exchange, ask

pytestmark = pytest.mark.timeout(300)
SCRAPED_S = 5.0
"""The router scrapes every second; a busy engine takes its time to answer."""


@pytest.fixture(autouse=True)
def first_law(vllm: Pair) -> Iterator[None]:
    yield
    vllm.router.assert_idle()


def test_every_signal_that_routing_needs_is_there(vllm: Pair) -> None:
    stats = vllm.engines[0].stats()
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.block_size == BLOCK_TOKENS
    assert stats.kv_capacity_tokens == (KV_BLOCKS - 1) * BLOCK_TOKENS
    assert stats.asleep is None or stats.asleep is False
    assert stats.process_start is not None
    assert 0 < time.time() - stats.process_start < 3600
    counters = (stats.prompt_tokens, stats.generation_tokens, stats.prefix_queries, stats.prefix_hits)
    assert all(counter is not None for counter in (*counters, stats.preemptions))


def test_the_router_shows_what_the_engine_says(vllm: Pair) -> None:
    for engine in vllm.engines:

        def fresh(engine: VllmEngine = engine) -> bool:
            said = vllm.router.worker(engine)["engine"]
            return said is not None and bool(said["age_s"] < SCRAPED_S)

        until(fresh, SCRAPED_S, "a fresh scrape")
        worker = vllm.router.worker(engine)
        assert worker["kv_capacity_tokens"] == (KV_BLOCKS - 1) * BLOCK_TOKENS
        assert worker["engine_version"] == "0.32.0"
        assert (worker["engine"]["running"], worker["engine"]["waiting"]) == (0, 0)


def test_running_waiting_and_usage_follow_the_load_and_return_to_zero(vllm: Pair) -> None:
    engine = vllm.engines[0]
    body = chat("count with me", max_tokens=1500, stream=True, ignore_eos=True)
    with ExitStack() as streams:
        for _ in range(MAX_SEQUENCES + 1):
            streams.enter_context(Exchange(engine.port, "POST", CHAT, body))
        until(lambda: engine.stats().running == MAX_SEQUENCES, 10.0, "a full batch")
        until(lambda: engine.stats().waiting == 1, 10.0, "one in the queue")
        until(lambda: (engine.stats().kv_usage or 0.0) > 0.0, 10.0, "blocks in use")

        def seen() -> bool:
            said = vllm.router.worker(engine)["engine"]
            return bool((said["running"], said["waiting"]) == (MAX_SEQUENCES, 1) and said["kv_usage"] > 0)

        until(seen, SCRAPED_S, "the router to see it")
    until(lambda: engine.stats().running == 0, SETTLED_S, "an empty batch")
    assert engine.stats().kv_usage == 0.0
    until(lambda: vllm.router.worker(engine)["engine"]["running"] == 0, SCRAPED_S, "the router to see it")


def test_the_routers_account_follows_the_engine_within_a_stream(vllm: Pair) -> None:
    body = chat("watch the account", max_tokens=400, **USAGE)
    with Exchange(vllm.router.port, "POST", CHAT, body) as exchange:
        exchange.until(20)
        engine = vllm.named(exchange.response.getheader("x-pointsman-worker"))
        worker = vllm.router.worker(engine)
        assert worker["in_flight"] == 1
        assert 20 < worker["kv_tokens"] < 1000
        exchange.rest()


def test_a_cached_prefix_shows_in_usage_and_in_the_counters(vllm: Pair) -> None:
    body = chat("said twice " * 20, max_tokens=2)
    for _ in vllm.engines:
        ask(vllm.router.port, "POST", CHAT, body)
    hits = [engine.stats().prefix_hits or 0.0 for engine in vllm.engines]
    answer = ask(vllm.router.port, "POST", CHAT, body)
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert cached % BLOCK_TOKENS == 0
    gained = sum(engine.stats().prefix_hits or 0.0 for engine in vllm.engines) - sum(hits)
    assert gained == cached


def test_work_moves_the_counters_that_tell_life_from_death(vllm: Pair) -> None:
    lives = [vllm.router.worker(engine)["incarnation"] for engine in vllm.engines]
    before = [engine.stats() for engine in vllm.engines]
    ask(vllm.router.port, "POST", CHAT, chat(max_tokens=10))
    after = [engine.stats() for engine in vllm.engines]
    moved = sum(
        (b.generation_tokens or 0.0) - (a.generation_tokens or 0.0)
        for a, b in zip(before, after, strict=True)
    )
    assert moved == 10
    assert [one.process_start for one in before] == [one.process_start for one in after]
    assert [vllm.router.worker(engine)["incarnation"] for engine in vllm.engines] == lives
