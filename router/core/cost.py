"""What a placement costs, in seconds: the terms that policies add up, each a pure function of few numbers.

Separate from the policies because several of them price the same things, and a term that two of them compute
differently would make their costs incomparable. Where a call for each of 64 workers costs more than the term,
a policy writes it out, and its tests hold it to the definition here.

All terms are predictions of one worker's calibrated coefficients (`StepModel`). A decode step lasts
b + c · n + a · KV (base, sequences, KV tokens read); a prefill of p tokens behind h cached ones
c0 + c1 · p + c2 · p (p + 2 h). Own time is what the request itself waits; slowdown is what it costs those who
are there already, summed over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.core.lease import Lease
from router.core.step_model import StepModel

__all__ = [
    "Demand",
    "decode_own_s",
    "kv_wait_s",
    "prefill_backlog_s",
    "prefill_own_s",
    "prefill_wait_s",
    "slot_wait_s",
    "slowdown_bound_s",
    "slowdown_s",
    "step_after_s",
    "step_growth_s",
]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request will ask of a worker.

    Attributes:
        prompt_tokens: of its prompt, charged once for all of its sequences.
        output_tokens: expected of each sequence.
        sequences: output sequences, at least 1.
    """

    prompt_tokens: int
    output_tokens: float
    sequences: int = 1

    @property
    def mean_kv_tokens(self) -> float:
        """KV that it holds on average while it decodes: its prompt and half of its output."""
        return self.prompt_tokens + self.sequences * self.output_tokens / 2

    @property
    def final_kv_tokens(self) -> float:
        """KV that it holds at its last step."""
        return self.prompt_tokens + self.sequences * self.output_tokens


def prefill_own_s(step: StepModel, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Seconds to prefill what is not cached of a prompt, on a worker that prefills nothing else."""
    return step.prefill_s(prompt_tokens - cached_tokens, cached_tokens)


def prefill_backlog_s(step: StepModel, requests: int, tokens: int) -> float:
    """Seconds of prefill that wait, from sums alone: `requests` prompts of `tokens` together.

    They are taken to be equally long, which for a given sum is the least that attention can cost.
    """
    if not tokens:
        return 0.0
    count = max(requests, 1)
    return count * step.prefill_base_s + tokens * (
        step.prefill_per_token_s + step.prefill_per_token_squared_s * tokens / count
    )


def prefill_wait_s(step: StepModel, residents: Iterable[Lease], now: float) -> float:
    """Seconds of prefill that stand before a request that comes now, prompt by prompt.

    Engines prefill in the order of arrival. What the first of them has had already is subtracted: the time
    since its grant, at most its own prefill. Tokens that the engine found in its cache cost nothing.
    """
    total_s = first_s = 0.0
    began: float | None = None
    for lease in residents:
        if lease.prefilled:
            continue
        own_s = prefill_own_s(step, lease.prompt_tokens, lease.cached_tokens or 0)
        total_s += own_s
        if began is None:
            began, first_s = lease.granted, own_s
    return total_s if began is None else total_s - min(max(now - began, 0.0), first_s)


def step_growth_s(step: StepModel, demand: Demand) -> float:
    """Seconds by which a step is longer while the request decodes: c · sequences + a · (p + o / 2)."""
    return step.step_per_sequence_s * demand.sequences + step.step_per_kv_token_s * demand.mean_kv_tokens


def step_after_s(step: StepModel, sequences: int, kv_tokens: int, demand: Demand) -> float:
    """Seconds of a step with the request among `sequences` that hold `kv_tokens`:
    b + c · (n + 1) + a · (KV + p + o / 2)."""
    return step.step_s(sequences, kv_tokens) + step_growth_s(step, demand)


def decode_own_s(step: StepModel, sequences: int, kv_tokens: int, demand: Demand) -> float:
    """Seconds from the first to the last token of the request, at the load that is there now."""
    return step.steps(demand.output_tokens) * step_after_s(step, sequences, kv_tokens, demand)


def slowdown_s(step: StepModel, demand: Demand, residents: Iterable[Lease]) -> float:
    """Seconds by which all who are there end later: the growth of a step, for each sequence as many times as
    both it and the request decode, Σ min(remaining, o)."""
    output = demand.output_tokens
    shared = 0.0
    for lease in residents:
        count = lease.request.sequences
        remaining = lease.remaining_tokens
        shared += min(remaining, output * count)
    return step_growth_s(step, demand) * step.steps(shared)


def slowdown_bound_s(step: StepModel, demand: Demand, sequences: int, remaining_tokens: int) -> float:
    """`slowdown_s` from sums alone, as if all sequences had the same left: never less than the true one,
    since the mean of min(x, o) is at most min(mean of x, o)."""
    shared = min(float(remaining_tokens), sequences * demand.output_tokens)
    return step_growth_s(step, demand) * step.steps(shared)


def kv_wait_s(step: StepModel, residents: Iterable[Lease], needed_tokens: float, step_s: float) -> float:
    """Seconds until enough of those who are there have ended for `needed_tokens` of KV to be free.

    They end in the order of what they have left, at `step_s` a step, and each gives back what it holds by
    then. When all of them together do not hold as much, the last of them is waited for: alone on the worker
    the request will run, or be refused by the engine.

    Args:
        needed_tokens: beyond what is free; 0 or less waits for nobody.
    """
    if needed_tokens <= 0:
        return 0.0
    wait_tokens = 0.0
    for left, held in sorted([(_left(lease), lease.kv_tokens) for lease in residents]):
        wait_tokens = left
        needed_tokens -= held + left
        if needed_tokens <= 0:
            break
    return step.steps(wait_tokens) * step_s


def slot_wait_s(step: StepModel, residents: Iterable[Lease], needed: int, step_s: float) -> float:
    """Seconds until `needed` more sequences may run than do now; 0 or less waits for nobody."""
    if needed <= 0:
        return 0.0
    wait_tokens = 0.0
    for left, count in sorted([(_left(lease), lease.request.sequences) for lease in residents]):
        wait_tokens = left
        needed -= count
        if needed <= 0:
            break
    return step.steps(wait_tokens) * step_s


def _left(lease: Lease) -> float:
    """Output that each sequence of a lease still has to come."""
    return lease.remaining_tokens / lease.request.sequences
