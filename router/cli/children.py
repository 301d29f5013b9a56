"""Child processes that live and die together.

Separate from `pointsman up`, which says what they are: this knows only how to start some programs, wait until
they answer, and stop all when one ends or a signal comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

_POLL_S: Final = 0.1
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)

Answers = Callable[[str], Awaitable[bool]]
"""Whether a URL answers 200."""


class ChildFailed(Exception):
    """A program did not start, did not become ready, or ended by itself. The message says which and how."""


class Stopped(Exception):
    """A signal asked for the end."""


@dataclass(frozen=True, slots=True)
class Program:
    """One child process to be.

    Attributes:
        name: what it is called in sentences: "the router".
        command: its words.
        ready_urls: all of them answer 200 once it is ready.
        stop_signal: asks it to end.
        stop_s: how long it may take to end; then it is killed.
    """

    name: str
    command: tuple[str, ...]
    ready_urls: tuple[str, ...]
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0


class Child:
    """A running program. `ended` is its exit code, once it has one."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process) -> None:
        self.program = program
        self._process = process
        self.ended = asyncio.create_task(process.wait())

    def __repr__(self) -> str:
        state = f"exit code {self._process.returncode}" if self.ended.done() else f"pid {self._process.pid}"
        return f"<Child {self.program.name} [{state}]>"

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):  # it ended between the look and the signal
            if self._process.returncode is None:
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Asks it to end, and kills it when it does not in time."""
        self.signal(self.program.stop_signal)
        await asyncio.wait({self.ended}, timeout=self.program.stop_s)
        self.signal(signal.SIGKILL)
        await self.ended


class Children:
    """All running programs, in the order of their start.

    They run in process groups of their own, so that Ctrl-C reaches only the parent, which ends them in order.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._children: list[Child] = []
        self._stop = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Children {self._children!r}>"

    async def start(self, program: Program) -> None:
        """Starts one more.

        Raises:
            ChildFailed: its command cannot be run.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command, stdin=asyncio.subprocess.DEVNULL, process_group=0
            )
        except OSError as error:
            raise ChildFailed(f"{program.name} cannot be started: {error}") from error
        self._children.append(Child(program, process))

    async def ready(self, programs: Sequence[Program], within_s: float) -> None:
        """Waits until these answer.

        Raises:
            ChildFailed: they do not within `within_s`, or some child ended.
            Stopped: a signal came.
        """
        urls = [url for program in programs for url in program.ready_urls]
        missing = list(urls)

        async def all_answer() -> None:
            while missing:
                if await self._answers(missing[0]):
                    del missing[0]
                else:
                    await asyncio.sleep(_POLL_S)

        await self._unless_over(all_answer(), within_s)
        if missing:
            raise ChildFailed(f"{missing[0]} does not answer 200 within {within_s:g} s")

    async def until_over(self) -> None:
        """Waits for the end.

        Raises:
            ChildFailed: some child ended.
            Stopped: a signal came.
        """
        await self._unless_over(asyncio.Event().wait(), None)

    async def stop(self) -> None:
        """Ends all, the last started first, since it may need the others."""
        for child in reversed(self._children):
            await child.stop()

    def on_signal(self) -> None:
        """The first signal stops in order, a second one at once."""
        if self._stop.is_set():
            for child in self._children:
                child.signal(signal.SIGKILL)
        self._stop.set()

    async def _unless_over(self, work: Coroutine[Any, Any, object], within_s: float | None) -> None:
        """Does some work until it is done, time is up, a child ends or a signal comes."""
        over = {child.ended: child for child in self._children}
        stop = asyncio.create_task(self._stop.wait())
        working = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait(
                {stop, working, *over}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.cancel()
            working.cancel()
            await asyncio.gather(stop, working, return_exceptions=True)
        if self._stop.is_set():
            raise Stopped
        for task, child in over.items():
            if task in done:
                raise ChildFailed(f"{child.program.name} ended by itself, with exit code {task.result()}")
        if working in done:
            working.result()


@contextlib.asynccontextmanager
async def together(answers: Answers) -> AsyncIterator[Children]:
    """Children that are all stopped at the end of the block, however it ends."""
    children = Children(answers)
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, children.on_signal)
    try:
        yield children
    finally:
        await children.stop()
        for number in _STOPPING:
            loop.remove_signal_handler(number)
