"""Runs one engine, or several in lockstep, on the event loop: the only place of the mock where time passes.

Separate so that everything else is told the time. Loop timers are the whole mechanism, so the same
engine runs on a virtual loop, and an idle engine leaves no timer and no task behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

RESYNC_S = 1.0
"""Behind by more than this, a step starts at the current time: a stopped process does not replay its past."""


class Timed(Protocol):
    """A step that lasts."""

    @property
    def duration_s(self) -> float:
        """Engine seconds that it takes."""


StepT = TypeVar("StepT", bound=Timed)
Output_co = TypeVar("Output_co", covariant=True)


class Stepped(Protocol[StepT, Output_co]):
    """What takes steps: an engine, or several in lockstep."""

    def begin_step(self, now: float) -> StepT | None:
        """Begin the next step; None when there is nothing to do."""

    def end_step(self, step: StepT, now: float) -> Output_co:
        """End it, and return what it produced."""


class Ticker(Generic[StepT, Output_co]):
    """Begins a step, waits for its end, hands out what it produced, and begins the next one.

    Step ends are absolute: a late wake-up shortens the next wait, so steps do not drift.

    Args:
        engine: stepped by this ticker alone.
        outputs: called at each step's end with its outputs, the step, and its planned end.
        failed: called when a step raised; the ticker has stopped.
        time_scale: wall seconds of one engine second.
        begun: called after the engine was asked for a step, whether it began one or not.
    """

    def __init__(
        self,
        engine: Stepped[StepT, Output_co],
        outputs: Callable[[Output_co, StepT, float], None],
        failed: Callable[[Exception], None],
        time_scale: float,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._begun = begun
        self._outputs = outputs
        self._failed = failed
        self.time_scale = time_scale
        self.slowness = 1.0
        self.steps = 0
        self.worst_lag_s = 0.0
        self.total_lag_s = 0.0
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "stepping" if self._timer else "idle"
        return f"<Ticker {state}, {self.steps} steps, worst lag {self.worst_lag_s * 1e3:.1f} ms>"

    def wake(self) -> None:
        """Begin a step in the next turn of the loop, unless one is running.

        The turn lets requests that arrive together enter the same step.
        """
        if self._timer is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_soon(self._begin, loop, loop.time())

    def stop(self) -> None:
        """Take no further step: the engine is dead."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, loop: asyncio.AbstractEventLoop, start: float) -> None:
        self._timer = None
        try:
            step = self._engine.begin_step(start)
            self._begun()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the engine is dead, and says so
            self._fail(failure)
            return
        if step is not None:
            end = start + step.duration_s * self.time_scale * self.slowness
            self._timer = loop.call_at(end, self._end, loop, step, end)

    def _end(self, loop: asyncio.AbstractEventLoop, step: StepT, end: float) -> None:
        self._timer = None
        now = loop.time()
        lag = max(now - end, 0.0)
        self.steps += 1
        self.total_lag_s += lag
        self.worst_lag_s = max(self.worst_lag_s, lag)
        try:
            outputs = self._engine.end_step(step, end)
            self._outputs(outputs, step, end)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the engine is dead, and says so
            self._fail(failure)
            return
        if not self._stopped and self._timer is None:
            self._begin(loop, end if lag < RESYNC_S else now)

    def _fail(self, failure: Exception) -> None:
        self.stop()
        self._failed(failure)
