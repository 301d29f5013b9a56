"""Engines whose steps begin and end together: the data-parallel ranks of a model whose experts they share.

Separate from the engine, which knows no other: here is only the barrier. A step of the group lasts as long as
the longest step in it; a rank with nothing to compute takes part with a dummy batch, as vLLM's idle ranks do
while any rank has work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.model.engine import Engine, EngineFault, Output, Step


@dataclass(slots=True)
class JointStep:
    """One iteration of all ranks between its begin and its end.

    Attributes:
        duration_s: engine seconds that it takes: the longest of the ranks' steps, dummy ones included.
        steps: by rank; None is a dummy step.
    """

    duration_s: float
    steps: tuple[Step | None, ...]

    @property
    def waste_s(self) -> float:
        """Seconds that ranks wait at the barrier, in sum; a dummy step is waste as a whole."""
        used = sum(step.duration_s for step in self.steps if step is not None)
        return len(self.steps) * self.duration_s - used


class BarrierGroup:
    """Engines in lockstep; one engine alone is a group without a barrier.

    Stepped as an engine is. Jobs are added to and taken from the engines themselves, also inside a step.

    Args:
        engines: by rank.

    Raises:
        ValueError: for no engine.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ValueError("a barrier group has at least one engine")
        self.engines = tuple(engines)
        self._open: JointStep | None = None

    @property
    def idle(self) -> bool:
        """Whether no rank has a job."""
        return all(engine.idle for engine in self.engines)

    def begin_step(self, now: float) -> JointStep | None:
        """Begin the next step of every rank that has one; None when none has.

        Raises:
            EngineFault: the step before has not ended.
        """
        if self._open is not None:
            raise EngineFault("the step before has not ended")
        steps = tuple(engine.begin_step(now) for engine in self.engines)
        longest = max((step.duration_s for step in steps if step is not None), default=None)
        if longest is None:
            return None
        for engine, step in zip(self.engines, steps, strict=True):
            if step is None:
                longest = max(longest, engine.dummy_step_s)
        self._open = JointStep(longest, steps)
        return self._open

    def end_step(self, step: JointStep, now: float) -> list[list[Output]]:
        """End the step of every rank; return the outputs by rank.

        Raises:
            EngineFault: `step` is not the open step.
        """
        if step is not self._open:
            raise EngineFault("this step is not the open one")
        self._open = None
        return [
            [] if one is None else engine.end_step(one, now)
            for engine, one in zip(self.engines, step.steps, strict=True)
        ]

    def __repr__(self) -> str:
        state = "in a step" if self._open else "idle" if self.idle else "between steps"
        return f"<BarrierGroup of {len(self.engines)} {state}>"
