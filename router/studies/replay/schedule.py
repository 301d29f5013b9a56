"""When each request is due. Pure: the same trace, options and seed give the same schedule."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from router.studies.traces.trace import Trace, TraceEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the trace's clock becomes the run's.

    Attributes:
        speed: trace seconds per real second.
        jitter_s: each arrival moves later by up to this many trace seconds, evenly spread. For traces whose
            timestamps come in batches (Mooncake: every 3 s).
        duration_s: requests due later than this many real seconds are not part of the run.
    """

    speed: float = 1.0
    jitter_s: float = 0.0
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise ValueError(f"speed must be above 0, not {self.speed:g}")
        if not self.jitter_s >= 0:
            raise ValueError(f"jitter must be 0 s or more, not {self.jitter_s:g}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ValueError(f"duration must be above 0 s, not {self.duration_s:g}")


@dataclass(frozen=True, slots=True)
class Planned:
    """One request and its moment, `due_s` real seconds after the start of the run."""

    due_s: float
    entry: TraceEntry


def plan(trace: Trace, pace: Pace, seed: int) -> list[Planned]:
    """The run in order of due time; equal times keep the order of the trace."""
    shifts = Random(seed)
    planned = []
    for entry in trace.entries:
        shift_s = shifts.random() * pace.jitter_s
        planned.append(Planned((entry.arrival_s + shift_s) / pace.speed, entry))
    planned.sort(key=lambda one: one.due_s)
    if pace.duration_s is None:
        return planned
    return [one for one in planned if one.due_s <= pace.duration_s]


def remaining(planned: list[Planned], done: frozenset[int]) -> list[Planned]:
    """What is still to be sent when the lines in `done` are.

    The first of the rest is due at once; the others keep their distance to it.
    """
    rest = [one for one in planned if one.entry.line not in done]
    if not rest or not done:
        return rest
    start_s = rest[0].due_s
    return [Planned(one.due_s - start_s, one.entry) for one in rest]
