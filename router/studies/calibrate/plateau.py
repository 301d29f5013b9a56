"""The length of a decode step, read off streams that ran side by side.

Separate because it is arithmetic over arrival times. What counts is the plateau: from when the last stream
has begun until the first one ends, the batch holds all of them and nothing is prefilled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

SETTLING_STEPS = 4
"""Steps at the beginning of a plateau that do not count: an engine may compile for this batch then."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer as it came.

    Attributes:
        times: when each event with output came (s), ascending.
        prompt_tokens, output_tokens: as the engine counted.
    """

    times: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens_per_event(self) -> float:
        """More than 1 with speculative decoding, and where what several steps gave is sent at once: at an
        interval, or because somebody was slow to take it."""
        return self.output_tokens / len(self.times)

    def merged(self) -> Stream:
        """The same, with events that came at one moment as one."""
        return replace(self, times=tuple(dict.fromkeys(self.times)))


@dataclass(frozen=True, slots=True)
class StepSample:
    """One point of the step law.

    Attributes:
        sequences: that ran.
        kv_tokens: sum of their contexts, in the middle of the plateau.
        step_s: time of a step: the mean of the middle half of all gaps between events. An engine, or a
            client, that stumbles makes a few long gaps, and then short ones until it has caught up.
        tpot_p50_s: median gap, per token.
        tokens_per_step: mean.
        steps: of each sequence that it rests on, at least.
    """

    sequences: int
    kv_tokens: float
    step_s: float
    tpot_p50_s: float
    tokens_per_step: float
    steps: int


def read_plateau(
    streams: Sequence[Stream], least_steps: int, *, speculates: bool = False
) -> StepSample | None:
    """What streams that were started together say of one step; None when they were not together for
    `least_steps`, because some waited for others to end or were prefilled too late.

    Args:
        speculates: a step gives several tokens. Otherwise an event with several tokens stands for as many
            steps.
    """
    if not speculates:
        streams = [stream.merged() for stream in streams]
    if not streams or any(len(stream.times) < 2 for stream in streams):
        return None
    last = max(streams, key=lambda stream: stream.times[0])
    begins = last.times[min(SETTLING_STEPS, len(last.times) - 1)]
    ends = min(stream.times[-1] for stream in streams)
    parts = [_Part.of(stream, begins, ends) for stream in streams]
    rate = math.fsum(stream.tokens_per_event for stream in streams) / len(streams)
    per_step = rate if speculates else 1.0
    steps = int(min(len(part.gaps_s) for part in parts) * rate / per_step)
    if steps < max(least_steps, 1):
        return None
    gaps = sorted(gap for part in parts for gap in part.gaps_s)
    return StepSample(
        sequences=len(streams),
        kv_tokens=math.fsum(part.kv_tokens for part in parts),
        step_s=middle_mean(gaps) * per_step / rate,
        tpot_p50_s=median(gaps) / rate,
        tokens_per_step=per_step,
        steps=steps,
    )


def middle_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of ascending values, at least one; a quarter is left out at either end."""
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


def lead_tokens(streams: Sequence[Stream]) -> int:
    """Tokens that the first stream had when the last one began: what each needs beyond the plateau."""
    began = [stream for stream in streams if stream.times]
    begins = max((stream.times[0] for stream in began), default=0.0)
    leads = (sum(time < begins for time in stream.times) * stream.tokens_per_event for stream in began)
    return math.ceil(max(leads, default=0.0))


@dataclass(frozen=True, slots=True)
class _Part:
    """The share of one stream that lies within the plateau: from its first event there to its last."""

    gaps_s: tuple[float, ...]
    kv_tokens: float

    @classmethod
    def of(cls, stream: Stream, begins: float, ends: float) -> _Part:
        inside = [index for index, time in enumerate(stream.times) if begins <= time <= ends]
        if len(inside) < 2:
            return cls((), 0.0)
        first, last = inside[0], inside[-1]
        come = (first + last) / 2 + 1  # events that had come in the middle
        return cls(
            gaps_s=tuple(b - a for a, b in pairwise(stream.times[first : last + 1])),
            kv_tokens=stream.prompt_tokens + come * stream.tokens_per_event,
        )
