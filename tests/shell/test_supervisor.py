"""Background work that dies comes back, one by one, and takes nothing with it."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from router.supervisor import Supervisor
from router.virtual.clock import run
from tests.shell.live import CHAT, STREAM, Live, play
from tests.shell.puppet import DONE, ROLE, STOP, streaming, word


def supervisor(restarts: list[str] | None = None) -> Supervisor:
    loop = asyncio.get_running_loop()
    return Supervisor(loop.time, on_restart=(restarts if restarts is not None else []).append)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_work_that_returns_is_over() -> None:
    async def main() -> None:
        made = supervisor()
        done: list[int] = []

        async def once() -> None:
            done.append(1)

        made.start("once", once)
        await asyncio.sleep(100)
        assert done == [1]
        assert repr(made) == "<Supervisor [0 tasks]>"

    run(main())


def test_work_that_fails_is_started_again_ever_later() -> None:
    async def main() -> None:
        restarts: list[str] = []
        made = supervisor(restarts)
        loop = asyncio.get_running_loop()
        times: list[float] = []

        async def fail() -> None:
            times.append(loop.time())
            raise OSError("gone")

        made.start("work", fail)
        await asyncio.sleep(130)
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert gaps == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert restarts == ["work"] * len(times)
        await made.aclose()

    run(main())


def test_work_that_ran_well_for_a_minute_is_forgiven() -> None:
    async def main() -> None:
        made = supervisor()
        loop = asyncio.get_running_loop()
        times: list[float] = []

        async def fail_late() -> None:
            times.append(loop.time())
            await asyncio.sleep(61)
            raise OSError("gone")

        made.start("work", fail_late)
        await asyncio.sleep(200)
        assert times == [1000, 1061.5, 1123, 1184.5]
        await made.aclose()

    run(main())


def test_a_failure_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made = supervisor()

        async def fail() -> None:
            raise OSError("no such thing")

        made.start("watcher", fail)
        await asyncio.sleep(0.1)
        await made.aclose()

    with caplog.at_level(logging.ERROR, "pointsman.supervisor"):
        run(main())
    assert "watcher" in caplog.text
    assert "no such thing" in caplog.text


def test_it_is_unwell_while_work_waits_to_be_started_again() -> None:
    async def main() -> None:
        made = supervisor()
        fails = True

        async def work() -> None:
            if fails:
                raise OSError("gone")
            await for_ever()

        made.start("work", work, vital=True)
        await asyncio.sleep(0.1)
        reason = made.why_unwell
        assert reason == "background work fails: work"
        assert repr(made) == "<Supervisor [1 tasks, 1 failing]>"
        fails = False
        await asyncio.sleep(1)
        assert made.why_unwell is None
        await made.aclose()

    run(main())


def test_one_failure_leaves_the_others_alone() -> None:
    async def main() -> None:
        made = supervisor()
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(1)
                beats += 1

        async def fail() -> None:
            raise OSError("gone")

        made.start("beat", beat)
        made.start("fail", fail)
        await asyncio.sleep(50.5)
        assert beats == 50
        await made.aclose()

    run(main())


def test_a_name_that_runs_already_is_replaced() -> None:
    async def main() -> None:
        made = supervisor()
        ended: list[str] = []

        async def first() -> None:
            try:
                await for_ever()
            finally:
                ended.append("first")

        made.start("work", first)
        await asyncio.sleep(0)
        made.start("work", for_ever)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ended == ["first"]
        assert repr(made) == "<Supervisor [1 tasks]>"
        await made.aclose()

    run(main())


def test_stopped_work_is_not_started_again() -> None:
    async def main() -> None:
        made = supervisor()
        starts = 0

        async def fail() -> None:
            nonlocal starts
            starts += 1
            raise OSError("gone")

        made.start("work", fail)
        await asyncio.sleep(0.1)
        made.stop("work")
        made.stop("never started")
        await asyncio.sleep(100)
        assert starts == 1
        assert repr(made) == "<Supervisor [0 tasks]>"

    run(main())


def test_the_end_waits_until_everything_is_gone() -> None:
    async def main() -> None:
        made = supervisor()
        ended: list[int] = []

        async def slow_to_leave() -> None:
            try:
                await for_ever()
            finally:
                await asyncio.sleep(1)
                ended.append(1)

        for number in range(3):
            made.start(f"work {number}", slow_to_leave)
        await asyncio.sleep(0)
        await made.aclose()
        assert ended == [1, 1, 1]
        assert repr(made) == "<Supervisor [0 tasks]>"

    run(main())


def test_a_background_task_that_dies_never_touches_a_stream() -> None:
    words = [word(number) for number in range(20)]

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        act.pool.expire = broken
        act.pool.roster.observe = broken
        await asyncio.sleep(3)
        assert "failing" in repr(act.router.supervisor)
        del act.pool.expire, act.pool.roster.observe
        reply = await task
        assert (reply.body, reply.broken) == (ROLE + b"".join(words) + STOP + DONE, None)
        await asyncio.sleep(10)
        assert "failing" not in repr(act.router.supervisor)
        assert await act.metric("pointsman_task_restarts_total") >= 2  # type: ignore[operator]
        act.bugs.records.clear()

    play(scene, {"a": streaming(ROLE, *words, STOP, DONE, gap_s=0.5)})


def test_readiness_tells_of_background_work_that_fails() -> None:
    async def scene(act: Live) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        act.pool.expire = broken
        await asyncio.sleep(10)
        reply = await act.ask("/readiness")
        assert (reply.status, reply.json()["reason"]) == (503, "background work fails: reaper")
        del act.pool.expire
        await asyncio.sleep(60)
        assert (await act.ask("/readiness")).status == 200
        act.bugs.records.clear()

    play(scene)


def test_an_engine_that_makes_its_own_watch_fail_does_not_take_the_router_down() -> None:
    async def scene(act: Live) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        act.pool.roster.observe = broken
        await asyncio.sleep(10)
        assert "1 failing" in repr(act.router.supervisor)
        assert (await act.ask("/readiness")).status == 200
        act.bugs.records.clear()

    play(scene)
