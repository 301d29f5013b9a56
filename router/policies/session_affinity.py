"""Requests of one conversation go to the same worker, unless that worker has far more than its share.

**Source.** Rendezvous hashing (Thaler and Ravishankar, 1998), weighted by the logarithmic method
(Schindelhauer and Schomaker, 2005), with the load bound of Mirrokni, Thorup and Zadimoghaddam, 2018.

**Inputs.** `affinity` of the request; `in_flight`, `capacity`, `warmup` of each worker. The affinity key is
filled before the policy sees it, by the first that the client gave: the configured header,
`x-claude-code-session-id`, `prompt_cache_key`, the conversation. The field `user` is not used: one user
holds many conversations, and some clients send one user for all.

**Formula.**

- h(w) in [0, 1) is a hash of (seed, key, name). The order of the key is by − ln(1 − h(w)) / capacity,
  smallest first: each worker is the first choice of a share of the keys in proportion to its capacity. When
  a worker leaves, only its keys move; when one joins, it takes its share and nothing else moves.
- bound(w) = max(⌈load_factor × mean × weight(w)⌉, min_in_flight), in requests, with weight = capacity /
  warmup and mean = Σ in_flight / Σ weight. A worker whose in_flight is above its bound is passed over, in
  the order of the key, so the overflow of a conversation lands on one and the same second worker. Somebody
  is always within the bound, as not everybody can be above the mean.
- cost = (in_flight + 1) × warmup / capacity, in requests, for information: it does not decide.

**Parameters.**

- `load_factor` (default 1.25; allowed: a number from 1 to 100): how far above the mean a worker may be.
- `min_in_flight` (default 4; allowed: a whole number from 0 to 100,000): no worker is passed over up to
  this many, so that noise on a quiet pool moves no conversation.

**Use it when** conversations are long and their prefix is worth keeping, and nothing better than a key is
known.

**Not when** few keys bring most of the load, or on a decode pool, where the KV comes over the wire anyway.
Several routers agree on the placement only if their seeds are equal.

**Absent data.** `affinity` None: as `least_requests`, reason `no_key`. A request that failed on its worker
is offered the others only, and goes to the next one in the order of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log1p

from router.core.explain import Row, Table
from router.core.policy import Choice, text_key, tie_breaks
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import least, request_loads
from router.policies.spec import PolicySpec, number, whole
from router.policies.table import drawn_table, load_rows, request_terms

_TO_UNIT = -(2.0**-64) * (1 - 2.0**-53)
"""Turns 64 bits into −h, a hair above −1 at the most."""


@dataclass(frozen=True, slots=True)
class Parameters:
    load_factor: float = number(1.25, 1, 100)
    min_in_flight: int = whole(4, 0, 100_000)


@dataclass(frozen=True, slots=True)
class SessionAffinity:
    """See the docstring of this file."""

    params: Parameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        if request.affinity is None:
            costs = request_loads(workers)
            index = least(costs, workers, request, self.seed)
            return Choice(request.id, workers[index].name, cost=costs[index], reason="no_key")
        key = text_key(self.seed, request.affinity)
        order = self._order(key, workers)
        index, reason = order.index(min(order)), "affinity"
        if workers[index].in_flight > self.params.min_in_flight:
            share = self._share(workers)
            # Not all can be above the mean, and the next one or two seldom are.
            while self._above(workers[index], share):
                order[index], reason = inf, "overflow"
                index = order.index(min(order))
        chosen = workers[index]
        return Choice(request.id, chosen.name, cost=request_loads([chosen])[0], reason=reason)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        loads = request_loads(workers)
        if request.affinity is None:
            return drawn_table(SPEC.cost_unit, self.seed, request, load_rows(loads, workers, "no_key"))
        order = self._order(text_key(self.seed, request.affinity), workers)
        places = sorted(range(len(workers)), key=order.__getitem__)
        share = self._share(workers)
        above = [self._above(w, share) for w in workers]
        first = places[0]
        rows = [
            Row(
                worker=w.name,
                total=load,
                terms={"place": place, "mean_times_load_factor_requests": share, **request_terms(w)},
                tier=len(workers) + place if above[index] else place,
                reason="overflow" if above[first] else "affinity",
            )
            for index, (w, load, place) in enumerate(zip(workers, loads, _ranks(places), strict=True))
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _order(self, key: int, workers: Sequence[WorkerView]) -> list[float]:
        """A number for each worker; ascending, they are the rendezvous order of the key."""
        hashes: list[float] = [*tie_breaks(self.seed, key, [w.name for w in workers])]
        speeds = [w.capacity for w in workers]
        if min(speeds) == max(speeds):
            # The logarithm only orders unequal speeds; among equal ones the order is that of the hash.
            return hashes
        return [-log1p(h * _TO_UNIT) / speed for h, speed in zip(hashes, speeds, strict=True)]

    def _share(self, workers: Sequence[WorkerView]) -> float:
        """load_factor × mean."""
        weight = sum([w.capacity / w.warmup for w in workers])
        return self.params.load_factor * sum([w.in_flight for w in workers]) / weight

    def _above(self, worker: WorkerView, share: float) -> bool:
        # For whole n, n > ⌈x⌉ is n − 1 ≥ x. The margin is for 1.1 × 10, which floats make more than 11.
        n = worker.in_flight
        return n > self.params.min_in_flight and n - 1 >= share * worker.capacity / worker.warmup - 1e-9


def _ranks(places: Sequence[int]) -> list[int]:
    """For each index its place in the order."""
    ranks = [0] * len(places)
    for place, index in enumerate(places):
        ranks[index] = place
    return ranks


SPEC = PolicySpec(
    name="session_affinity",
    factory=SessionAffinity,
    parameters=Parameters,
    roles=frozenset({Role.BOTH, Role.PREFILL}),
    cost_unit="requests in flight, this one included, at capacity 1",
    page=__doc__,
)
