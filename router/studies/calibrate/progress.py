"""How far a calibration has come: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_BAR_EVERY_S = 0.25
_LINE_EVERY_S = 10.0


@dataclass(slots=True)
class Tally:
    """The state of a calibration for those who watch it.

    Attributes:
        planned, done: measurements; one is a prompt, a batch or a hand-over.
        doing: what each worker or pair is at.
    """

    planned: int = 0
    done: int = 0
    doing: dict[str, str] = field(default_factory=dict)

    def plan(self, measurements: int) -> None:
        """So many more will come."""
        self.planned += measurements

    def step(self, measurements: int = 1) -> None:
        """So many more are done, or will not be needed."""
        self.done += measurements

    @property
    def text(self) -> str:
        """What is under way, in one line."""
        return ", ".join(f"{name}: {what}" for name, what in sorted(self.doing.items()))


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
        task = progress.add_task("", total=None)
        try:
            while True:
                _show(progress, task, tally)
                await asyncio.sleep(_BAR_EVERY_S)
        finally:
            _show(progress, task, tally)


def _show(progress: Progress, task: TaskID, tally: Tally) -> None:
    progress.update(task, completed=tally.done, total=tally.planned or None, description=tally.text)
    progress.refresh()


async def _lines(tally: Tally, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_EVERY_S)
        console.print(f"{tally.done}/{tally.planned} measured; {tally.text}", highlight=False, soft_wrap=True)
