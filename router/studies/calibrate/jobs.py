"""Runs measurements side by side, but never two on one piece of hardware.

Separate because it is about who may run now, and knows nothing of what is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement, and the hardware that it needs for itself."""

    hardware: frozenset[str]
    run: Callable[[], Coroutine[Any, Any, None]]


async def run_apart(jobs: Sequence[Job], *, one_at_a_time: bool = False) -> None:
    """Runs all of them, each as soon as its hardware is free, in the order given where they compete.

    The first failure ends the others and is raised. Cancelled, it ends all.
    """
    waiting = list(jobs)
    running: dict[asyncio.Task[None], frozenset[str]] = {}
    try:
        while waiting or running:
            _start(waiting, running, one_at_a_time=one_at_a_time)
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del running[task]
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _start(
    waiting: list[Job], running: dict[asyncio.Task[None], frozenset[str]], *, one_at_a_time: bool
) -> None:
    taken: set[str] = set().union(*running.values())
    for job in list(waiting):
        if one_at_a_time and running:
            return
        if not job.hardware & taken:
            waiting.remove(job)
            running[asyncio.get_running_loop().create_task(job.run())] = job.hardware
            taken |= job.hardware
