"""The time between the tokens of an answer, over all answers of a run: inter-token latency.

Separate from the stepper, which passes many tokens at once: here a stretch of steps that last alike is one
entry, so that a run costs no more for being asked.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from router.studies.traces.trace import Distribution

_PER_E = 40
"""Buckets to a factor of e, so one is 2.5 % wide and a quantile is right to 1.3 %."""


def _bucket(seconds: float) -> int:
    return math.floor(math.log(seconds) * _PER_E) if seconds > 0 else -1_000_000


def _middle_s(bucket: int) -> float:
    return math.exp((bucket + 0.5) / _PER_E)


def _end_of(bucket: int, ends: Sequence[float], place: int) -> int:
    """The first step behind `place`, which is of the bucket, that is not."""
    steps = range(place, len(ends))
    return place + bisect_right(steps, bucket, key=lambda step: _bucket(ends[step] - ends[step - 1]))


@dataclass(slots=True)
class TokenGaps:
    """A histogram of the gaps before all tokens but the first of each sequence, also of answers that broke
    off later.

    What vLLM observes as inter-token latency, with one token to an output. A gap is long where a prompt was
    computed in the same step, where the sequence was preempted, and where the engine hung.

    Attributes:
        counts: gaps by bucket.
        count, total_s, longest_s: of all of them, exactly.
    """

    counts: dict[int, int] = field(default_factory=dict)
    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """So many tokens came so long after the ones before."""
        if tokens <= 0:
            return
        self.count += tokens
        self.total_s += seconds * tokens
        self.longest_s = max(self.longest_s, seconds)
        bucket = _bucket(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + tokens

    def add_steps(self, began: float, ends: Sequence[float], sequences: int) -> None:
        """Decode steps of the same sequences, each of which gave every one of them a token.

        But for the first, before which others may have come, each lasts as long as the one before or a little
        longer, for contexts grow: the steps of one bucket are neighbours.
        """
        if not sequences:
            return
        self.add(ends[0] - began, sequences)
        steps = len(ends)
        if steps == 1:
            return
        longest = ends[-1] - ends[-2]
        self.count += sequences * (steps - 1)
        self.total_s += sequences * (ends[-1] - ends[0])
        self.longest_s = max(self.longest_s, longest)
        place, last = 1, _bucket(longest)
        while place < steps:
            bucket = _bucket(ends[place] - ends[place - 1])
            further = steps if bucket == last else _end_of(bucket, ends, place)
            self.counts[bucket] = self.counts.get(bucket, 0) + sequences * (further - place)
            place = further

    def quantiles(self, shares: Iterable[float]) -> list[float]:
        """Gaps below which these shares of all lie, in ascending order of the shares; the middle of their
        bucket, and never more than the longest. Empty where there are none."""
        if not self.count:
            return []
        found: list[float] = []
        buckets = iter(sorted(self.counts.items()))
        bucket, below = next(buckets)
        for share in shares:
            while below < share * self.count and (more := next(buckets, None)) is not None:
                bucket, below = more[0], below + more[1]
            found.append(min(_middle_s(bucket), self.longest_s))
        return found

    def distribution(self) -> Distribution | None:
        """Mean and longest are exact; None where there are none."""
        if not self.count:
            return None
        p50, p90, p95, p99 = self.quantiles((0.5, 0.9, 0.95, 0.99))
        return Distribution(
            count=self.count,
            mean=self.total_s / self.count,
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=self.longest_s,
        )
