"""Two different workers are drawn, and the one with the lower load takes the request.

**Source.** Mitzenmacher, "The power of two choices in randomized load balancing", 1996. The longest of n
queues falls from ln n / ln ln n to ln ln n / ln 2.

**Inputs.** `in_flight` or `kv_tokens`, `capacity`, `warmup` of the two workers; `prompt_tokens` and
`sequences` of the request when tokens are compared.

**Formula.** Two distinct candidates from a hash, each pair equally likely. Cost as in `least_requests`,
(in_flight + 1) × warmup / capacity, in requests; or as in `least_tokens`, (kv_tokens + prompt_tokens +
sequences) × warmup / capacity, in tokens. The lower one wins, a tie goes to the one drawn first.

**Parameters.**

- `load` (default requests; allowed: requests or tokens): what is compared.

**Use it when** several routers share the workers, so that each knows only its own part of the load, or when
the pool is very large: it looks at two workers whatever the size. Stale or partial counts hardly hurt it.

**Not when** this router sees all the load: `least_requests` then waits less. Candidates are drawn evenly,
so in a pool of n a worker never gets more than 2 / n of the requests, however fast it is.

**Absent data.** It needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Row, Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import hash_bits, request_loads, token_loads
from router.policies.spec import PolicySpec, word
from router.policies.table import drawn_table, request_terms, token_terms


@dataclass(frozen=True, slots=True)
class Parameters:
    load: str = word("requests", "tokens")


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """See the docstring of this file."""

    params: Parameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        drawn = self._two(request, workers)
        costs = self._loads(request, drawn)
        index = costs.index(min(costs))
        return Choice(request.id, drawn[index].name, cost=costs[index], reason="lower_of_two")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        drawn = [w.name for w in self._two(request, workers)]
        by_tokens, tokens = self.params.load == "tokens", request.prompt_tokens + request.sequences
        rows = [
            Row(
                worker=w.name,
                total=cost,
                terms=token_terms(w, tokens) if by_tokens else request_terms(w),
                tier=0 if w.name in drawn else None,
                order=float(w.name != drawn[0]),
                reason="lower_of_two" if w.name in drawn else "not drawn",
            )
            for w, cost in zip(workers, self._loads(request, workers), strict=True)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _loads(self, request: Request, workers: Sequence[WorkerView]) -> list[float]:
        if self.params.load == "tokens":
            return token_loads(workers, request.prompt_tokens + request.sequences)
        return request_loads(workers)

    def _two(self, request: Request, workers: Sequence[WorkerView]) -> list[WorkerView]:
        if len(workers) == 1:
            return list(workers)
        # One hash numbers the ordered pairs: the first any of n, the second any of the n − 1 others.
        n = len(workers)
        pair = hash_bits(workers, request, self.seed) * (n * (n - 1)) >> 64
        first, step = divmod(pair, n - 1)
        return [workers[first], workers[(first + 1 + step) % n]]


SPEC = PolicySpec(
    name="power_of_two",
    factory=PowerOfTwo,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="requests in flight or KV tokens (as `load` says), this request included, at capacity 1",
    page=__doc__,
)
