"""How even the loads of a barrier group are, step by step.

Separate from the stepper, which keeps time and needs none of it. The figures are those of BalanceRoute
(arXiv 2605.06113): I(k) = G · max L − Σ L, the KV tokens that workers wait for in step k, and the gap
max L − min L.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.studies.simulation.stepper import Rank

_SAMPLES = 4_000


def _growing(load: int, tokens: int, steps: int) -> Iterable[int]:
    """A load in each step, to which so many tokens are added by every one."""
    return range(load, load + tokens * steps, tokens) if tokens else repeat(load, steps)


@dataclass(slots=True)
class Sample:
    """KV tokens in use at every rank at one time (s)."""

    at: float
    kv_tokens: tuple[int, ...]


@dataclass(slots=True)
class BarrierWatch:
    """Sums over the decode steps of one group.

    Attributes:
        steps, tokens: how many there were, and tokens that they gave.
        gap_s, imbalance_s: of each step times its length, in token-seconds.
        idle_s: of all ranks, the time that they waited for the slowest.
        busy_s: length of all steps.
        since: steps that began before are left out: the fleet was filling up.
        samples: loads over time, thinned out when they become many.
    """

    since: float = 0.0
    steps: int = 0
    tokens: int = 0
    gap_s: float = 0.0
    imbalance_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    _every_s: float = 0.0

    def passed(
        self, ranks: Sequence[Rank], began: float, ends: Sequence[float], worked: Sequence[float]
    ) -> None:
        """A stretch of steps is over; the ranks still know what ran in it.

        Args:
            worked: of each step, the time of all ranks that was no waiting (s).
        """
        if began < self.since:
            return
        counts = [len(rank.span.sequences) if rank.span is not None else 0 for rank in ranks]
        loads = [
            rank.span.kv_tokens + count * len(rank.ends)
            if rank.span is not None
            else rank.engine.running_tokens
            for rank, count in zip(ranks, counts, strict=True)
        ]
        size, steps, before = len(ranks), len(ends), began
        written, total = sum(counts), sum(loads)
        by_step = zip(*map(_growing, loads, counts, repeat(steps)), strict=True)
        for end, work_s, each in zip(ends, worked, by_step, strict=False):
            length, before = end - before, end
            highest = max(each)
            self.gap_s += (highest - min(each)) * length
            self.imbalance_s += (size * highest - total) * length
            self.idle_s += size * length - work_s
            total += written
        self.steps += steps
        self.busy_s += ends[-1] - began
        self.tokens += written * steps
        self._sample(ends[-1], [load + count * steps for load, count in zip(loads, counts, strict=True)])

    def _sample(self, at: float, loads: Sequence[int]) -> None:
        if self.samples and at - self.samples[-1].at < self._every_s:
            return
        self.samples.append(Sample(at, tuple(loads)))
        if len(self.samples) > _SAMPLES:
            self.samples = self.samples[::2]
            self._every_s = 2.0 * (at - self.samples[0].at) / _SAMPLES

    @property
    def gap_tokens(self) -> float:
        """Time mean of max L − min L."""
        return self.gap_s / self.busy_s if self.busy_s else 0.0

    @property
    def imbalance_tokens(self) -> float:
        """Time mean of I(k)."""
        return self.imbalance_s / self.busy_s if self.busy_s else 0.0

    def idle_share(self, ranks: int) -> float:
        """Share of all ranks' time that they waited at the barrier."""
        return self.idle_s / (self.busy_s * ranks) if self.busy_s else 0.0
