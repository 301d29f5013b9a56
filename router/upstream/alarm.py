"""A deadline that moves often and rings seldom.

Separate because a timer per read is what makes streams expensive: here a later deadline costs one assignment,
and the loop's timer is set again only when it has rung too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

RESOLUTION_S = 0.001
"""uvloop counts whole milliseconds: a timer may ring that much early."""


class Alarm:
    """Calls `ring` once `now()` has reached the deadline last set, unless it was cleared before."""

    __slots__ = ("_due", "_handle", "_loop", "_now", "_ring", "_set_for")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], ring: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._now = now
        self._ring = ring
        self._due: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0.0

    def set(self, due: float) -> None:
        """Ring at `due` (s), whatever was set before."""
        self._due = due
        if self._handle is None or due < self._set_for:
            self._arm(due)

    def clear(self) -> None:
        """Do not ring. The loop's timer stays for the next `set`."""
        self._due = None

    def cancel(self) -> None:
        """Do not ring, and leave no timer behind."""
        self._due = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def due(self) -> float | None:
        return self._due

    def _arm(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._set_for = due
        self._handle = self._loop.call_later(max(0.0, due - self._now()), self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._due is None:
            return
        if self._due - self._now() > RESOLUTION_S:
            self._arm(self._due)
            return
        self._due = None
        self._ring()
