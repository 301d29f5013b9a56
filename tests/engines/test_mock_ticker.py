"""Steps end when the model says, scaled, and do not drift."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.mock.ticker import RESYNC_S, Ticker
from engines.model.engine import Engine, Output, Step
from router.virtual.clock import VirtualLoop, run


class Steps:
    """Stands in for an engine: so many steps of a length, and when each began."""

    def __init__(self, count: int, duration_s: float, *, fails_at: int | None = None) -> None:
        self.left = count
        self.duration_s = duration_s
        self.fails_at = fails_at
        self.begun: list[float] = []
        self.ended: list[float] = []

    def begin_step(self, now: float) -> Step | None:
        if self.left == 0:
            return None
        self.left -= 1
        self.begun.append(now)
        if len(self.begun) == self.fails_at:
            raise RuntimeError("out of memory")
        return cast(Step, SimpleNamespace(duration_s=self.duration_s))

    def end_step(self, step: Step, now: float) -> list[Output]:
        self.ended.append(now)
        return []


def ticker(steps: Steps, *, time_scale: float = 1.0, failures: list[Exception] | None = None) -> Ticker:
    def outputs(_: Sequence[Output], _step: Step, _now: float) -> None:
        return

    def failed(failure: Exception) -> None:
        assert failures is not None, failure
        failures.append(failure)

    return Ticker(cast(Engine, steps), outputs, failed, time_scale)


def loop_of() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def test_steps_follow_each_other_without_a_gap() -> None:
    async def main() -> None:
        steps = Steps(1000, 0.02)
        ticker(steps).wake()
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(1000)
        assert steps.begun[0] == start
        assert steps.begun[1:] == steps.ended[:-1]
        assert steps.ended[-1] == pytest.approx(start + 20.0, abs=1e-6)

    run(main())


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_the_time_scale_is_wall_seconds_of_an_engine_second(scale: float) -> None:
    async def main() -> None:
        steps = Steps(10, 0.1)
        start = asyncio.get_running_loop().time()
        ticker(steps, time_scale=scale).wake()
        await asyncio.sleep(100)
        assert steps.ended[-1] - start == pytest.approx(scale)

    run(main())


def late(by_s: float) -> Any:
    """Hold the loop up: the clock goes on and no callback runs."""
    loop = loop_of()
    loop._now += by_s
    return loop.time()


def test_a_late_wake_up_shortens_the_next_wait() -> None:
    async def main() -> None:
        steps = Steps(100, 0.02)
        clock = ticker(steps)
        start = asyncio.get_running_loop().time()
        clock.wake()
        asyncio.get_running_loop().call_later(0.03, late, 0.015)
        await asyncio.sleep(100)
        assert steps.ended[-1] == pytest.approx(start + 2.0, abs=1e-6)
        assert clock.worst_lag_s == pytest.approx(0.005, abs=1e-6)

    run(main())


def test_a_process_that_stood_still_does_not_replay_its_past() -> None:
    async def main() -> None:
        steps = Steps(100, 0.02)
        start = asyncio.get_running_loop().time()
        ticker(steps).wake()
        asyncio.get_running_loop().call_later(0.03, late, 60.0)
        await asyncio.sleep(200)
        assert steps.ended[-1] > start + 60 + 98 * 0.02 - RESYNC_S

    run(main())


def test_an_idle_ticker_leaves_no_timer_and_wakes_again() -> None:
    async def main() -> None:
        steps = Steps(3, 0.02)
        clock = ticker(steps)
        clock.wake()
        await asyncio.sleep(10)
        assert "idle" in repr(clock)
        steps.left = 2
        clock.wake()
        clock.wake()
        await asyncio.sleep(10)
        assert clock.steps == 5

    run(main())


def test_a_stopped_ticker_takes_no_further_step() -> None:
    async def main() -> None:
        steps = Steps(1000, 0.02)
        clock = ticker(steps)
        clock.wake()
        await asyncio.sleep(0.05)
        clock.stop()
        clock.wake()
        await asyncio.sleep(10)
        assert clock.steps == 2
        assert "stopped" in repr(clock)

    run(main())


def test_a_step_that_raises_is_the_death_of_the_engine() -> None:
    async def main() -> None:
        failures: list[Exception] = []
        clock = ticker(Steps(1000, 0.02, fails_at=3), failures=failures)
        clock.wake()
        await asyncio.sleep(10)
        assert [str(failure) for failure in failures] == ["out of memory"]
        assert clock.steps == 2
        assert "stopped" in repr(clock)

    run(main())
