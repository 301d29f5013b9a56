"""The worker that would hold the fewest KV tokens takes the request, if it has room for it.

**Source.** Least outstanding work with tokens as the measure. The decode step of an engine grows with the
KV tokens it reads, and KV memory is what runs out first.

**Inputs.** `kv_tokens`, `kv_capacity_tokens`, `capacity`, `warmup` of each worker; `prompt_tokens` and
`sequences` of the request. The ledger counts a shared prefix once for every request that holds it, so it
errs towards more than the engine really stores. Polled `stats` are not used.

**Formula.** cost = (kv_tokens + prompt_tokens + sequences) × warmup / capacity, in tokens; each sequence is
worth one token at least, so that a request without a known length still counts. Workers where kv_tokens +
prompt_tokens + sequences is within `kv_capacity_tokens` come first: the engine would preempt or queue on
the others. If nobody has room, all are compared. Ties by hash.

**Parameters.** None.

**Use it when** prompts differ much in length, and on decode pools.

**Not when** prompts mostly share a prefix that is counted many times, or on a prefill pool of equal
prompts, where it is `least_requests` with more noise.

**Absent data.** An unknown `kv_capacity_tokens` counts as room enough. A `prompt_tokens` of 0 (no prompt,
or not counted) leaves the tokens already held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Row, Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import least, token_loads
from router.policies.spec import NoParameters, PolicySpec
from router.policies.table import drawn_table, token_terms


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """See the docstring of this file."""

    params: NoParameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        tokens = request.prompt_tokens + request.sequences
        costs = token_loads(workers, tokens)
        index = least(costs, workers, request, self.seed)
        # The least of all is the least of those with room, if it has some: nearly always, so ask it alone.
        if _has_room(workers[index], tokens):
            return Choice(request.id, workers[index].name, cost=costs[index], reason="least_tokens")
        roomy = [w for w in workers if _has_room(w, tokens)]
        if not roomy:
            return Choice(request.id, workers[index].name, cost=costs[index], reason="no_room")
        costs = token_loads(roomy, tokens)
        index = least(costs, roomy, request, self.seed)
        return Choice(request.id, roomy[index].name, cost=costs[index], reason="least_tokens")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        tokens = request.prompt_tokens + request.sequences
        rows = [
            Row(
                worker=w.name,
                total=cost,
                terms=token_terms(w, tokens),
                tier=0 if roomy else 1,
                reason="least_tokens" if roomy else "no_room",
            )
            for w, cost, roomy in zip(
                workers, token_loads(workers, tokens), [_has_room(w, tokens) for w in workers], strict=True
            )
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)


def _has_room(worker: WorkerView, tokens: int) -> bool:
    limit = worker.kv_capacity_tokens
    return limit is None or worker.kv_tokens + tokens <= limit


SPEC = PolicySpec(
    name="least_tokens",
    factory=LeastTokens,
    roles=frozenset(Role),
    cost_unit="KV tokens, this request's prompt included, at capacity 1",
    page=__doc__,
)
