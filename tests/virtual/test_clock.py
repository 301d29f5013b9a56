from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from router.virtual.clock import START_S, Deadlock, VirtualLoop, run


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_starts_at_a_fixed_point_and_moves_only_by_waiting() -> None:
    async def main() -> float:
        assert now() == START_S
        for _ in range(100):
            await asyncio.sleep(0)
        assert now() == START_S
        await asyncio.sleep(3600)
        return now()

    assert run(main()) == START_S + 3600
    assert run(main(), start_s=START_S) == START_S + 3600


def test_a_timer_runs_at_its_exact_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        for when in (1000.3, 1000.1, 1000.1 + 1e-7, 5e8):
            loop.call_at(when, lambda: seen.append(loop.time()))
        await asyncio.sleep(1e9)
        return seen

    assert run(main()) == [1000.1, 1000.1 + 1e-7, 1000.3, 5e8]


def test_a_year_of_ticks_late_in_time_does_not_stand_still() -> None:
    async def main() -> None:
        for _ in range(365):
            await asyncio.sleep(86_400)

    run(main(), start_s=1e12)


def test_two_runs_are_the_same_to_the_last_turn() -> None:
    async def actor(name: int, log: list[tuple[float, int]]) -> None:
        for n in range(20):
            await asyncio.sleep((name * 7 + n * 3) % 5 / 10)
            log.append((now(), name))

    async def main() -> list[tuple[float, int]]:
        log: list[tuple[float, int]] = []
        await asyncio.gather(*(actor(name, log) for name in range(10)))
        return log

    assert run(main()) == run(main())


def test_timeouts_and_queues_of_asyncio_work_as_ever() -> None:
    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await queue.get()
        assert now() == START_S + 5
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        assert now() == START_S + 10
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
            asyncio.get_running_loop().call_soon_threadsafe(queue.put_nowait, 2)
            assert {await queue.get(), await queue.get()} == {1, 2}

    run(main())


def test_waiting_for_what_never_comes_is_a_deadlock_that_names_who_waits() -> None:
    async def stuck_here() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.create_task(stuck_here(), name="the-waiter")
        await task

    with pytest.raises(Deadlock, match=r"the-waiter: .*stuck_here at .*test_clock\.py:\d+"):
        run(main())


def test_a_deadlock_after_an_error_in_a_callback_shows_that_error_as_its_cause() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(int, "not a number")
        await loop.create_future()

    with pytest.raises(Deadlock) as caught:
        run(main())
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_in_a_callback_is_not_passed_over() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, int, "not a number")
        await asyncio.sleep(2)

    with pytest.raises(ValueError, match="not a number"):
        run(main())


def test_an_error_in_a_task_that_nobody_awaits_is_not_passed_over() -> None:
    async def fails() -> None:
        raise KeyError("lost")

    async def main() -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task

    with pytest.raises(KeyError, match="lost"):
        run(main())


def test_an_error_while_the_rest_is_cancelled_is_not_passed_over() -> None:
    async def fails_at_the_end() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise KeyError("lost")

    kept = []

    async def main() -> None:
        kept.append(asyncio.create_task(fails_at_the_end()))
        await asyncio.sleep(1)

    with pytest.raises(KeyError, match="lost"):
        run(main())


def test_what_main_leaves_running_is_cancelled_and_closed() -> None:
    ended: list[str] = []

    async def generator() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            ended.append("generator")

    async def leftover() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("task")

    kept = []

    async def main() -> str:
        items = generator()
        await anext(items)
        kept.extend([items, asyncio.create_task(leftover())])
        await asyncio.sleep(0)
        return "result"

    assert run(main()) == "result"
    assert ended == ["task", "generator"]


def test_mains_own_error_comes_out_unchanged() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(int, "not a number")
        await asyncio.sleep(1)
        raise LookupError("main")

    with pytest.raises(LookupError, match="main"):
        run(main())


@pytest.mark.parametrize(
    "ask",
    [
        lambda loop: asyncio.to_thread(print),
        lambda loop: loop.getaddrinfo("localhost", 80),
        lambda loop: loop.getnameinfo(("127.0.0.1", 80)),
        lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 80),
        lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 80),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        lambda loop: asyncio.create_subprocess_exec("true"),
        lambda loop: asyncio.create_subprocess_shell("true"),
    ],
    ids=["thread", "resolve", "name", "connect", "listen", "datagram", "exec", "shell"],
)
def test_what_is_outside_the_process_is_refused_with_a_sentence(
    ask: Callable[[asyncio.AbstractEventLoop], Awaitable[object]],
) -> None:
    async def main() -> None:
        await ask(asyncio.get_running_loop())

    with pytest.raises(RuntimeError, match="virtual loop"):
        run(main())


def test_the_loop_is_not_left_behind() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = run(main())
    assert isinstance(loop, VirtualLoop)
    assert loop.is_closed()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
