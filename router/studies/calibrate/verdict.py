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
    """a·M / (b + c·n + a·M) of an engine that runs `sequences` of this context."""
    kv_tokens = sequences * context_tokens
    whole_s = law.seconds(sequences, kv_tokens)
    share = law.per_kv_token_s * kv_tokens / whole_s if whole_s > 0 else 0.0
    return KvShare(worker=worker, sequences=sequences, context_tokens=context_tokens, share=share)


def says_of_balance_route(shares: Sequence[KvShare]) -> str:
    """One sentence: whether balancing KV over decode workers can pay."""
    least, most = min(one.share for one in shares), max(one.share for one in shares)
    span = f"{most:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{least:.0%} to {most:.0%}"
    typical = shares[0]
    where = f"of a step of a full engine ({typical.sequences} sequences of {typical.context_tokens:,} tokens)"
    if least > DOMINANT:
        return f"Reading KV is {span} {where}: BalanceRoute pays where workers wait for each other."
    if most > DOMINANT:
        return f"Reading KV is {span} {where}, so not on every worker the larger part: BalanceRoute may pay."
    return f"Reading KV is {span} {where}: BalanceRoute is not for this fleet."


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
