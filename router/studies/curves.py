"""What plots need of a run, in bounded size: latencies at fixed shares, KV loads at few times.

Separate from the figures, which are numbers for a table: a run of a million calls has as long a curve as one
of a hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from router.studies.simulation.barrier_watch import Sample
from router.studies.simulation.record import CallRecord
from router.studies.simulation.token_gaps import TokenGaps
from router.studies.traces.trace import percentile

SHARES: tuple[float, ...] = (
    0.0, *(step / 50 for step in range(1, 45)), *(step / 100 for step in range(90, 100)), 0.995, 1.0,
)  # fmt: skip
"""Of the answered calls, at which latencies are kept: every 2 %, from 90 % on every one, and the tail."""
_MOST_TIMES = 120


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies (s) of the answered calls at `SHARES`; empty where there are none.

    Attributes:
        itl_s: time between tokens, at these shares of the tokens.
    """

    ttft_s: list[float]
    tpot_s: list[float]
    itl_s: list[float]
    e2e_s: list[float]


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """KV tokens in use at each worker of a barrier group, over time.

    Attributes:
        at_s: times, at most 120.
        kv_tokens: of each worker, in the order of the group, at those times.
    """

    at_s: list[float]
    kv_tokens: list[list[int]]


def curves(calls: Iterable[CallRecord], gaps: TokenGaps | None = None) -> Curves:
    """Of one run."""
    answered = [record for record in calls if record.outcome == "ok"]
    return Curves(
        ttft_s=_at_shares([record.ttft_s for record in answered if record.ttft_s is not None]),
        tpot_s=_at_shares([record.tpot_s for record in answered if record.tpot_s is not None]),
        itl_s=[] if gaps is None else [rounded(value) for value in gaps.quantiles(SHARES)],
        e2e_s=_at_shares([record.e2e_s for record in answered if record.e2e_s is not None]),
    )


def _at_shares(values: list[float]) -> list[float]:
    values.sort()
    return [rounded(percentile(values, share)) for share in SHARES] if values else []


def loads(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Loads]:
    """Of each barrier group, by the name of its first worker."""
    return {name: _thinned(group) for name, group in samples.items() if group}


def _thinned(samples: Sequence[Sample]) -> Loads:
    """Samples at even places; the first and the last are among them."""
    count = min(len(samples), _MOST_TIMES)
    last = len(samples) - 1
    kept = [samples[place * last // max(count - 1, 1)] for place in range(count)]
    return Loads(
        at_s=[rounded(sample.at) for sample in kept],
        kv_tokens=[list(load) for load in zip(*(sample.kv_tokens for sample in kept), strict=True)],
    )


def rounded(value: float) -> float:
    """Four digits: more than a plot shows."""
    return float(f"{value:.4g}")
