"""What a trace is once it is read, whatever file it came from, and the figures that describe it.

Separate from the readers because the simulator makes traces without any file.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec


class TraceError(ValueError):
    """The trace cannot be used. The message names the file, the line if there is one, and the fault."""


class LineError(ValueError):
    """One line breaks its format. Raised by the readers, which know lines but not file names."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class TraceEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request of a trace.

    Attributes:
        arrival_s: seconds since the first request of the trace.
        prompt_tokens: length of the prompt, at least 1; the chat template is part of it.
        output_tokens: tokens that were generated, at least 1.
        blocks: names of the prompt's leading blocks. Equal names are equal text, and since a name stands
            for everything up to its block, two prompts share exactly their common leading names.
        model, tenant, session: as recorded; None where the trace does not know.
        line: number of the line in the file, from 1; unique in its trace, it names the request.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[str, ...] = ()
    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    line: int


@dataclass(frozen=True, slots=True)
class Skip:
    """A line that follows its format and still is no request to send again."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The requests of one file in order of arrival.

    Attributes:
        format: name of the reader.
        name: name of the file, without its directory.
        digest: SHA-256 of the file in hex; tells two files of one name apart.
        block_tokens: prompt tokens that one name in `TraceEntry.blocks` stands for; 0 when none has blocks.
        skipped: lines left out, by reason.
    """

    format: str
    name: str
    digest: str
    entries: Sequence[TraceEntry] = field(repr=False)
    block_tokens: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles of one quantity; the unit is that of the field which holds it."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted values lie, linear between neighbours.

    This is the definition numpy uses by default and vLLM's own benchmark reports.
    Raises ValueError when there are no values.
    """
    if not ordered:
        raise ValueError("no values, so no percentile")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Sequence[float]) -> Distribution | None:
    """Describes the values, None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


class TraceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in figures.

    Attributes:
        duration_s: from the first arrival to the last.
        rate_per_s: mean arrivals per second, None when all arrive at once.
        gap_cv: coefficient of variation of the gaps between arrivals: 1 for a Poisson process, more when
            bursty; None with fewer than two gaps or no time between them.
        reuse_share: share of all prompt tokens that lie in blocks which an earlier prompt already had: the
            most that an endless prefix cache can save. None when the trace knows no blocks.
    """

    requests: int
    duration_s: float
    rate_per_s: float | None
    gap_cv: float | None
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    reuse_share: float | None
    sessions: int
    skipped: dict[str, int]


def statistics(trace: Trace) -> TraceStatistics:
    """Describes the trace as it was read, before any speed or jitter."""
    entries = trace.entries
    duration_s = entries[-1].arrival_s - entries[0].arrival_s if entries else 0.0
    return TraceStatistics(
        requests=len(entries),
        duration_s=duration_s,
        rate_per_s=len(entries) / duration_s if duration_s > 0 else None,
        gap_cv=_gap_cv(entries),
        prompt_tokens=distribution([e.prompt_tokens for e in entries]),
        output_tokens=distribution([e.output_tokens for e in entries]),
        reuse_share=_reuse_share(entries, trace.block_tokens),
        sessions=len({e.session for e in entries if e.session is not None}),
        skipped=dict(trace.skipped),
    )


def _gap_cv(entries: Sequence[TraceEntry]) -> float | None:
    gaps = [after.arrival_s - before.arrival_s for before, after in itertools.pairwise(entries)]
    mean = math.fsum(gaps) / len(gaps) if gaps else 0.0
    if len(gaps) < 2 or mean <= 0:
        return None
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


def _reuse_share(entries: Sequence[TraceEntry], block_tokens: int) -> float | None:
    if block_tokens == 0:
        return None
    seen: set[str] = set()
    reused = 0
    for entry in entries:
        known = 0
        for name in entry.blocks:
            if name not in seen:
                break
            known += 1
        reused += min(known * block_tokens, entry.prompt_tokens)
        seen.update(entry.blocks)
    return reused / sum(entry.prompt_tokens for entry in entries)


def count_reasons(skips: Sequence[Skip]) -> dict[str, int]:
    """How many lines were left out for each reason, the commonest first."""
    return dict(Counter(skip.reason for skip in skips).most_common())
