from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.upstream.alarm import Alarm
from router.virtual.clock import VirtualLoop, run


def rings(scene: Callable[[Alarm, VirtualLoop], Awaitable[None]]) -> list[float]:
    """When the alarm rang, in seconds since the start."""
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        start = loop.time()
        await scene(Alarm(loop, loop.time, lambda: times.append(loop.time() - start)), loop)

    run(main())
    return times


def test_rings_once_when_the_deadline_is_reached() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        alarm.set(loop.time() + 5)
        await asyncio.sleep(100)

    assert rings(scene) == [5.0]


def test_a_deadline_that_moves_away_costs_no_timer_and_rings_late_enough() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        for _ in range(1000):
            alarm.set(loop.time() + 5)
            await asyncio.sleep(0.01)
        assert len(loop._scheduled) == 1
        await asyncio.sleep(100)

    assert rings(scene) == [pytest.approx(14.99)]


def test_a_deadline_that_comes_nearer_rings_earlier() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        alarm.set(loop.time() + 50)
        alarm.set(loop.time() + 5)
        await asyncio.sleep(100)

    assert rings(scene) == [5.0]


def test_cleared_does_not_ring_and_can_be_set_again() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        alarm.set(loop.time() + 5)
        alarm.clear()
        assert alarm.due is None
        await asyncio.sleep(10)
        alarm.set(loop.time() + 5)
        await asyncio.sleep(100)

    assert rings(scene) == [15.0]


def test_cancelled_leaves_no_timer() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        alarm.set(loop.time() + 5)
        alarm.cancel()
        assert all(timer.cancelled() for timer in loop._scheduled)
        await asyncio.sleep(100)

    assert rings(scene) == []


def test_a_deadline_in_the_past_rings_in_the_next_turn() -> None:
    async def scene(alarm: Alarm, loop: VirtualLoop) -> None:
        alarm.set(loop.time() - 5)
        await asyncio.sleep(0.001)

    assert rings(scene) == [0.0]
