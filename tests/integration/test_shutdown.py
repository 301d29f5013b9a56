"""The end of a process as its operator asks for it: nothing that runs is lost, nothing stays behind."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.clients import chat, streams_of
from tests.integration.programs import Programs, Router, ask, until, until_on_loop

SLOW = ("--time-scale", "3")
"""Thirty events a second on each stream: a run that a signal can interrupt."""


@pytest.fixture
def router(programs: Programs) -> Router:
    """A router that has a second for load balancers to notice."""
    _, engines = programs.engines(*SLOW, count=2)
    return programs.router(engines, {"timeouts": {"shutdown_accept_s": 1}})


def refused(router: Router) -> bool:
    try:
        router.readiness()
    except OSError:
        return True
    return False


async def test_sigterm_under_load_loses_no_stream(router: Router) -> None:
    async with streams_of(router) as streams:
        streams.start(16, tokens=80)
        await streams.all_begun()
        router.program.send(signal.SIGTERM)
        await until_on_loop(lambda: router.readiness() == 503, "not ready any more")
        assert ask(f"{router.url}/liveness").status == 200
        late = ask(f"{router.base_url}/chat/completions", method="POST", body=chat(2, stream=False))
        assert late.status == 200
        assert late.headers["connection"] == "close"
        await until_on_loop(lambda: refused(router), "the port is closed")
        seen = await streams.over()
    assert all(stream.complete for stream in seen)
    assert router.program.exit_code() == 0
    assert not any(engine.state()["aborted"] for engine in router.engines)


async def test_a_second_sigterm_ends_it_at_once_and_the_clients_are_told(router: Router) -> None:
    async with streams_of(router) as streams:
        streams.start(8, tokens=5000)
        await streams.all_begun()
        router.program.send(signal.SIGTERM)
        await until_on_loop(lambda: router.readiness() == 503, "not ready any more")
        router.program.send(signal.SIGTERM)
        seen = await streams.over()
    assert all(stream.broken_in_words for stream in seen)
    assert router.program.exit_code() == 0
    until(lambda: all(engine.idle for engine in router.engines), "the engines are idle")


async def test_time_that_is_up_is_an_error_event(programs: Programs) -> None:
    _, engines = programs.engines(*SLOW)
    timeouts = {"shutdown_accept_s": 0, "shutdown_drain_s": 0.3}
    router = programs.router(engines, {"timeouts": timeouts})
    async with streams_of(router) as streams:
        streams.start(2, tokens=5000)
        await streams.all_begun()
        router.program.send(signal.SIGTERM)
        seen = await streams.over()
    assert all(stream.broken_in_words for stream in seen)
    assert router.program.exit_code() == 0


async def test_ctrl_c_on_pointsman_up_lets_streams_finish_and_leaves_nothing(programs: Programs) -> None:
    router = programs.up({"count": 2, "time_scale": 3})
    assert len(router.program.family()) == 3
    async with streams_of(router) as streams:
        streams.start(4, tokens=30)
        await streams.all_begun()
        router.program.send(signal.SIGINT)
        seen = await streams.over()
    assert all(stream.complete for stream in seen)
    assert router.program.exit_code() == 0
    assert router.program.family() == []


async def test_a_second_ctrl_c_on_pointsman_up_kills(programs: Programs) -> None:
    router = programs.up({"count": 1, "time_scale": 3})
    async with streams_of(router) as streams:
        streams.start(1, tokens=5000)
        await streams.all_begun()
        router.program.send(signal.SIGINT)
        await until_on_loop(lambda: refused(router), "the port is closed")
        router.program.send(signal.SIGINT)
        (seen,) = await streams.over()
    assert not seen.complete
    assert router.program.exit_code() == 0
    assert router.program.family() == []


def test_pointsman_up_ends_when_its_engines_die(programs: Programs) -> None:
    router = programs.up({"count": 1})
    engines = next(pid for pid in router.program.family() if _is_mock(pid))
    os.kill(engines, signal.SIGKILL)
    assert router.program.exit_code() == 1
    assert router.program.family() == []
    assert "the mock engine on port" in router.program.err
    assert "ended by itself, with exit code -9" in router.program.err


def _is_mock(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"engines.mock" in file.read()
