"""A real prefill/decode pair of which one engine dies or hangs, and a lease that runs out.

Whatever happens to it, a request ends in the right text or in an error that says so, and in the end the
engines that live hold nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.real.nixl import FREED_S, LEASE_S, Disaggregated, config, router_value
from tests.real.nixl_bodies import PROMPT
from tests.real.processes import until
from tests.real.stage import Router
from tests.real.vllm import completion
from tests.real.vllm_bodies import COMPLETIONS
from tests.real.wire import Answer, Exchange, ask

pytestmark = pytest.mark.timeout(1800)
LONG = 1500
SEEN_S = 60.0
HASTY = {"min_in_rotation": 0, "timeout_s": 3, "timeouts_to_eject": 1}
"""A frozen engine is out within five seconds, before an entry of the prompt pool is overdue."""


@pytest.fixture
def late(nixl: Disaggregated) -> Iterator[Router]:
    """One slot: what is behind a long request waits in the prompt pool."""
    with nixl.router("--config", config(nixl.directory, binding="late", slots=1)) as running:
        yield running


@pytest.fixture
def hasty(nixl: Disaggregated) -> Iterator[Router]:
    """The same, and the only engine of its kind is not kept in rotation when it does not answer."""
    file = config(nixl.directory, health=HASTY, binding="late", slots=1)
    with nixl.router("--config", file) as running:
        yield running


@pytest.fixture
def early(nixl: Disaggregated) -> Iterator[Router]:
    with nixl.router("--config", config(nixl.directory)) as running:
        yield running


@pytest.fixture(autouse=True)
def first_law(nixl: Disaggregated) -> Iterator[None]:
    yield
    nixl.until_idle(LEASE_S + 5.0)


def _body(words: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return completion(f"{words} {PROMPT}", max_tokens=tokens, ignore_eos=True, **fields)


def _alone(nixl: Disaggregated, words: str, tokens: int = 24) -> str:
    """The text of one engine alone, which then forgets the prompt."""
    answer = ask(nixl.prefill.port, "POST", COMPLETIONS, _body(words, tokens), timeout_s=120.0)
    nixl.forget_prompts()
    return str(answer.json()["choices"][0]["text"])


def _text(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json()["choices"][0]["text"])


def _streaming(router: Router, words: str) -> Exchange:
    return Exchange(router.port, "POST", COMPLETIONS, _body(words, LONG, stream=True), timeout_s=120.0)


@contextmanager
def _asked(router: Router, *words: str) -> Iterator[list[Future[Answer]]]:
    """Short requests under way, each in a thread of its own."""
    with ThreadPoolExecutor(len(words)) as threads:
        yield [
            threads.submit(ask, router.port, "POST", COMPLETIONS, _body(each, 24), timeout_s=3 * SEEN_S)
            for each in words
        ]


def _until_pooled(router: Router, nixl: Disaggregated) -> None:
    until(lambda: router_value(router, "prompt_pool_entries") == 1, SEEN_S, "one in the prompt pool")
    assert nixl.held() > 0.0


def _assert_split_again(nixl: Disaggregated, router: Router, words: str) -> None:
    """The pair works: KV is moved, and the text is right."""
    router.until_ready(nixl.engines)
    expected, before = _alone(nixl, words), nixl.moved()
    assert _text(ask(router.port, "POST", COMPLETIONS, _body(words, 24), timeout_s=120.0)) == expected
    assert nixl.moved().prompt_tokens - before.prompt_tokens == len(f"{words} {PROMPT}")
    router.assert_idle(FREED_S)


def test_a_lease_that_ran_out_in_the_prompt_pool_is_not_used(nixl: Disaggregated, late: Router) -> None:
    """An entry that is overdue goes to any decode engine, so only a router that slept can be too late."""
    expected, too_late, expired = _alone(nixl, "expiring"), nixl.read_too_late(), nixl.expired()
    with _streaming(late, "in the way") as exchange:
        exchange.until(3)
        with _asked(late, "expiring") as (coming,):
            _until_pooled(late, nixl)
            before = nixl.moved()
            late.send(signal.SIGSTOP)
            try:
                until(lambda: nixl.held() == 0.0, LEASE_S + 10.0, "the lease to have ended")
            finally:
                late.send(signal.SIGCONT)
            exchange.leave()
            answer = coming.result()
    assert _text(answer) == expected
    assert nixl.expired() == expired + 1
    assert nixl.moved().prompt_tokens - before.prompt_tokens == len(f"expiring {PROMPT}"), "one transfer"
    assert nixl.read_too_late() == too_late
    assert router_value(late, "reprefills_total", reason="handle_expired") == 1
    late.assert_idle(FREED_S)


def test_no_decode_engine_is_told_at_once(nixl: Disaggregated, hasty: Router) -> None:
    """One request is pooled when the only decode engine is found dead to the world; its KV is freed."""
    with _streaming(hasty, "in the way") as exchange:
        exchange.until(3)
        with _asked(hasty, "pooled") as (coming,):
            _until_pooled(hasty, nixl)
            nixl.decode.send_all(signal.SIGSTOP)
            try:
                answer = coming.result()
            finally:
                nixl.decode.send_all(signal.SIGCONT)
    assert answer.status == 503
    assert answer.json()["error"]["code"] == "no_worker_available"
    assert int(answer.headers["retry-after"]) >= 1
    hasty.assert_idle(FREED_S)
    nixl.until_idle(LEASE_S + 5.0)
    _assert_split_again(nixl, hasty, "awake again")


def test_a_prefill_engine_killed_costs_no_request(nixl: Disaggregated, late: Router) -> None:
    """One request is pooled, one is being prefilled; the decode engine serves both, whole."""
    expected = [_alone(nixl, words) for words in ("pooled", "prefilling")]
    incarnation = late.worker(nixl.prefill)["incarnation"]
    with _streaming(late, "in the way") as exchange:
        exchange.until(3)
        with _asked(late, "pooled") as (pooled,):
            _until_pooled(late, nixl)
            nixl.prefill.send_all(signal.SIGSTOP)
            with _asked(late, "prefilling") as (prefilling,):
                until(lambda: late.worker(nixl.prefill)["in_flight"] == 2, SEEN_S, "a prefill under way")
                nixl.kill(nixl.prefill)
                exchange.leave()
                answers = [pooled.result(), prefilling.result()]
    assert [_text(answer) for answer in answers] == expected
    assert _text(ask(late.port, "POST", COMPLETIONS, _body("pooled", 24))) == expected[0]
    assert router_value(late, "unsplit_requests_total", reason="no_prefill") >= 1
    late.assert_idle(FREED_S)
    nixl.restart("prefill")
    until(lambda: late.worker(nixl.prefill)["incarnation"] > incarnation, SEEN_S, "a new incarnation")
    _assert_split_again(nixl, late, "after the restart")


def test_a_decode_engine_killed_is_told_and_leaves_nothing(nixl: Disaggregated, early: Router) -> None:
    """One request is being decoded, the other one was just sent to be."""
    expired = nixl.expired()
    with _streaming(early, "decoding") as exchange:
        exchange.until(3)
        nixl.decode.send_all(signal.SIGSTOP)
        with _asked(early, "transferring") as (transferring,):
            until(lambda: nixl.held() > 0.0, SEEN_S, "a prefill that is held")
            until(lambda: early.worker(nixl.decode)["in_flight"] == 2, SEEN_S, "a decode that was sent")
            killed = time.monotonic()
            nixl.kill(nixl.decode)
            broken, answer = exchange.rest(), transferring.result()
            took_s = time.monotonic() - killed
    assert not broken.clean
    assert b"[DONE]" not in broken.body
    assert "error" in broken.events[-1]
    assert answer.status in (502, 503), answer.body
    assert answer.json()["error"]["message"]
    assert took_s < SEEN_S
    early.assert_idle(FREED_S)
    until(lambda: nixl.held() == 0.0, LEASE_S + 5.0, "the lease to have ended")
    assert nixl.expired() > expired
    nixl.restart("decode")
    _assert_split_again(nixl, early, "after the restart")
