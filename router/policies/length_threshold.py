"""Long requests go to one side of the pool and short ones to the other, each to the least loaded there.

**Source.** Size-interval task assignment; Harchol-Balter, Crovella and Murta, 1999. The threshold heuristic
is a baseline of arXiv 2609.16206. The spill, without which a side would idle while the other queues, is
ours.

**Inputs.** `prompt_tokens` (and `max_tokens`) of the request; `in_flight`, `kv_capacity_tokens`,
`capacity`, `warmup` of each worker.

**Formula.**

- length = prompt_tokens, or prompt_tokens + max_tokens × sequences, in tokens; long means above
  `threshold_tokens`.
- The long side is round(long_share × n) workers, at least 1 and at most n − 1: those with the most KV
  capacity, and among equals those with the lowest hash of (seed, name). A worker that joins or leaves moves
  at most one other to the other side.
- cost = (in_flight + 1) × warmup / capacity, in requests; the smallest of the side wins, ties by hash.
- Spill: if the smallest cost of the side is above `saturation_requests`, the whole pool is compared. So a
  worker idles only while the other side has room in its batches, where one request more costs next to
  nothing.

**Parameters.**

- `threshold_tokens` (default 2048; allowed: a whole number from 1 to 10,000,000): longest short request.
- `length` (default prompt; allowed: prompt or total): what is measured. Many clients send a `max_tokens`
  far above what they get, so `total` is for those that mean it.
- `long_share` (default 0.5; allowed: a number from 0 to 1): share of the pool's workers on the long side.
  Set it to the share of all tokens that long requests bring.
- `saturation_requests` (default 8; allowed: a number from 1 to 10,000): cost at which a side is full. A
  decode step of 8 sequences lasts about an eighth longer than that of one.

**Use it when** short interactive requests wait behind long prefills, and lengths have two clear groups.

**Not when** the mix drifts over the day: the sides are fixed by `long_share`. `least_work` weighs the
length of each request instead.

**Absent data.** A `prompt_tokens` of 0 is short. `max_tokens` None adds nothing. An unknown
`kv_capacity_tokens` counts as the smallest. With one worker there is one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.explain import Row, Table
from router.core.policy import Choice, name_key
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import least, request_loads
from router.policies.spec import PolicySpec, number, whole, word
from router.policies.table import drawn_table, request_terms


@dataclass(frozen=True, slots=True)
class Parameters:
    threshold_tokens: int = whole(2048, 1, 10_000_000)
    length: str = word("prompt", "total")
    long_share: float = number(0.5, 0, 1)
    saturation_requests: float = number(8, 1, 10_000)


@dataclass(frozen=True, slots=True)
class LengthThreshold:
    """See the docstring of this file."""

    params: Parameters
    seed: int

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        side, costs, reason = self._among(request, workers)
        index = least(costs, side, request, self.seed)
        return Choice(request.id, side[index].name, cost=costs[index], reason=reason)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        side, _, reason = self._among(request, workers)
        names = {w.name for w in side}
        length = {"length_tokens": self._length(request), "threshold_tokens": self.params.threshold_tokens}
        rows = [
            Row(
                worker=w.name,
                total=cost,
                terms={**length, **request_terms(w)},
                tier=0 if w.name in names else None,
                reason=reason if w.name in names else "other side",
            )
            for w, cost in zip(workers, request_loads(workers), strict=True)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _among(
        self, request: Request, workers: Sequence[WorkerView]
    ) -> tuple[Sequence[WorkerView], list[float], str]:
        """The workers to compare, their loads, and why these."""
        is_long = self._length(request) > self.params.threshold_tokens
        side = self._side(workers, is_long)
        costs = request_loads(side)
        if min(costs) > self.params.saturation_requests:
            return workers, request_loads(workers), "spill"
        return side, costs, "long" if is_long else "short"

    def _length(self, request: Request) -> int:
        if self.params.length == "prompt" or request.max_tokens is None:
            return request.prompt_tokens
        return request.prompt_tokens + request.max_tokens * request.sequences

    def _side(self, workers: Sequence[WorkerView], is_long: bool) -> Sequence[WorkerView]:
        n = len(workers)
        if n == 1:
            return workers
        # One integer orders by KV capacity, most first, then by the 64 bits of the name.
        ranks = [name_key(self.seed, w.name) - ((w.kv_capacity_tokens or 0) << 64) for w in workers]
        count = min(max(round(self.params.long_share * n), 1), n - 1)
        last = sorted(ranks)[count - 1]
        return [w for w, rank in zip(workers, ranks, strict=True) if (rank <= last) is is_long]


SPEC = PolicySpec(
    name="length_threshold",
    factory=LengthThreshold,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="requests in flight, this one included, at capacity 1",
    page=__doc__,
)
