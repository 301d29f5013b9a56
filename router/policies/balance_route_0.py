"""Waiting requests fill the gaps below the most loaded worker of a barrier group, by the F-score of now.

**Source.** BR-0 of BalanceRoute, arXiv 2605.06113: the F-score, both stages, the starvation guard, the pool
and its bypass. Ageing, KV capacity, step-time units and the shortcut in the search are ours. Where every step
of a group lasts as long as its slowest worker's, what counts is not how much each holds but how far it is
below the highest.

**Inputs.** `kv_tokens`, `sequences`, `free_slots`, `kv_capacity_tokens`, `capacity`, `warmup`, `step` of each
worker, and of its barrier peers, those that are full included; `prompt_tokens`, `sequences`, `arrived` (or
the end of the prefill leg) of each waiting request. What was dispatched and does not run yet counts as
running.

**Formula.** For a worker g of a group of G workers, in KV tokens of g:

- load L = kv_tokens / capacity. If every member of the group is calibrated and reads of KV take time, L =
  step_s(sequences, kv_tokens) in seconds; a token is then worth step_per_kv_token_s, and a sequence
  step_per_sequence_s / step_per_kv_token_s tokens. Loads of two scales are never compared.
- margin m = (max L − L) / load of one token at g, not below 0; warmup multiplies L and the load of a token.
- F(z) = z − G × (z − m)⁺ for z admitted tokens: the fall of I = G × max L − Σ L. At G = 8 and m = 1,000, z =
  900, 1,000, 1,100 and 1,200 give 900, 1,000, 300 and −400. cost = −F of the set that a request enters
  with.
- Stage 1, while more than `greedy_slots_per_worker` × G slots are free: the worker with most free slots (then
  the lowest L, then by hash) takes the best of the `greedy_candidates` oldest requests that fit it.
- Stage 2, in the same order of workers: the subset of the `candidates` oldest that fit, with no more
  sequences than free slots and no more tokens than free KV, whose F is highest; of equals the one of fewest
  slots, then the one without the youngest. F is concave, so of all sums only the two next to m are looked at;
  that is exact. With more than 6 candidates lengths are rounded up to 16 tokens.
- Guard: where the best F is not above 0, the best single request enters anyway. A free slot is never left
  empty for balance. With G = 1 every F is 0, which makes it first come, first served.
- KV: kv_tokens + admitted ≤ (1 − `kv_reserve`) × kv_capacity_tokens; a worker that holds nothing may fill its
  reserve and take more sequences than it has slots. A prompt longer than the KV of every worker goes to the
  roomiest at once, for the engine refuses it with its true length.
- Ageing: the guard lets somebody in, not a given request; without margin the shortest prompt wins each time.
  A request that somebody younger was placed before `age_s` ago, or `max_overtaken` younger ones, goes first,
  to the worker with the most free KV. If none has room, the roomiest of those that are large enough takes
  nobody else until it has. So from the moment when a request is the oldest, at most `max_overtaken` younger
  ones and the rest of one round pass it where it has room, and none after `age_s`; where it has none it waits
  for what runs at one worker, and for nobody who comes later. Waiting alone does not count: when all wait
  longer than `age_s`, nothing but first come, first served would be left. Ties go to the oldest, so no weight
  of age is added to F.
- Bypass: where the pool places a request as it comes, the worker with the highest F of that request alone
  takes it (then the lowest L, then by hash), if it has room.

Reasons: `greedy`, `subset`, `guard`, `aged`, `bypass`, `oversized`, and `whole_worker` for what only an empty
worker takes.

**Parameters.**

- `candidates` (default 4; allowed: a whole number from 1 to 64): R_max. The paper deploys 4 and publishes 16;
  1 gives away nearly all of the gain.
- `greedy_candidates` (default 16; allowed: a whole number from 1 to 256): window of stage 1.
- `greedy_slots_per_worker` (default 1.0; allowed: a number from 0 to 10,000): S_greedy over G. The paper
  names no value; 0 to 4 differ by less than 1 % in simulation.
- `kv_reserve` (default 0.05; allowed: a number from 0 to 0.9): share of a worker's KV left for what its
  residents will generate.
- `age_s` (default 2.0; allowed: a number from 0 to 3,600): see ageing.
- `max_overtaken` (default 16; allowed: a whole number from 1 to 256): see ageing.

**Use it when** the workers are ranks of one data-parallel engine that step together, requests wait, outputs
are long, and reading KV is most of a step. The paper has 9 to 12 % more throughput than `least_requests` at 8
workers, and more with more of them.

**Not when** workers are independent replicas, where nobody waits for the highest; when slots are mostly free;
when prefill dominates; when many residents share one document, whose KV is counted once for each of them.

**Absent data.** `kv_capacity_tokens` None: room without end. `free_slots` None: slots without end, so stage 1
places everything at once. `step` None at one member: KV tokens for the whole group. No declared group: all
workers of the pool are one. Peers unknown: those offered alone make up G and max L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.explain import Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.rounds import RoundMemory
from router.core.worker import Role, WorkerView
from router.policies.ageing import Overtakings
from router.policies.balance_alone import Alone
from router.policies.balance_round import RoundRules, new_round
from router.policies.barrier import groups_of
from router.policies.envelope import Present
from router.policies.round_watch import RoundResult, RoundWatch, Unwatched
from router.policies.spec import PolicySpec, Shape, number, whole


@dataclass(frozen=True, slots=True)
class Parameters:
    candidates: int = whole(4, 1, 64)
    greedy_candidates: int = whole(16, 1, 256)
    greedy_slots_per_worker: float = number(1.0, 0, 10_000)
    kv_reserve: float = number(0.05, 0, 0.9)
    age_s: float = number(2.0, 0, 3600)
    max_overtaken: int = whole(16, 1, 256)


@dataclass(slots=True)
class BalanceRoute0:
    """See the docstring of this file."""

    params: Parameters
    seed: int
    watch: RoundWatch = field(default_factory=Unwatched, repr=False, compare=False)
    """Told of its rounds; a shell that measures sets it."""
    overtakings: Overtakings = field(init=False)

    def __post_init__(self) -> None:
        self.overtakings = Overtakings(self.params.age_s, self.params.max_overtaken)

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        """A round over all that wait, oldest first."""
        if not waiting or not workers:
            return ()
        self.watch.began()
        return self.decide(waiting, workers, now)

    def decide(
        self,
        waiting: Sequence[Request],
        workers: Sequence[WorkerView],
        now: float,
        fallback: str | None = None,
    ) -> list[Choice]:
        """A round that has begun, over at least one request and one worker.

        Args:
            fallback: why another policy leaves it to this one.
        """
        groups = [(group, Present(group)) for group in groups_of(workers)]
        made = new_round(self.rules(), groups, waiting, workers, self.seed)
        choices = made.run(self.overtakings, now)
        self.watch.ended(RoundResult(len(waiting), choices, made.gained, made.lost, fallback))
        return choices

    def rules(self) -> RoundRules:
        """How its rounds decide."""
        params = self.params
        return RoundRules(
            candidates=params.candidates,
            greedy_candidates=params.greedy_candidates,
            greedy_slots_per_worker=params.greedy_slots_per_worker,
            kv_reserve=params.kv_reserve,
            watch=self.watch,
        )

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        """The bypass: one request that comes while nobody waits. None when no worker has room for it."""
        return self._alone(request, workers).pick(self.seed)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        return self._alone(request, workers).explain(SPEC.cost_unit, self.seed)

    def _alone(self, request: Request, workers: Sequence[WorkerView]) -> Alone:
        groups = [(group, Present(group)) for group in groups_of(workers)]
        return Alone(request, groups, workers, self.params.kv_reserve, "bypass")

    def memory(self, workers: Sequence[WorkerView]) -> RoundMemory:
        return RoundMemory(overtakings=list(self.overtakings.placed))

    def recall(self, memory: RoundMemory) -> None:
        self.overtakings.placed.clear()
        self.overtakings.placed.extend(memory.overtakings)

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if not retry:
            self.overtakings.record(request, now)


SPEC = PolicySpec(
    name="balance_route_0",
    factory=BalanceRoute0,
    parameters=Parameters,
    roles=frozenset({Role.DECODE, Role.BOTH}),
    cost_unit="idle KV tokens added to the barrier group, at capacity 1 (seconds where calibrated)",
    page=__doc__,
    shape=Shape.BATCH,
)
