"""How far a long command has come: a bar on a terminal, a plain line now and then elsewhere.

Separate from what is counted, which each command does for itself.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_BAR_EVERY_S = 0.25
_LINE_EVERY_S = 10.0


class Counted(Protocol):
    """What is watched. All of it may change at any time."""

    @property
    def done(self) -> int:
        """Parts that are done, or will not be needed."""

    @property
    def planned(self) -> int:
        """All parts; 0 while that is not known."""

    @property
    def beside(self) -> str:
        """Some words for the place beside a bar, which tells the counts."""

    @property
    def line(self) -> str:
        """Everything in one line."""


async def watch(counted: Counted, console: Console) -> None:
    """Shows what is counted until cancelled."""
    if console.is_terminal:
        await _bar(counted, console)
    else:
        await _lines(counted, console)


def bar(console: Console, *, refreshes: bool = True) -> Progress:
    """An empty bar, which shows nothing where there is no terminal.

    Args:
        refreshes: it draws itself, from a thread of its own.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    return Progress(*columns, console=console, auto_refresh=refreshes, disable=not console.is_terminal)


async def _bar(counted: Counted, console: Console) -> None:
    with bar(console, refreshes=False) as progress:
        task = progress.add_task("", total=None)
        try:
            while True:
                _show(progress, task, counted)
                await asyncio.sleep(_BAR_EVERY_S)
        finally:
            _show(progress, task, counted)


def _show(progress: Progress, task: TaskID, counted: Counted) -> None:
    total = counted.planned or None
    progress.update(task, completed=counted.done, total=total, description=counted.beside)
    progress.refresh()


async def _lines(counted: Counted, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_EVERY_S)
        console.print(counted.line, highlight=False, soft_wrap=True)
