"""The laws of child processes: they start in order, are watched all the time, and never outlive the parent.

The children are real processes that do nothing; nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from router.cli.children import Child, ChildFailed, Children, Program, Stopped, together

FOREVER = ("sleep", "1000")


def on_a_real_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Child processes need a loop that watches processes; each test has one of its own, closed at its end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def program(*command: str, urls: tuple[str, ...] = ("u",), **options: object) -> Program:
    return Program(name="the thing", command=command or FOREVER, ready_urls=urls, **options)  # type: ignore[arg-type] # options of a test


async def always(url: str) -> bool:
    return True


async def never(url: str) -> bool:
    return False


def alive(children: Children) -> list[Child]:
    return [child for child in children._children if not child.ended.done()]


@on_a_real_loop
async def test_children_that_answer_are_ready() -> None:
    asked = []

    async def second_time(url: str) -> bool:
        asked.append(url)
        return len(asked) > 1

    async with together(second_time) as children:
        thing = program(urls=("a", "b"))
        await children.start(thing)
        await children.ready([thing], within_s=60)
    assert asked == ["a", "a", "b"]


@on_a_real_loop
async def test_all_children_end_with_the_block() -> None:
    async with together(always) as children:
        for _ in range(3):
            await children.start(program())
        assert len(alive(children)) == 3
    assert alive(children) == []
    assert all(child.ended.result() == -signal.SIGTERM for child in children._children)


@on_a_real_loop
async def test_all_children_end_when_the_block_fails() -> None:
    seen: list[Children] = []

    async def fail() -> None:
        async with together(always) as children:
            seen.append(children)
            await children.start(program())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert alive(seen[0]) == []


@on_a_real_loop
async def test_a_child_that_does_not_answer_in_time_is_named_by_its_url() -> None:
    async with together(never) as children:
        thing = program(urls=("http://127.0.0.1:9001/health",))
        await children.start(thing)
        with pytest.raises(ChildFailed, match=r"http://127.0.0.1:9001/health does not answer 200 within 0 s"):
            await children.ready([thing], within_s=0)


@on_a_real_loop
async def test_a_child_that_ends_while_others_are_awaited_is_named_with_its_exit_code() -> None:
    async with together(never) as children:
        thing = program("sh", "-c", "exit 3")
        await children.start(thing)
        with pytest.raises(ChildFailed, match="the thing ended by itself, with exit code 3"):
            await children.ready([thing], within_s=60)


@on_a_real_loop
async def test_a_child_that_ends_later_ends_the_wait() -> None:
    async with together(always) as children:
        await children.start(program())
        await children.start(program("sh", "-c", "exit 0"))
        with pytest.raises(ChildFailed, match="exit code 0"):
            await children.until_over()
    assert alive(children) == []


@on_a_real_loop
async def test_a_command_that_does_not_exist_is_a_sentence() -> None:
    async with together(always) as children:
        with pytest.raises(ChildFailed, match="the thing cannot be started"):
            await children.start(program("/no/such/program"))


@on_a_real_loop
async def test_a_signal_ends_the_wait() -> None:
    async with together(always) as children:
        await children.start(program())
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            await children.until_over()
    assert alive(children) == []


@on_a_real_loop
async def test_a_signal_that_came_before_the_wait_is_not_forgotten() -> None:
    async with together(never) as children:
        children.on_signal()
        thing = program()
        await children.start(thing)
        with pytest.raises(Stopped):
            await children.ready([thing], within_s=60)


@on_a_real_loop
async def test_a_second_signal_kills_what_does_not_end() -> None:
    deaf = program(stop_signal=signal.SIGCONT, stop_s=3600.0)
    async with together(always) as children:
        await children.start(deaf)
        children.on_signal()
        asyncio.get_running_loop().call_soon(children.on_signal)
    assert children._children[0].ended.result() == -signal.SIGKILL


@on_a_real_loop
async def test_a_child_that_does_not_end_in_time_is_killed() -> None:
    async with together(always) as children:
        await children.start(program(stop_signal=signal.SIGCONT, stop_s=0.0))
    assert children._children[0].ended.result() == -signal.SIGKILL


@on_a_real_loop
async def test_each_child_is_asked_with_its_own_signal() -> None:
    async with together(always) as children:
        await children.start(program(stop_signal=signal.SIGINT))
    assert children._children[0].ended.result() == -signal.SIGINT


@on_a_real_loop
async def test_the_last_one_started_ends_first() -> None:
    order: list[str] = []
    async with together(always) as children:
        for name in ("engine", "router"):
            await children.start(Program(name, FOREVER, ("u",)))
            children._children[-1].ended.set_name(name)
            children._children[-1].ended.add_done_callback(lambda task: order.append(task.get_name()))
    await asyncio.sleep(0)
    assert order == ["router", "engine"]


@on_a_real_loop
async def test_children_have_process_groups_of_their_own() -> None:
    async with together(always) as children:
        await children.start(program())
        pid = children._children[0]._process.pid
        assert os.getpgid(pid) == pid != os.getpgid(0)


@on_a_real_loop
async def test_a_child_shows_what_it_is_and_how_it_is() -> None:
    async with together(always) as children:
        await children.start(program())
        assert repr(children._children[0]).startswith("<Child the thing [pid ")
    assert repr(children._children[0]) == "<Child the thing [exit code -15]>"
