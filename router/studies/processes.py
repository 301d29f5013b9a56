"""Runs in several processes, none of which outlives the one that asked.

Separate from what is run: an interrupt, a process that is killed, and the order of the results are the same
matter for every study.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class LostProcess(RuntimeError):
    """A process ended before its run did."""


def in_processes(tasks: Sequence[T], jobs: int, make: Callable[[T], R]) -> Generator[R]:
    """The results in the order of the tasks; in this process where one is enough.

    Args:
        make: one run; a new process must be able to import it.

    Raises:
        LostProcess: a process was killed, most likely for want of memory.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(make, tasks)
        return
    others = set(active_children())
    # A process that was started anew knows nothing of this one, so no run can depend on it.
    context = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _end_with_parent) as pool:
        try:
            with _deaf_to_interrupts():
                runs = [pool.submit(make, task) for task in tasks]
            for run in runs:
                yield run.result()
        except BrokenProcessPool:
            raise LostProcess(
                "a process of this study was ended from outside, most likely for want of memory; "
                "fewer --jobs need less"
            ) from None
        except BaseException:
            # Whoever is told to stop does not wait for runs that take minutes.
            for child in set(active_children()) - others:
                child.terminate()
            raise


def _end_with_parent() -> None:
    """A process whose parent was killed has nobody to work for, and nobody would ever end it."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_outlive, args=(parent,), name="parent", daemon=True).start()


def _outlive(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile do not hear of a Ctrl-C, which a terminal sends to all of them;
    this one hears of it right after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
