"""Each worker is drawn with a probability in proportion to its capacity, whatever it is doing.

**Source.** Folklore. With Poisson arrivals every worker becomes a queue of its own (M/M/1): the mean
response is 1 / (1 − ρ) service times, 10 at ρ = 0.9.

**Inputs.** `capacity` and `warmup` of each worker; no load at all.

**Formula.** P(w) = weight(w) / Σ weight, weight = capacity / warmup (no unit). The draw is by hash, so the
same request draws the same again.

**Parameters.** None.

**Use it when** you need a baseline, or a policy that cannot herd because it looks at nothing.

**Not when** there is anything to gain: `power_of_two` is as cheap and answers in about a quarter of the
time at ρ = 0.9.

**Absent data.** It needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Row, Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import drawn
from router.policies.spec import NoParameters, PolicySpec
from router.policies.table import drawn_table


@dataclass(frozen=True, slots=True)
class Random:
    """See the docstring of this file."""

    params: NoParameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        worker = workers[drawn(workers, request, self.seed)]
        return Choice(request.id, worker.name, reason="random")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        chosen = drawn(workers, request, self.seed)
        weights = [w.capacity / w.warmup for w in workers]
        rows = [
            Row(
                worker=w.name,
                total=0.0,
                terms={"probability": weight / sum(weights)},
                reason="random",
                order=float(index != chosen),
            )
            for index, (w, weight) in enumerate(zip(workers, weights, strict=True))
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)


SPEC = PolicySpec(
    name="random", factory=Random, roles=frozenset(Role), cost_unit="none (always 0)", page=__doc__
)
