"""Virtual time: what is to happen, in the order in which it happens.

Separate because everything else in a simulation only ever says when, and never waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """It will not happen; a second time changes nothing."""
        self.call = None

    def __repr__(self) -> str:
        return f"<Timer at {self.at:.6f} s{'' if self.call is not None else ' (cancelled)'}>"


class Timeline:
    """A clock that jumps from one event to the next. What is due at one instant happens in the order in
    which it was asked for, so a run is repeatable to the bit.

    Attributes:
        now: virtual seconds.
    """

    __slots__ = ("_count", "_heap", "now")

    def __init__(self, start_s: float = 0.0) -> None:
        self.now = start_s
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """`call` at an instant that has not passed; one that has is taken for now."""
        timer = Timer(max(when, self.now), call)
        self._count += 1
        heapq.heappush(self._heap, (timer.at, self._count, timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """`call` so much later than now."""
        return self.at(self.now + seconds, call)

    @property
    def next_at(self) -> float | None:
        """When the next thing happens, as far as it is not cancelled; None when nothing is left to."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Lets the next thing happen; False when nothing is left to."""
        while self._heap:
            at, _, timer = heapq.heappop(self._heap)
            call = timer.call
            if call is not None:
                self.now = at
                timer.call = None
                call()
                return True
        return False

    def __repr__(self) -> str:
        return f"<Timeline {self.now:.6f} s [{len(self._heap)} to come]>"
