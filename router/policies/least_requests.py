"""The worker with the fewest requests in flight takes the next one (join the shortest queue).

**Source.** Join-the-shortest-queue; Winston, "Optimality of the shortest line discipline", 1977. The count
is the router's own ledger, true at the moment of the pick. Policies that take the minimum of a polled count
send everything to one worker until the next poll: with counts 4 service times old this rule is worse than
`random`.

**Inputs.** `in_flight`, `capacity`, `warmup` of each worker. Polled `stats` are not used.

**Formula.** cost = (in_flight + 1) × warmup / capacity, in requests. The smallest wins; ties by hash. A
request with n > 1 counts once: see `least_tokens` for its weight.

**Parameters.** None.

**Use it when** in doubt: it is the default. With fresh counts the response is about a tenth longer than
with `least_work`, at a load of 0.9 and no heavy tail.

**Not when** a few requests are far longer than the rest (`least_work`), when several routers each see a
small part of the load (`power_of_two`), or when prompts share long prefixes (`session_affinity`).

**Absent data.** It needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import least, request_loads
from router.policies.spec import NoParameters, PolicySpec
from router.policies.table import drawn_table, load_rows


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """See the docstring of this file."""

    params: NoParameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        costs = request_loads(workers)
        index = least(costs, workers, request, self.seed)
        return Choice(request.id, workers[index].name, cost=costs[index], reason="least_requests")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        rows = load_rows(request_loads(workers), workers, "least_requests")
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)


SPEC = PolicySpec(
    name="least_requests",
    factory=LeastRequests,
    roles=frozenset(Role),
    cost_unit="requests in flight, this one included, at capacity 1",
    page=__doc__,
)
