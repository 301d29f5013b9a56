"""What the engine counted, by vLLM's rules of what counts and when.

Separate from the exposition because two dialects print the same account under different names. Counted
at the first output of a request: its prompt. At each output: its tokens. At its end: its times. A request
that its client abandoned ends nowhere: no finished-request series moves (recorded behaviour).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.model.job import Output, Timing

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TTFT_BUCKETS = (*_TTFT, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
ITL_BUCKETS = (*_ITL, 20.0, 40.0, 80.0)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
LATENCY_BUCKETS = (*_LATENCY, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
ITERATION_BUCKETS = (1.0, *(float(8 << power) for power in range(12)))
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to the model's length, the bounds of vLLM's token histograms."""
    bounds: list[float] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if scale * step > max_model_len:
                return tuple(bounds)
            bounds.append(float(scale * step))
        scale *= 10


class Histogram:
    """Counts of observations below each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} observations, sum {self.sum:g}>"

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value; a bound belongs to the bucket below it (Prometheus' `le`)."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(slots=True)
class Account:
    """Counters and histograms of one engine since its start."""

    max_model_len: int
    aborted: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_BUCKETS))
    max_num_generation_tokens: Histogram = field(init=False)
    params_n: Histogram = field(default_factory=lambda: Histogram(N_BUCKETS))
    params_max_tokens: Histogram = field(init=False)
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BUCKETS))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(ITL_BUCKETS))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    queue_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    inference_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    prefill_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    decode_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS))
    num_preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTION_BUCKETS))
    prefill_computed_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        bounds = token_buckets(self.max_model_len)
        self.request_prompt_tokens = Histogram(bounds)
        self.request_generation_tokens = Histogram(bounds)
        self.max_num_generation_tokens = Histogram(bounds)
        self.params_max_tokens = Histogram(bounds)
        self.prefill_computed_tokens = Histogram(bounds)

    def output(self, output: Output, now: float) -> int:
        """Count one engine output; return the tokens it adds to its step's iteration total.

        The gap to the previous output is observed once per output, however many tokens it has.
        """
        if output.since_last_s is not None:
            self.itl_s.observe(output.since_last_s)
            return len(output.token_ids)
        timing = output.timing
        self.ttft_s.observe(max(now - timing.arrival, 0.0))
        return len(output.token_ids) + timing.prompt_tokens

    def finish(self, timing: Timing, reason: str, max_tokens: int, now: float) -> None:
        """Count the end of a job that was not abandoned by its client."""
        self.finished[reason] += 1
        first = timing.first_token if timing.first_token is not None else now
        last = timing.last_token if timing.last_token is not None else now
        scheduled = timing.scheduled if timing.scheduled is not None else timing.arrival
        decode = last - first
        tokens = timing.generation_tokens
        self.e2e_s.observe(max(now - timing.arrival, 0.0))
        self.queue_s.observe(max(scheduled - timing.queued, 0.0))
        self.prefill_s.observe(max(first - scheduled, 0.0))
        self.decode_s.observe(decode)
        self.inference_s.observe(max(last - scheduled, 0.0))
        self.tpot_s.observe(decode / (tokens - 1) if tokens > 1 else 0.0)
        self.request_prompt_tokens.observe(timing.prompt_tokens)
        self.request_generation_tokens.observe(tokens)
        self.params_max_tokens.observe(max_tokens)
        self.num_preemptions.observe(timing.preemptions)
        self.prefill_computed_tokens.observe(timing.prompt_tokens - timing.reported_cached_tokens)

    def request_done(self, n: int, longest_output_tokens: int) -> None:
        """Count the end of a whole request of n answers."""
        self.params_n.observe(n)
        self.max_num_generation_tokens.observe(longest_output_tokens)
