"""Engines on the timeline: one alone, or several whose steps wait for each other.

Separate from the router's side because an engine knows no router: it gets jobs, and says what came out.
Steps that are alike pass as one stretch, so time is spent per event and not per token.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from engines.model.engine import Engine, Fetch, Job, Output, Step
from engines.model.roofline import StepClock
from engines.model.span import Span
from router.studies.simulation.barrier_watch import BarrierWatch
from router.studies.simulation.timeline import Timeline, Timer
from router.studies.simulation.token_gaps import TokenGaps

_LONGEST_SPAN = 100_000
_STEPS_AT_ONCE = 16
"""Steps of which the times are computed together."""


class Listener(Protocol):
    """Who hears what an engine does."""

    def put_out(self, rank: Rank, outputs: Sequence[Output]) -> None:
        """Jobs wrote their first token, or ended; others may be among them."""

    def moved_on(self, rank: Rank) -> None:
        """Time passed in which jobs wrote tokens: one per step in `Rank.ends` beside what is counted."""

    def fetches(self, rank: Rank, wanted: Sequence[Fetch]) -> None:
        """Jobs want their KV from another engine."""


@dataclass(slots=True, eq=False)
class Rank:
    """One engine of a stepper.

    Attributes:
        slow: how many times longer its steps last than its clock says, 1.0 normally.
        span, ends: decode steps under way and when those that are over ended.
        step: a step that is looked at.
        broken: the span ends with the step that runs, because somebody came.
        paused: ids of jobs that were preempted and have written nothing since.
    """

    name: str
    engine: Engine
    clock: StepClock
    slow: float = 1.0
    span: Span | None = None
    ends: list[float] = field(default_factory=list)
    step: Step | None = None
    broken: bool = False
    paused: set[str] = field(default_factory=set)

    def durations_s(self, ahead: int, steps: int) -> list[float]:
        """How long so many steps last by themselves, from the one that is so far ahead of the next on; one
        with nothing to do keeps the others company with empty ones."""
        span = self.span
        if self.step is not None:
            alike = [self.step.duration_s] * steps
        elif span is None:
            alike = [self.engine.dummy_step_s] * steps
        else:
            count = len(span.sequences)
            kv_tokens = span.kv_tokens + count * (len(self.ends) + ahead)
            alike = self.clock.decode_steps(count, kv_tokens, steps)
        return alike if self.slow == 1.0 else [each * self.slow for each in alike]

    @property
    def busy(self) -> bool:
        return self.span is not None or self.step is not None


class Stepper:
    """One barrier group, or one engine that waits for nobody.

    Args:
        stretch_s: after so much time at the latest listeners hear how far jobs are.
        gaps: takes in the time between tokens.
    """

    def __init__(
        self,
        timeline: Timeline,
        ranks: Sequence[Rank],
        listener: Listener,
        *,
        stretch_s: float,
        gaps: TokenGaps,
    ) -> None:
        self.ranks = tuple(ranks)
        self._timeline = timeline
        self._listener = listener
        self._stretch_s = stretch_s
        self._gaps = gaps
        self._ends: list[float] = []
        self._worked: list[float] = []
        self._began = timeline.now
        self.watch = BarrierWatch() if len(self.ranks) > 1 else None
        self._timer: Timer | None = None
        self.stopped: float | None = None

    # --- jobs ------------------------------------------------------------------------------------------

    def submit(self, rank: Rank, jobs: Sequence[Job]) -> None:
        """Jobs of one request come in. Raises what `Engine.add_all` raises."""
        rank.engine.add_all(jobs, self._timeline.now)
        self.look(rank)

    def look(self, rank: Rank) -> None:
        """Something changed at an engine from outside: its next step is one to look at."""
        if rank.span is not None:
            rank.broken = True
        self._cut()
        if self._timer is None:
            self._begin()

    def abort(self, rank: Rank, job_id: str) -> bool:
        """A client left; the step that runs goes on without it."""
        if rank.span is not None:
            self._open_up(rank)
        gone = rank.engine.abort(job_id)
        self._listener.fetches(rank, rank.engine.drain_fetches())
        self._cut()
        return gone

    def stop(self) -> None:
        """Nothing happens here any more: the process is gone, or hangs."""
        self.stopped = self._timeline.now
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """What hung goes on, from where it was."""
        if self.stopped is None:
            return
        lost_s, self.stopped = self._timeline.now - self.stopped, None
        if not self._ends:
            self._begin()
            return
        self._ends = [end + lost_s for end in self._ends]
        self._timer = self._timeline.at(self._ends[-1], self._end)
        if any(rank.broken for rank in self.ranks):
            self._cut()

    # --- steps -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The next stretch: many steps while all only decode, else one."""
        if self.stopped is not None:
            return
        now = self._timeline.now
        alone = False
        for rank in self.ranks:
            if rank.busy:
                continue
            rank.span = rank.engine.begin_span(_LONGEST_SPAN)
            if rank.span is None:
                rank.step = rank.engine.begin_step(now)
                alone |= rank.step is not None
                wanted = rank.engine.drain_fetches()
                if wanted:
                    self._listener.fetches(rank, wanted)
        spans = [rank.span.steps - len(rank.ends) for rank in self.ranks if rank.span is not None]
        if not spans and not alone:
            return
        steps = 1 if alone else min(spans)
        self._began = now
        self._ends = self._times(now, steps)
        self._timer = self._timeline.at(self._ends[-1], self._end)

    def _times(self, now: float, steps: int) -> list[float]:
        """When the steps to come end; each lasts as long as the slowest engine's."""
        ends: list[float] = []
        self._worked = []
        at, last = now, now + self._stretch_s
        while len(ends) < steps:
            count = min(steps - len(ends), _STEPS_AT_ONCE)
            ends += accumulate(self._durations_s(len(ends), count), initial=at)
            del ends[-count - 1]
            at = ends[-1]
            if at >= last:
                break
        del ends[bisect_left(ends, last) + 1 :]
        return ends

    def _durations_s(self, ahead: int, steps: int) -> Sequence[float]:
        durations = [rank.durations_s(ahead, steps) for rank in self.ranks]
        if self.watch is None:
            return durations[0]
        by_step = list(zip(*durations, strict=True))
        self._worked += map(sum, by_step)
        return list(map(max, by_step))

    def _cut(self) -> None:
        """Nobody looks beyond the end of the step that runs."""
        ends = self._ends
        if self._timer is None:
            return
        running = bisect_right(ends, self._timeline.now)
        if running < len(ends) - 1:
            del ends[running + 1 :]
            self._timer.cancel()
            self._timer = self._timeline.at(ends[-1], self._end)

    def _open_up(self, rank: Rank) -> None:
        """Tells an engine what is over of its span, and begins the step that runs as one to look at.

        Those that wait with it in a group hear later, as they would have.
        """
        over = bisect_right(self._ends, self._timeline.now)
        if over:
            ends = self._ends[:over]
            if self.watch is not None:
                self.watch.passed(self.ranks, self._began, ends, self._worked)
                del self._worked[:over]
            self._add_gaps(ends)
            for other in self.ranks:
                if other.span is not None:
                    other.ends += ends
            self._began = ends[-1]
        del self._ends[:over]
        self._close(rank)
        rank.step = rank.engine.begin_step(self._timeline.now)

    def _end(self) -> None:
        self._timer = None
        ends, self._ends = self._ends, []
        if self.watch is not None:
            self.watch.passed(self.ranks, self._began, ends, self._worked)
        self._add_gaps(ends)
        told: list[tuple[Rank, list[Output]]] = []
        for rank in self.ranks:
            if rank.step is not None:
                step, rank.step = rank.step, None
                told.append((rank, self._end_step(rank, step)))
            elif rank.span is not None:
                rank.ends += ends
                if rank.broken or len(rank.ends) == rank.span.steps:
                    told.append((rank, self._close(rank)))
                self._listener.moved_on(rank)
        for rank, outputs in told:
            self._listener.put_out(rank, outputs)
        if self._timer is None:
            self._begin()

    def _add_gaps(self, ends: Sequence[float]) -> None:
        """Each sequence of every span wrote a token in each of these steps."""
        writing = sum(len(rank.span.sequences) for rank in self.ranks if rank.span is not None)
        self._gaps.add_steps(self._began, ends, writing)

    def _end_step(self, rank: Rank, step: Step) -> list[Output]:
        now, counters = self._timeline.now, rank.engine.counters
        before = counters.generation_tokens
        late = self._resumed(rank, step) if rank.paused or step.preempted else ()
        outputs = rank.engine.end_step(step, now, news=True)
        firsts = sum(output.since_last_s is None for output in outputs)
        others = counters.generation_tokens - before - firsts - len(late)
        self._gaps.add(now - self._began, others)
        for last in late:
            self._gaps.add(now - last, 1)
        return outputs

    @staticmethod
    def _resumed(rank: Rank, step: Step) -> list[float]:
        """When those that write again, after they were preempted, last did; of all others that was the step
        before."""
        writing = [
            sequence
            for sequence, _ in step.scheduled
            if sequence.id in rank.paused and sequence.computed == sequence.length
        ]
        rank.paused.difference_update(sequence.id for sequence in writing)
        rank.paused.update(step.preempted)
        return [one.timing.last_token for one in writing if one.timing.last_token is not None]

    def _close(self, rank: Rank) -> list[Output]:
        span, ends = rank.span, rank.ends
        rank.span, rank.ends, rank.broken = None, [], False
        return rank.engine.end_span(span, ends) if span is not None and ends else []

    def __repr__(self) -> str:
        state = "stopped" if self.stopped is not None else "idle" if self._timer is None else "in steps"
        return f"<Stepper {', '.join(rank.name for rank in self.ranks)} [{state}]>"
