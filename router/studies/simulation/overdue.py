"""Deadlines that are all equally long, on the timeline.

Separate because almost none of them is ever reached: one timer stands for all, and who is through costs
nothing more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from router.studies.simulation.timeline import Timeline, Timer

T = TypeVar("T")


class Overdue(Generic[T]):
    """Whoever has not got on in time.

    Args:
        after_s: how long each may take; infinite: as long as it likes.
        over: whether one is through.
        late: told of each that is not, at its time.
    """

    def __init__(
        self, timeline: Timeline, after_s: float, over: Callable[[T], bool], late: Callable[[T], None]
    ) -> None:
        self._timeline = timeline
        self._after_s = after_s
        self._over = over
        self._late = late
        self._due: deque[tuple[float, T]] = deque()
        self._timer: Timer | None = None

    def add(self, one: T) -> None:
        """Its time runs from now on."""
        if self._after_s == math.inf:
            return
        self._due.append((self._timeline.now + self._after_s, one))
        self._forget()
        if self._timer is None:
            self._timer = self._timeline.at(self._due[0][0], self._run)

    def _run(self) -> None:
        self._timer = None
        while self._due and self._due[0][0] <= self._timeline.now:
            one = self._due.popleft()[1]
            if not self._over(one):
                self._late(one)
        self._forget()
        if self._due and self._timer is None:
            self._timer = self._timeline.at(self._due[0][0], self._run)

    def _forget(self) -> None:
        """Drops those at the head that are through, of which there may always be some."""
        while len(self._due) > 1 and self._over(self._due[0][1]):
            self._due.popleft()

    def __repr__(self) -> str:
        return f"<Overdue after {self._after_s:g} s [{len(self._due)} due]>"
