"""An asyncio loop whose time jumps.

Separate from the network because most tests need only the clock: when nothing is ready, time moves to the
next timer instead of passing. There is no socket, thread or signal, so a run depends on nothing outside.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import base_events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_S = 1_000.0
"""Where virtual time begins: far from 0, so that code which takes 0 for "never" is found out."""


_RESOLUTION_S = 1e-9


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set: what runs would wait for ever. The text shows who waits."""


class VirtualLoop(base_events.BaseEventLoop):
    """Runs callbacks and tasks as any loop does; `time()` is virtual and exact.

    A timer runs at the very instant it was set for. Sockets, threads, signals and processes are refused with
    a sentence. Errors in callbacks and tasks that nobody looks at are kept in `failures`.
    """

    _selector: _Jump
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, start_s: float = START_S) -> None:
        super().__init__()
        self.failures: list[BaseException] = []
        self._now = start_s
        self._clock_resolution = _RESOLUTION_S
        self._selector = _Jump(self)

    def time(self) -> float:
        return self._now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(error if error is not None else RuntimeError(context["message"]))

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        _refuse(f"a thread for {getattr(func, '__qualname__', func)!r}")

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> NoReturn:
        _refuse(f"to resolve {host!r}")

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> NoReturn:
        _refuse(f"to resolve {sockaddr!r}")

    async def create_connection(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a socket")

    async def create_server(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a listening socket")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a datagram socket")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a process")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a process")

    def jump(self) -> None:
        """Move time to the earliest timer. Raises Deadlock when there is none."""
        if not self._scheduled:
            raise Deadlock(_who_waits(self)) from (self.failures[0] if self.failures else None)
        self._now = max(self._now, self._scheduled[0].when())
        # A timer is due when it lies less than this ahead; it must be more than nothing, also late in time.
        self._clock_resolution = max(_RESOLUTION_S, math.ulp(self._now))

    # What BaseEventLoop asks of its subclass.

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # nobody sleeps in a selector, so nobody has to be woken


class _Jump:
    """Stands where a selector would: being asked to wait is what moves the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None or timeout > 0:
            self._loop.jump()
        return []


def run(main: Coroutine[Any, Any, T], *, start_s: float = START_S) -> T:
    """Run `main` on a fresh VirtualLoop and return its result.

    What `main` leaves running is cancelled. An error in a callback, or in a task that nobody awaited, is
    raised when `main` itself had none: a test must not pass over it.
    """
    loop = VirtualLoop(start_s)
    try:
        result = loop.run_until_complete(main)
        _cancel_rest(loop)
    except BaseException:
        _cancel_rest(loop)
        raise
    finally:
        main.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    if loop.failures:
        raise loop.failures[0]
    return result


def _cancel_rest(loop: VirtualLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    for task in rest:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            loop.failures.append(error)


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"Something asked the virtual loop for {what}. It has no sockets, threads or processes: "
        "use router.virtual.network, or a real loop."
    )


def _who_waits(loop: VirtualLoop) -> str:
    lines = ["Nothing is ready and no timer is set; these tasks would wait for ever:"]
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        stack = task.get_stack()
        place = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "not started"
        lines.append(f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')} at {place}")
    return "\n".join(lines)
