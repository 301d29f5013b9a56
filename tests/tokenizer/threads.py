"""Threads that are none: work is done where it is given, or when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Threads(Executor):
    """Does what it is given when it is told to."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.down = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, lambda: fn(*args, **kwargs)))
        if self.at_once:
            self.go()
        return future

    def go(self) -> None:
        for future, work in self.work:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                    future.set_exception(error)
        self.work.clear()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.down = True
