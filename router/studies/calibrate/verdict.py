"""What follows from the laws: who reads KV most of the time, and what a request may be promised.

Separate from the measuring and from the tables: these are the conclusions, and they are arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.settings.calibration_file import KvShare, SloMeasured, StepLaw, Targets

TIGHT: Final = 2.5
"""Times the measured p50."""
LOOSE: Final = 3.0
"""Times the tight targets."""
DOMINANT: Final = 0.5
"""Share of a step above which KV reads are the larger part of it."""

PROMPT_P90_TOKENS: Final = 2735
CONTEXT_TOKENS: Final = 1227
"""90th percentile of prompts, and mean context of a decode step, of the conversations in the Azure LLM
inference
trace of 2023: what is assumed of a workload that nobody described."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a fleet is expected to work.

    Attributes:
        sequences: that run at once on one engine (n*).
        context_tokens: of each of them.
        prompt_tokens: the prompt that TTFT is promised for.
    """

    sequences: int
    context_tokens: int
    prompt_tokens: int


def kv_share(worker: str, law: StepLaw, sequences: int, context_tokens: int) -> KvShare:
    """a·M / (b + c·n + a·M) of an engine that runs `sequences` of this context.

    Where a came out as nothing it is not known at all: every engine reads its KV.
    """
    kv_tokens = sequences * context_tokens
    rest_s = law.base_s + law.per_sequence_s * sequences

    def share(per_kv_token_s: float) -> float:
        reads_s = max(per_kv_token_s, 0.0) * kv_tokens
        return reads_s / (rest_s + reads_s) if reads_s > 0 else 0.0

    slope, error = law.per_kv_token_s, law.errors.per_kv_token_s
    known = slope > 0
    return KvShare(
        worker=worker,
        sequences=sequences,
        context_tokens=context_tokens,
        share=share(slope),
        least=share(slope - 2 * (error or 0.0)),
        most=share(slope + 2 * (error or 0.0)) if known else 1.0,
    )


def says_of_balance_route(shares: Sequence[KvShare]) -> str:
    """One sentence: whether balancing KV over decode workers can pay."""
    least, most = min(one.share for one in shares), max(one.share for one in shares)
    span = f"{most:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{least:.0%} to {most:.0%}"
    typical = shares[0]
    full = f"a full engine ({typical.sequences} sequences of {typical.context_tokens:,} tokens)"
    said = f"Reading KV is {span} of a step of {full}"
    if min(one.least for one in shares) > DOMINANT:
        return f"{said}: BalanceRoute pays where workers wait for each other."
    if max(one.most for one in shares) <= DOMINANT:
        return f"{said}: BalanceRoute is not for this fleet."
    if least > DOMINANT or most <= DOMINANT:
        return f"{said}, but not surely; measure again before choosing BalanceRoute."
    return f"{said}, so the larger part on some workers only: BalanceRoute may pay."


def slo_of(point: OperatingPoint, ttft_p50_s: float, tpot_p50_s: float) -> SloMeasured:
    """Targets from what was measured."""
    tight = Targets(ttft_s=TIGHT * ttft_p50_s, tpot_s=TIGHT * tpot_p50_s)
    return SloMeasured(
        sequences=point.sequences,
        context_tokens=point.context_tokens,
        prompt_tokens=point.prompt_tokens,
        tight=tight,
        loose=Targets(ttft_s=LOOSE * tight.ttft_s, tpot_s=LOOSE * tight.tpot_s),
    )
