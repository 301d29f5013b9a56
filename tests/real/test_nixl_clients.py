"""Clients of a real prefill/decode pair that leave, in each phase: the engines themselves tell what is held.

Late binding with one slot keeps a prefilled request in the router as long as another one decodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.real.nixl import (
    DECODE_SEQUENCES,
    FREED_S,
    LEASE_S,
    Disaggregated,
    config,
    router_value,
)
from tests.real.nixl_bodies import PROMPT
from tests.real.processes import until
from tests.real.stage import Router
from tests.real.vllm import MAX_SEQUENCES, VllmEngine, completion
from tests.real.vllm_bodies import COMPLETIONS
from tests.real.wire import Exchange

pytestmark = pytest.mark.timeout(900)
LONG = 1800
SEEN_S = 30.0
"""A busy machine takes its time; nothing here is measured by it."""


@pytest.fixture(scope="module")
def early(nixl: Disaggregated) -> Iterator[Router]:
    with nixl.router("--config", config(nixl.directory)) as running:
        yield running


@pytest.fixture(scope="module")
def late(nixl: Disaggregated) -> Iterator[Router]:
    with nixl.router("--config", config(nixl.directory, binding="late", slots=1)) as running:
        yield running


@pytest.fixture(autouse=True)
def first_law(nixl: Disaggregated) -> Iterator[None]:
    """Nothing is left: not running, not held, and nothing that the prefill engine had to give up."""
    nixl.forget_prompts()
    before = nixl.expired()
    yield
    nixl.until_idle()
    assert nixl.expired() == before


def _ask(port: int, words: str, tokens: int = LONG, **fields: Any) -> Exchange:
    body = completion(f"{words} {PROMPT}", max_tokens=tokens, ignore_eos=True, **{"stream": True, **fields})
    return Exchange(port, "POST", COMPLETIONS, body, timeout_s=120.0)


@contextmanager
def _full(engine: VllmEngine, sequences: int, queued: int = 0) -> Iterator[None]:
    """Fills the batch of an engine, and if asked to its queue, past the router."""
    with ExitStack() as streams:
        for number in range(sequences + queued):
            streams.enter_context(_ask(engine.port, f"direct {number}"))
        until(lambda: engine.stats().running == sequences, SEEN_S, "a full batch")
        until(lambda: engine.stats().waiting == queued, SEEN_S, "a queue")
        yield
    until(lambda: engine.stats().running == 0, FREED_S, "an empty batch")


@contextmanager
def _decoding(router: Router, nixl: Disaggregated) -> Iterator[Exchange]:
    """A long split stream, past its first events. It takes the one slot there is."""
    with _ask(router.port, "decoding") as exchange:
        exchange.until(3)
        until(lambda: nixl.held() == 0.0, FREED_S, "the prefill engine to have let go")
        yield exchange


@contextmanager
def _pooled(router: Router, nixl: Disaggregated, count: int = 1) -> Iterator[ExitStack]:
    """So many prefilled requests that wait in the router, behind one that decodes. Closing the stack: they
    leave."""
    with _decoding(router, nixl), ExitStack() as pooled:
        for number in range(count):
            pooled.enter_context(_ask(router.port, f"pooled {number}"))
        entries = "prompt_pool_entries"
        until(lambda: router_value(router, entries) == count, SEEN_S, f"{count} in the pool")
        assert nixl.held() > 0.0
        yield pooled


@pytest.mark.parametrize("streamed", [True, False])
def test_one_that_leaves_while_the_prefill_engine_queues_it(
    nixl: Disaggregated, early: Router, streamed: bool
) -> None:
    with _full(nixl.prefill, MAX_SEQUENCES):
        with _ask(early.port, "queued", stream=streamed):
            until(lambda: nixl.prefill.stats().waiting == 1, SEEN_S, "a prefill that waits")
            before = nixl.moved()
        # An engine that has room before it hears of the client prefills for nobody: only the lease ends that.
        until(lambda: nixl.prefill.stats().waiting == 0, FREED_S, "the engine to have dropped it")
    early.assert_idle(FREED_S)
    nixl.until_idle()
    assert nixl.moved() == before


def test_one_that_leaves_while_the_router_queues_it(nixl: Disaggregated) -> None:
    budget = {"prefill_budget_high": 0.01, "prefill_budget_low": 0.005}
    narrow = config(nixl.directory, budget, binding="late", slots=1)
    with nixl.router("--config", narrow) as router:
        with _pooled(router, nixl):
            with _ask(router.port, "queued"):
                until(lambda: router_value(router, "queue_depth") == 1, SEEN_S, "one in the queue")
                assert router_value(router, "worker_saturated") == 1
            until(lambda: router_value(router, "queue_depth") == 0, FREED_S, "an empty queue")
        until(lambda: nixl.held() == 0.0, FREED_S, "freed KV of the one in the pool")
        router.assert_idle(FREED_S)


def test_one_that_leaves_the_prompt_pool_is_released_without_a_transfer(
    nixl: Disaggregated, late: Router
) -> None:
    released = router_value(late, "handover_releases_total", outcome="released")
    with _pooled(late, nixl) as pooled:
        before = nixl.moved()
        pooled.close()
        until(lambda: nixl.held() == 0.0, FREED_S, f"freed KV: {nixl.held()} is held")
        assert nixl.moved() == before
        assert router_value(late, "worker_stranded_tokens") == 0
    assert router_value(late, "handover_releases_total", outcome="released") == released + 1
    late.assert_idle(FREED_S)


def test_a_crowd_that_leaves_the_prompt_pool_is_released(nixl: Disaggregated, late: Router) -> None:
    crowd = 6
    released = router_value(late, "handover_releases_total", outcome="released")
    with _pooled(late, nixl, crowd) as pooled:
        before = nixl.moved()
        pooled.close()
        until(lambda: nixl.held() == 0.0, FREED_S, f"freed KV: {nixl.held()} is held")
        assert nixl.moved() == before
    assert router_value(late, "handover_releases_total", outcome="released") == released + crowd
    late.assert_idle(FREED_S)


@pytest.mark.parametrize("streamed", [True, False])
def test_one_that_leaves_before_its_first_token(nixl: Disaggregated, early: Router, streamed: bool) -> None:
    """The decode engine has queued it, and tells the producer; of a whole answer it does so twice."""
    too_late = nixl.read_too_late()
    with _full(nixl.decode, DECODE_SEQUENCES):
        with _ask(early.port, "transferring", stream=streamed):
            until(lambda: nixl.decode.stats().waiting == 1, SEEN_S, "a decode that waits")
            assert nixl.held() > 0.0
            before = nixl.moved()
        until(lambda: nixl.held() == 0.0, FREED_S, f"freed KV: {nixl.held()} is held")
        early.assert_idle(FREED_S)
        assert nixl.moved() == before
    assert nixl.read_too_late() - too_late in ((0,) if streamed else (0, 1))


@pytest.mark.parametrize("streamed", [True, False])
def test_one_that_leaves_while_it_is_decoded(nixl: Disaggregated, early: Router, streamed: bool) -> None:
    before = nixl.moved()
    with _ask(early.port, "decoding", stream=streamed) as exchange:
        if streamed:
            exchange.until(3)
        until(lambda: nixl.decode.stats().running == 1, SEEN_S, "a decode")
        until(lambda: nixl.moved().prompt_tokens > before.prompt_tokens, SEEN_S, "a transfer")
    nixl.until_idle()
    early.assert_idle(FREED_S)


def test_one_that_the_decode_engine_queues_beyond_the_lease_is_answered(
    nixl: Disaggregated, early: Router
) -> None:
    """Heartbeats of the decode engine keep the producer's KV, so nothing is prefilled again."""
    again, before = router_value(early, "reprefills_total"), nixl.moved()
    with ExitStack() as streams:
        with _full(nixl.decode, DECODE_SEQUENCES, queued=3):
            exchange = streams.enter_context(_ask(early.port, "waiting", 4))
            until(lambda: nixl.decode.stats().waiting == 4, SEEN_S, "a decode that waits")
            time.sleep(LEASE_S + 1.0)
            assert nixl.decode.stats().waiting, "the decode engine had room too early"
            assert nixl.held() > 0.0
        answer = exchange.rest()
    assert answer.clean
    assert answer.events[-1] == "[DONE]"
    assert (nixl.moved() - before).prompt_tokens == len(f"waiting {PROMPT}")  # a token a byte
    assert router_value(early, "reprefills_total") == again
    early.assert_idle(FREED_S)
