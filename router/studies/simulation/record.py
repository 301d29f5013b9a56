"""What became of each call, and the counters of a run.

Separate from the run so that metrics, reports and tests read plain data.
"""

from __future__ import annotations

import msgspec


class CallRecord(msgspec.Struct, kw_only=True, gc=False):
    """One call as its client saw it. Times are virtual seconds; None: it did not come to that.

    Attributes:
        placed: when a worker was chosen (the decode worker's, where there are two).
        first, done: first and last token, as they reach the client.
        hit_tokens: prompt tokens that the engine found in its cache (the prefill engine, of two).
        tokens: that were written, all sequences together.
        outcome: "ok", or why there is no whole answer: "broken" after its first token, "failed" before,
            "too_long" where no engine takes so long a prompt, else the code of the client's error.
        tries: placements after the first.
        pool_wait: in the queues of the router's pools, before every placement.
        engine_wait: in the queues of engines, from its coming to its first step, transfer of KV included.
    """

    number: int
    arrived: float
    prompt_tokens: int
    family: str = ""
    tenant: str = ""
    slo: str = ""
    session: str | None = None
    placed: float | None = None
    first: float | None = None
    done: float | None = None
    worker: str = ""
    prefill_worker: str = ""
    reason: str = ""
    hit_tokens: int = 0
    tokens: int = 0
    outcome: str = ""
    tries: int = 0
    pool_wait: float = 0.0
    engine_wait: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first is None else self.first - self.arrived

    @property
    def e2e_s(self) -> float | None:
        """Time to the last token."""
        return None if self.done is None else self.done - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for answers of one."""
        if self.first is None or self.done is None or self.tokens < 2:
            return None
        return (self.done - self.first) / (self.tokens - 1)


class EngineRecord(msgspec.Struct, kw_only=True, frozen=True):
    """The counters of one engine at the end of a run."""

    steps: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    preemptions: int


class RegretRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy that only judges says of the decisions of one pool, as a shadow of the live router does.

    Attributes:
        unit: of its costs.
        decisions: that it could judge: it compares what was chosen with what it would have chosen.
        total: over these, cost of what was chosen less cost of the cheapest, both at the moment of the
            decision and by the judge's own reckoning.
        agreed: decisions at no regret.
        ranked: others, in which the judge ranks another worker before all costs: they add nothing to `total`.
    """

    judge: str
    unit: str
    decisions: int
    total: float
    agreed: int
    ranked: int


class BarrierRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of one barrier group, over its decode steps.

    Attributes:
        gap_tokens: time mean of the highest less the lowest KV load.
        imbalance_tokens: time mean of I(k) = G · highest − sum.
        idle_share: of all workers' time, what they waited for the slowest.
        tokens_per_s: output tokens of the group.
    """

    gap_tokens: float
    imbalance_tokens: float
    idle_share: float
    tokens_per_s: float
