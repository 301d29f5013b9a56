"""The worker that would be done soonest, in seconds of engine time, takes the request.

**Source.** Least work left; Harchol-Balter, "Performance Modeling and Design of Computer Systems", 2013.
The split into prefill and marginal decode seconds, and the division by a constant concurrency instead of
the current one, are the backlog of the calibrated cost of arXiv 2609.16206.

**Inputs.** `queued_tokens`, `remaining_tokens`, `kv_tokens`, `sequences`, `capacity`, `warmup`, `step` and
`stats.waiting` of each worker; `prompt_tokens`, `max_tokens`, `sequences` of the request.

**Formula.** All in seconds:

- token_s(w) = (step_base_s / N + step_per_sequence_s + step_per_kv_token_s × kv_tokens / sequences) /
  tokens_per_step: what one output token adds to a batch of N, in which the base of a step is shared. N is a
  constant, as division by the current batch would turn the backlog into a mean and send everything to the
  fullest worker. Tokens per step are above 1 where the engine speculates.
- backlog_s(w) = prefill_per_token_s × queued_tokens + token_s × remaining_tokens
- own_s(w) = prefill_s(prompt_tokens) + token_s × sequences × min(max_tokens, expected_output_tokens)
- foreign(w) = max(0, stats.waiting − in_flight): requests that wait in the engine and cannot be ours, from
  another router or a direct client. Each is taken for one like the request at hand.
- cost(w) = (backlog_s + own_s × (1 + foreign)) × warmup, and / capacity where uncalibrated.

The smallest wins; ties by hash. The coefficients are the worker's own `step` when every candidate is
calibrated. They are measured on that worker and hold its speed, so capacity is not applied again. If one
candidate is not calibrated, all are judged by the prior: seconds of two scales cannot be compared. The
prior is prefill 4 ms + 60 µs per token, step 15.5 ms + 0.12 ms per sequence + 0.12 µs per KV token (our
estimate for Qwen2.5-3B on an A40 under vLLM), divided by capacity. A pool of another size scales all its
costs alike, so the order rests on the ratio of prefill to decode alone.

**Parameters.**

- `operating_concurrency` (default 100; allowed: a whole number from 1 to 4,096): N, the batch an engine
  runs when it is well used; about the KV budget over the mean context.
- `expected_output_tokens` (default 200; allowed: a whole number from 1 to 1,000,000): output assumed per
  sequence of the request at hand, unless its `max_tokens` is lower. What is already placed goes by the
  predictions of the ledger.
- `stats_max_age_s` (default 3; allowed: a number from 0 to 60): a scrape older than this is not used.

**Use it when** prompts or outputs are heavy-tailed: with 5 % of requests 21 times as long as the rest, the
mean response is a sixth shorter than with `least_requests`.

**Not when** lengths are alike, where it buys nothing over `least_requests`.

**Absent data.** `step` None: the prior, as above. `stats` None, too old, or without `waiting`: the router's
own ledger alone. `max_tokens` None: `expected_output_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Row, Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.step_model import PRIOR
from router.core.worker import Role, StepModel, WorkerView
from router.policies.load import least
from router.policies.spec import PolicySpec, number, whole
from router.policies.table import drawn_table

__all__ = ["PRIOR", "SPEC", "LeastWork", "Parameters", "steps_of"]


def steps_of(workers: Sequence[WorkerView]) -> list[StepModel] | None:
    """The coefficients of every worker; None unless all are calibrated."""
    steps = [step for step in [w.step for w in workers] if step is not None]
    return steps if len(steps) == len(workers) else None


@dataclass(frozen=True, slots=True)
class Parameters:
    operating_concurrency: int = whole(100, 1, 4096)
    expected_output_tokens: int = whole(200, 1, 1_000_000)
    stats_max_age_s: float = number(3, 0, 60)


@dataclass(frozen=True, slots=True)
class LeastWork:
    """See the docstring of this file."""

    params: Parameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        costs = self.costs(request, workers, now)
        index = least(costs, workers, request, self.seed)
        return Choice(request.id, workers[index].name, cost=costs[index], reason="least_work")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        rows = [
            Row(worker=w.name, total=cost, terms=self._terms(request, w), reason="least_work")
            for w, cost in zip(workers, self.costs(request, workers, now), strict=True)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _terms(self, request: Request, worker: WorkerView) -> dict[str, float]:
        """What stands for time in the cost of one worker."""
        return {
            "prefill_tokens": worker.queued_tokens + request.prompt_tokens,
            "decode_tokens": worker.remaining_tokens + self._output_tokens(request),
            "context_tokens": worker.kv_tokens / (worker.sequences or 1),
            "warmup": worker.warmup,
            "capacity": worker.capacity,
        }

    def costs(self, request: Request, workers: Sequence[WorkerView], now: float) -> list[float]:
        """Seconds until each worker would be done with the request."""
        steps = steps_of(workers)
        if steps is not None:
            return self._costs(request, workers, steps, now)
        costs = self._costs(request, workers, [PRIOR] * len(workers), now)
        return [cost / w.capacity for cost, w in zip(costs, workers, strict=True)]

    def _costs(
        self, request: Request, workers: Sequence[WorkerView], steps: Sequence[StepModel], now: float
    ) -> list[float]:
        """Seconds at each worker, before its capacity. One flat loop: it is the price of a pick."""
        concurrency = self.params.operating_concurrency
        prompt_tokens, output_tokens = request.prompt_tokens, self._output_tokens(request)
        fresh_from = now - self.params.stats_max_age_s
        costs = []
        for w, step in zip(workers, steps, strict=True):
            token_s = (
                step.step_base_s / concurrency
                + step.step_per_sequence_s
                + step.step_per_kv_token_s * w.kv_tokens / (w.sequences or 1)
            ) / step.tokens_per_step
            cost = (
                step.prefill_base_s
                + step.prefill_per_token_s * (w.queued_tokens + prompt_tokens)
                + token_s * (w.remaining_tokens + output_tokens)
            )
            stats = w.stats
            if (
                stats is not None
                and stats.waiting
                and stats.taken >= fresh_from
                and stats.waiting > w.in_flight
            ):
                own_s = step.prefill_s(prompt_tokens) + token_s * output_tokens
                cost += own_s * (stats.waiting - w.in_flight)
            costs.append(cost * w.warmup)
        return costs

    def _output_tokens(self, request: Request) -> int:
        expected = self.params.expected_output_tokens
        if request.max_tokens is not None:
            expected = min(expected, request.max_tokens)
        return expected * request.sequences


SPEC = PolicySpec(
    name="least_work",
    factory=LeastWork,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="seconds of engine time until this request would be done",
    page=__doc__,
)
