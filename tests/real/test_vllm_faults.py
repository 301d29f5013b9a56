"""vLLM behind the router when clients leave, queues are full, and engines die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.real.processes import until
from tests.real.stage import SETTLED_S
from tests.real.vllm import MAX_SEQUENCES, MAX_UNFINISHED, START_S, Pair, VllmEngine, chat, start
from tests.real.vllm_bodies import CHAT, MESSAGES
from tests.real.wire import Exchange, ask

pytestmark = pytest.mark.timeout(900)
LONG = 1500
IDLE_LOST_WORKER_S = 10.0
"""The router's default: a silent stream of a worker that refuses connections ends after it."""


@pytest.fixture(autouse=True)
def first_law(vllm: Pair) -> Iterator[None]:
    yield
    vllm.router.assert_idle()
    assert [engine.stats().running for engine in vllm.engines] == [0, 0]


def _long(**fields: Any) -> dict[str, Any]:
    return chat("go on and on", max_tokens=LONG, ignore_eos=True, **fields)


def _running(vllm: Pair) -> int:
    return sum(engine.stats().running or 0 for engine in vllm.engines)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_the_engine(vllm: Pair, streamed: bool) -> None:
    with Exchange(vllm.router.port, "POST", CHAT, _long(stream=streamed)) as exchange:
        if streamed:
            exchange.until(3)
        until(lambda: _running(vllm) == 1, 10.0, "the request at an engine")
    left = time.monotonic()
    until(lambda: _running(vllm) == 0, SETTLED_S, "no request at any engine")
    vllm.router.assert_idle()
    assert time.monotonic() - left < LONG * 0.005, "it ended by itself"


def test_clients_that_leave_together_leave_nothing(vllm: Pair) -> None:
    with ExitStack() as streams:
        for _ in range(2 * MAX_SEQUENCES):
            streams.enter_context(Exchange(vllm.router.port, "POST", CHAT, _long(stream=True)))
        until(lambda: _running(vllm) == 2 * MAX_SEQUENCES, 10.0, "two full batches")
    until(lambda: _running(vllm) == 0, SETTLED_S, "empty batches")


@contextmanager
def _full(engine: VllmEngine) -> Iterator[None]:
    """Fills the batch and the queue of an engine, past the router."""
    with ExitStack() as streams:
        for _ in range(MAX_UNFINISHED):
            streams.enter_context(Exchange(engine.port, "POST", CHAT, _long(stream=True)))
        waiting = MAX_UNFINISHED - MAX_SEQUENCES
        until(lambda: engine.stats().waiting == waiting, 10.0, "a full queue")
        yield
    until(lambda: engine.stats().running == 0, SETTLED_S, "an empty batch")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_full_engine_costs_a_try_and_not_the_request(vllm: Pair, streamed: bool) -> None:
    full = vllm.engines[0]
    with _full(full):
        refused = ask(full.port, "POST", CHAT, chat(stream=streamed))
        assert refused.status == 503
        answers = [ask(vllm.router.port, "POST", CHAT, chat(stream=streamed)) for _ in range(4)]
    other = vllm.router.worker(vllm.engines[1])["name"]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.headers["x-pointsman-worker"] for answer in answers} == {other}
    assert vllm.router.worker(full)["state"] == "ready", "busy is not broken"


