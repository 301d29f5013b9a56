"""The worker where all whom the request affects lose the least time together takes it.

**Source.** All terms are ours or those of the other policies, in one unit: saved prefill as in Preble (arXiv
2407.00023), wait, own decode and slowdown as in the calibrated cost of arXiv 2609.16206, the overflow of a
barrier group as in BalanceRoute (arXiv 2605.06113). Each is counted in seconds of delay for everybody who
suffers it, so what a cached token is worth against an even load follows from what was measured, and not from
a weight.

**Inputs.** The prompt of the request, `prompt_tokens`, `max_tokens`, `min_tokens`, `sequences`, `deadline`,
`handover`; what each worker is believed to hold of it and where its key portion ends, by the prefix index of
the pool; `step`, `transfers`, `capacity`, `warmup`, `sequences`, `queued_tokens`, `kv_tokens`,
`remaining_tokens`, `free_slots`, `kv_capacity_tokens`, `barrier_peers`, `stats.waiting` of each worker; and
what this policy has seen of its own requests: which show no output yet, how long their answers were, and how
often their key portions were asked for in the last seconds.

**Formula.** cost(w) = decode + (the sum of the other terms) × warmup, in seconds. With s prompt tokens of
which h are held by w, k sequences of o output tokens, n sequences at w, and a step of b + c × n + a × KV:

- prefill = T_pre(s − h behind h).
- stall = prefill × those who stand still meanwhile: half the n sequences of w, and half of what the mean
  worker has, now or over the last second, since time that is lost is lost to those who come later, too. In a
  barrier group all of its sequences; on a worker that only prefills, the prompts that wait there.
- wait = T_pre of what is queued there and not cached, less what the first of the queue has had of it; and
  how much later than all of this its first output is already: an engine that hangs is left alone after a
  moment, whatever was measured of it.
- transfer = of the s − h tokens from the worker that prefilled them.
- decode = o × b. Answers are expected to be as long as those to the same key portion, else to requests alike.
- company = o × (c × n + a × KV + growth), growth = c × k + a × (s + k × o / 2).
- slowdown = growth × min(tokens that the residents still write, n × o).
- overflow, in place of slowdown, in a barrier group of N sequences: N × (its step after − the slowest step of
  the group)⁺ × min(o, `horizon_steps`); decode then is o × that slowest step.
- crowding: with too few free slots, or too little free KV, a share of the residents has to end first; they
  end evenly over twice their mean rest. Of KV that share is what is expected beyond the capacity, over KV,
  where the residents, and this request with all of its output, vary by KV / √n: an engine that runs out of
  KV preempts the one that came last.
- eviction = T_pre of what is evicted for it × the share of prompt tokens that is found cached at all.
- copy, at a worker that holds the whole key portion: what requests still to come will lose because no other
  worker gets it. rate × (wait + prefill + decode + company) × excess / 2, with the rate at which the portion
  is asked for, and the excess of wait + decode + company + slowdown + overflow over the least of these at a
  worker that does not hold it.
- lateness = (first output − `deadline`)⁺, once more.

The lowest cost wins, ties by hash. Reason `prefix` if that worker holds as much as any, `copy` if another
one holds at least 16 tokens more, `least_cost` if nobody holds anything.

Example: Mistral-7B on A6000, 8 workers in a barrier group with 16 sequences each, a prompt of 23,000 tokens.
21,000 of them cached save 3.8 s of prefill, of 4.2 s. At the worker with the slowest step, and for 43 output
tokens, the group waits 27 s in all; where 18,000 tokens fit below the slowest step, 5.9 s; for 4 output
tokens, 2.5 s. So short answers follow the cache, and long ones the gap, unless more than six prompts stand
still for the prefill.

Pairs: `pair_candidates` workers of the lowest cost are looked at on each side, and as many of those that hold
most of the prompt. cost(p, d) = cost of the prefill at p + transfer from p to d + cost of the decode at d.

Where requests wait for slots, the oldest is placed first, each where it costs least. In a barrier group with
more of them than free slots, those go first to whom a cache saves more than the overflow costs; the others
in rounds of `balance_route_0` with its defaults, whose reasons they carry.

**Parameters.**

- `horizon_steps` (default 80; allowed: a whole number from 1 to 100,000): steps after which an overflow has
  levelled out, because others come and go. As H in `balance_route_h`.
- `pair_candidates` (default 8; allowed: a whole number from 1 to 256): see pairs.
- `stats_max_age_s` (default 3; allowed: a number from 0 to 60): a scrape older than this is not used.

**Use it when** workloads are mixed, or change: it follows prefixes while that pays, spreads what shares
nothing, and keeps a barrier group even.

**Not when** one number is all that counts, and another policy counts it: it costs two to five times as much
per pick as those.

**Absent data.** `step` None at one candidate: the prior of `least_work` over capacity for all, and the reason
begins with `uncalibrated:`. No prompt or no index: nothing is held. `transfers` of none measured: 0; of some:
the mean of those for the others. `kv_capacity_tokens` or `free_slots` None: never crowded, nothing evicted.
`deadline` None: never late. `barrier_group` None: the worker steps alone. Answers that come in one piece do
not show when their prefill is over: they are taken to be prefilled one after the other, as fast as the
coefficients say, and a worker that hangs with them is noticed only by how many it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from router.core.cost import Demand
from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.prefix_portion import Portion
from router.core.prefixes import Prefixes
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies import balance_route_0
from router.policies.balance_route_0 import BalanceRoute0
from router.policies.following import FollowsPrefixes
from router.policies.guard import BLOCK_TOKENS
from router.policies.joint_bill import Bill
from router.policies.joint_draft import Draft, drafts_of
from router.policies.joint_memory import Memory
from router.policies.joint_pairs import PairBill
from router.policies.joint_round import in_order, slots_suffice, to_caches
from router.policies.joint_terms import Ask
from router.policies.spec import PolicySpec, number, whole
from router.policies.table import drawn_table

_CACHE_CANDIDATES = 16
"""Of those who wait for a barrier group, how many are asked whether a cache is worth more than a gap."""


@dataclass(frozen=True, slots=True)
class Parameters:
    horizon_steps: int = whole(80, 1, 100_000)
    pair_candidates: int = whole(8, 1, 256)
    stats_max_age_s: float = number(3, 0, 60)


@dataclass(slots=True)
class Joint(FollowsPrefixes):
    """See the docstring of this file."""

    params: Parameters
    seed: int
    producers: Prefixes | None = field(default=None, repr=False, compare=False)
    """What the workers hold that prefill for this pool, where it chooses them, too."""
    memory: Memory = field(init=False, default_factory=Memory, repr=False, compare=False)
    rounds: BalanceRoute0 = field(init=False, repr=False, compare=False)
    """Fills the gaps of barrier groups, where requests wait for slots."""

    def __post_init__(self) -> None:
        self.rounds = BalanceRoute0(balance_route_0.Parameters(), self.seed)

    def bind_producers(self, prefixes: Prefixes | None) -> None:
        """Asks these about prefixes of prefill workers from now on."""
        self.producers = prefixes

    # --- one worker ------------------------------------------------------------------------------------

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        bill = self._bill(request, workers, now)
        index, cost = bill.cheapest(self.seed)
        return Choice(request.id, workers[index].name, cost=cost, reason=bill.reason(index))

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        bill = self._bill(request, workers, now)
        rows = [
            Row(worker=w.name, terms=bill.named(index), total=bill.cost(index), reason=bill.reason(index))
            for index, w in enumerate(workers)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _bill(self, request: Request, workers: Sequence[WorkerView], now: float) -> Bill:
        return Bill(self._ask(request, workers[0].role), workers, self.memory, self.prefixes, now)

    def _ask(self, request: Request, role: Role) -> Ask:
        """What the request wants of workers of this role."""
        portion = self._portion(request)
        key = None if portion is None else portion.key
        output = 0.0
        if not (request.split and role is Role.PREFILL):
            output = self.memory.output_tokens(request, key)
        return Ask(
            request=request,
            demand=Demand(request.prompt_tokens, output, request.sequences),
            prefills=request.handover is None and not (request.split and role is Role.DECODE),
            key=key,
            key_tokens=0 if portion is None else portion.tokens,
            horizon_steps=self.params.horizon_steps,
            stats_max_age_s=self.params.stats_max_age_s,
        )

    def _portion(self, request: Request) -> Portion | None:
        return None if self.prefixes is None else self.prefixes.portion(request)

    # --- two workers -----------------------------------------------------------------------------------

    def pick_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Choice:
        if request.handover is not None or not request.split:
            one = self.pick(request, decodes, now)
            whole_at = one.worker if request.handover is None else prefills[0].name
            return structs.replace(one, prefill_worker=whole_at)
        bill = self._pair_bill(request, prefills, decodes, now)
        pair = bill.cheapest(request, self.seed)
        prefill, decode = bill.names(pair)
        reason = bill.prefill.reason(pair.prefill)
        return Choice(request.id, decode, prefill_worker=prefill, cost=pair.cost, reason=reason)

    def explain_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Table:
        if request.handover is not None or not request.split:
            table = self.explain(request, decodes, now)
            producer = None if request.handover is None else prefills[0].name
            rows = [structs.replace(row, prefill_worker=producer or row.worker) for row in table.rows]
            return structs.replace(table, rows=rows)
        bill = self._pair_bill(request, prefills, decodes, now)
        rows = []
        for pair in bill.pairs:
            prefill, decode = bill.names(pair)
            reason = bill.prefill.reason(pair.prefill)
            rows.append(
                Row(
                    worker=decode,
                    prefill_worker=prefill,
                    terms=bill.named(pair),
                    total=pair.cost,
                    reason=reason,
                )
            )
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _pair_bill(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> PairBill:
        first = Bill(self._ask(request, Role.PREFILL), prefills, self.memory, self.producers, now)
        second = Bill(self._ask(request, Role.DECODE), decodes, self.memory, self.prefixes, now)
        return PairBill(first, second, self.params.pair_candidates)

    # --- many requests, where they wait for slots ------------------------------------------------------

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        """A round over all that wait, oldest first."""
        if not waiting or not workers:
            return ()
        drafts = drafts_of(workers)

        def price(request: Request, offered: Sequence[Draft]) -> Bill:
            return self._bill(request, offered, now)

        declared = any(draft.barrier_group is not None for draft in drafts)
        if not declared or slots_suffice(waiting, drafts):
            return list(in_order(waiting, drafts, price, self.seed))
        cached: list[Choice] = []
        if not self.rounds.overtakings.aged(waiting[0], now):
            held = [one for one in waiting[:_CACHE_CANDIDATES] if self.matched(one).longest >= BLOCK_TOKENS]
            cached.extend(to_caches(held, drafts, price, self.seed))
        placed = {choice.request_id for choice in cached}
        rest = [request for request in waiting if request.id not in placed]
        return [*cached, *self.rounds.admit(rest, [d for d in drafts if d.free_slots != 0], now)]

    # --- learning --------------------------------------------------------------------------------------

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        held = self.matched(request).on(choice.worker)
        shown = request.handover is None and (request.stream or request.split)
        if choice.prefill_worker is not None and request.handover is None and request.split:
            known = self.producers.matched(request).on(choice.prefill_worker) if self.producers else 0
            self.memory.placed(request, choice.prefill_worker, known, now, shown=shown)
        else:
            self.memory.placed(request, choice.worker, held, now, shown=shown)
        if not retry:
            self.rounds.committed(request, choice, now, retry=False)
            portion = self._portion(request)
            self.memory.asked(request, None if portion is None else portion.key, held, now)

    def started(self, lease: Lease, now: float) -> None:
        self.memory.started(lease)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        self.memory.ended(lease, outcome, now)


SPEC = PolicySpec(
    name="joint",
    factory=Joint,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="seconds of delay, of all whom the request affects",
    page=__doc__,
)
