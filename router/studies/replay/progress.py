"""How far a run has come: a bar on a terminal, a plain line now and then elsewhere.

Separate from the table because it goes to another stream and lives as long as the run.
"""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from router.studies.replay.run import Tally

_BAR_EVERY_S = 0.25
_LINE_EVERY_S = 5.0


def line(tally: Tally) -> str:
    """The state in one line."""
    return (
        f"{tally.over}/{tally.planned} done: {tally.ok} ok, {tally.failed} failed, {tally.skipped} skipped, "
        f"{tally.in_flight} in flight, {tally.output_tokens} output tokens"
    )


async def watch(tally: Tally, console: Console) -> None:
    """Shows the tally until cancelled."""
    if console.is_terminal:
        await _bar(tally, console)
    else:
        await _lines(tally, console)


async def _bar(tally: Tally, console: Console) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=tally.planned)
        try:
            while True:
                _show(progress, task, tally)
                await asyncio.sleep(_BAR_EVERY_S)
        finally:
            _show(progress, task, tally)


def _show(progress: Progress, task: TaskID, tally: Tally) -> None:
    text = f"{tally.in_flight} in flight, {tally.failed} failed"
    progress.update(task, completed=tally.over, total=tally.planned, description=text)
    progress.refresh()


async def _lines(tally: Tally, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_EVERY_S)
        console.print(line(tally), highlight=False)