def test_full_engines_everywhere_are_told_in_the_engines_words(vllm: Pair) -> None:
    with _full(vllm.engines[0]), _full(vllm.engines[1]):
        answer = ask(vllm.router.port, "POST", CHAT, chat())
    assert answer.status == 503
    assert "currently busy" in answer.json()["error"]["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_control_fields_do_not_hurt_an_engine(vllm: Pair) -> None:
    for _ in vllm.engines:
        body = chat(kv_transfer_params={"do_remote_prefill": True})
        assert ask(vllm.router.port, "POST", CHAT, body).status == 200
    assert not any(engine.ended for engine in vllm.engines)


def test_a_core_killed_in_a_stream_is_an_error_and_no_proper_end(vllm: Pair) -> None:
    with Exchange(vllm.router.port, "POST", CHAT, _long(stream=True)) as exchange:
        exchange.until(3)
        victim = vllm.named(exchange.response.getheader("x-pointsman-worker"))
        incarnation = vllm.router.worker(victim)["incarnation"]
        os.kill(victim.core(), signal.SIGKILL)
        answer = exchange.rest()
    _assert_broken(answer)
    _until_out(vllm, victim)
    _assert_served_by_the_other(vllm, victim)
    vllm.router.assert_idle()
    again = _restart(vllm, victim)
    _assert_new_life(vllm, again, incarnation)
    names = {ask(vllm.router.port, "POST", CHAT, chat()).headers["x-pointsman-worker"] for _ in range(4)}
    assert vllm.router.worker(again)["name"] in names


def test_a_core_killed_under_a_whole_answer_costs_a_try(vllm: Pair) -> None:
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(ask, vllm.router.port, "POST", CHAT, _long())
        victim = until(lambda: _serving(vllm), 10.0, "an engine at work")
        time.sleep(0.2)
        os.kill(victim.core(), signal.SIGKILL)
        answer = coming.result(120)
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == LONG
    assert answer.headers["x-pointsman-worker"] == vllm.router.worker(vllm.other(victim))["name"]
    _until_out(vllm, victim)
    _restart(vllm, victim)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_engine_told_to_stop_ends_no_stream_well(vllm: Pair, path: str) -> None:
    with Exchange(vllm.router.port, "POST", path, _long(stream=True), timeout_s=60.0) as exchange:
        exchange.until(3)
        victim = vllm.named(exchange.response.getheader("x-pointsman-worker"))
        incarnation = vllm.router.worker(victim)["incarnation"]
        victim.send(signal.SIGTERM)
        told = time.monotonic()
        answer = exchange.rest()
        took_s = time.monotonic() - told
    _assert_broken(answer)
    assert took_s < IDLE_LOST_WORKER_S + 8.0  # the probe that finds the port closed comes within the rest
    _until_out(vllm, victim)
    _assert_served_by_the_other(vllm, victim)
    _assert_new_life(vllm, _restart(vllm, victim), incarnation)


def _assert_broken(answer: Any) -> None:
    """The client was told, and cannot take what it got for a whole answer."""
    assert answer.status == 200
    assert not answer.clean
    assert b"[DONE]" not in answer.body
    assert b"message_stop" not in answer.body
    last = answer.events[-1]
    assert "error" in last or "abort" in str(last)


def _until_out(vllm: Pair, victim: VllmEngine) -> None:
    until(lambda: vllm.router.worker(victim)["state"] == "ejected", 20.0, "the dead worker to be out")


def _assert_served_by_the_other(vllm: Pair, victim: VllmEngine) -> None:
    other = vllm.router.worker(vllm.other(victim))["name"]
    for _ in range(3):
        answer = ask(vllm.router.port, "POST", CHAT, chat())
        assert (answer.status, answer.headers["x-pointsman-worker"]) == (200, other)


def _assert_new_life(vllm: Pair, engine: VllmEngine, before: int) -> None:
    """The first scrape tells that another process answers, which has nothing cached."""

    def renewed() -> bool:
        return bool(vllm.router.worker(engine)["incarnation"] == before + 1)

    until(renewed, 5.0, f"incarnation {before + 1}")


def _serving(vllm: Pair) -> VllmEngine | None:
    return next((engine for engine in vllm.engines if vllm.router.worker(engine)["in_flight"]), None)


def _restart(vllm: Pair, dead: VllmEngine) -> VllmEngine:
    """A new process on the port of a dead one, back in rotation."""
    dead.stop()
    again = start(vllm.directory, dead.port)
    vllm.engines[vllm.engines.index(dead)] = again
    again.until_healthy("/health", START_S)
    until(lambda: vllm.router.worker(again)["state"] == "ready", 10.0, "the worker to be back")
    return again
