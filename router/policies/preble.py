"""A prompt that is mostly cached goes to the cheapest of its holders, any other to the cheapest worker.

**Source.** Preble: E2 (exploitation and exploration), its load cost, rebalancing, prefix replication and the
pairing of prefills with decodes; Srivatsa et al., ICLR 2025, arXiv 2407.00023. The marginal decode charge,
the guards and the interval are ours.

**Inputs.** The prompt of the request, `prompt_tokens`, `max_tokens`, `sequences`; what each worker is
believed to hold of it and where its key portion ends, by the prefix index of the pool; `step`, `capacity`,
`warmup`, `in_flight`, `kv_tokens`, `kv_capacity_tokens`, `role` of each worker; and what this policy
dispatched within its window, with the outputs and waits that came of it. The key portion of a prompt is the
deepest part of it, between two places where prompts part, that is longer than all before it.

**Formula.** cached = the longest prefix that any candidate holds; missed = prompt_tokens − cached. Costs are
in seconds of GPU time, T_pre and step times by the worker's `step`:

- cost(w) = (L + M + P) × warmup, and / capacity where uncalibrated.
- L = over all requests sent to w within `window_s`: T_pre(missed there) + T_dec. T_dec = output tokens ×
  (step_base_s / N + step_per_sequence_s) + step_per_kv_token_s × Σ context; N = `operating_concurrency`, or 1
  with `decode_charge` single_stream, as in the paper. Then L is 40 to 20,000 times M and P, for decodes
  share their steps, and exploring means fewest requests sent. Output is the mean within the window of its
  key portion, then of the pool, then `expected_output_tokens`, never above `max_tokens`; once known, what
  it was.
- M = over the key portions used within the window that w would have to evict, least recently used first and
  those in use last: T_pre(its tokens) × the share of w's requests that hit it. 0 while what was used and the
  missed tokens fit into `kv_capacity_tokens`.
- P = T_pre(missed on w).
- Guard: a worker whose load of requests is above max(least + `balance_abs_threshold`, least ×
  `balance_rel_threshold`) is not sent any, as in `cache_aware`. Long decodes that began before the window
  are in no L.
- Exploit, if cached > missed: of the holders within 16 tokens of the longest prefix the lowest cost wins,
  reason `exploit`. Example: 23,000 tokens, 21,013 of them at worker 2 and 13 at all others. 1,987 are missed,
  worker 2 takes it and prefills them in 0.27 s on an A6000 with Mistral-7B; elsewhere it would be 4.2 s.
- Rebalance: if L of that worker is more than `rebalance_threshold` × the lowest L, the worker of the lowest
  takes it and so gets a copy, reason `rebalance`; unless the gap between the two is not twice what the copy
  costs, so that it would end up as the heavier one. That matters only while the window is young. The paper
  asks this of the heaviest worker, its code then of the next one, and so on.
- Replicate: if the mean wait for the first output of this key portion at that worker is in the newer half of
  the window `replicate_factor` × that of the older one, and has grown by more than a copy costs, the lowest
  cost among those that do not hold it wins, reason `replicate`. From then on E2 splits its requests by load.
- Both copy a key portion at most once in `copy_interval_s`, so that the first copy takes effect before the
  next is made.
- Explore otherwise: the lowest cost of those that are no further ahead than a quarter of the guard, for
  nothing is to be had at a busier worker, and what runs now is truer than what was sent. Reason `explore`;
  `overflow` when there were holders but the guard held all of them. With `pairing` on, only workers of role
  both whose decode seconds are above `decode_share` of L and whose KV is used below `kv_share` are compared,
  if there are any (those hardly ahead before others), reason `pair`: their compute idles. Prompts that miss
  more than 2 × `chunk_tokens` there are not paired, since they would hold up those decodes.
- Ties by hash.

The paper's code also waits for 50 requests per worker before it rebalances; this policy does not.

Local priority groups: where the slots of the workers are known (or `max_dispatched` of the pool is set),
requests beyond that wait in the router, by worker, and start by group. group = floor(10 × cached / prompt
tokens) there and then, of what was sent to that worker. In a round each group g starts up to g + 1 of its
oldest, the highest first: of 55 starts the groups get 10, 9, … 1. Whoever waited `local_queue_ageing_s`
goes first. `local_queue: off` of the pool sends everything at once.

**Parameters.**

- `window_s` (default 180; allowed: a number from 1 to 3,600): H. Longer is somewhat better.
- `rebalance_threshold` (default 1.5; allowed: a number from 1 to 1,000): Th_bal. Results are insensitive to
  it.
- `rebalancing` (default on; allowed: on or off): see rebalance. Off it is E2 alone; a threshold cannot say
  so, since the lowest L may be 0.
- `copy_interval_s` (default 10; allowed: a number from 0 to 3,600): see rebalance and replicate.
- `replicate_factor` (default 2; allowed: a number from 1 to 1,000): see replicate.
- `decode_charge` (default marginal; allowed: marginal or single_stream): see L.
- `operating_concurrency` (default 100; allowed: a whole number from 1 to 4,096): N, as in `least_work`.
- `expected_output_tokens` (default 200; allowed: a whole number from 1 to 1,000,000): per sequence, until
  outputs are seen.
- `pairing` (default on; allowed: on or off): see explore.
- `decode_share` (default 0.8; allowed: a number from 0 to 1): see explore.
- `kv_share` (default 0.85; allowed: a number from 0 to 1): see explore.
- `chunk_tokens` (default 1024; allowed: a whole number from 1 to 1,000,000): tokens that the engines prefill
  per step.
- `balance_abs_threshold` (default 8; allowed: a number from 0 to 1,000,000): see guard.
- `balance_rel_threshold` (default 1.5; allowed: a number from 1 to 1,000,000): see guard.
- `max_window_requests` (default 100000; allowed: a whole number from 100 to 10,000,000): bound of the
  window's memory, about a kilobyte each.

**Use it when** long prompts share documents or tools, and their popularity is uneven.

**Not when** outputs are long against prompts, where the choice hardly matters, or traffic comes in bursts
much shorter than the window: it balances what was sent, not what waits. `cache_aware` then does as well.
Nor where workers come and go: one that comes back catches up on what the others were sent meanwhile, and so
runs some more than they do for a while.

**Absent data.** No prompt or no index: nothing is cached, and the lowest cost wins, reason `no_prompt`.
`step` None at one candidate: the prior of `least_work` for all. `kv_capacity_tokens` None: M = 0, and no
pairing there. Without streams no waits are known, and nothing is replicated. A retry is not counted again,
unless its first try was never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.local_queue import Order
from router.core.policy import Choice
from router.core.prefix_match import Match
from router.core.prefix_portion import Portion
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.following import FollowsPrefixes
from router.policies.guard import BLOCK_TOKENS, highest_load
from router.policies.load import least, request_loads
from router.policies.preble_bill import Bill, Charge
from router.policies.preble_window import Dispatch, Window
from router.policies.spec import PolicySpec, number, whole, word
from router.policies.table import drawn_table, request_terms

_NEAR = 1 / 4
"""Of the guard: how far ahead a worker may be that explores."""
_COPIES = frozenset({"rebalance", "replicate"})


@dataclass(frozen=True, slots=True)
class Parameters:
    window_s: float = number(180, 1, 3600)
    rebalance_threshold: float = number(1.5, 1, 1000)
    rebalancing: str = word("on", "off")
    copy_interval_s: float = number(10, 0, 3600)
    replicate_factor: float = number(2, 1, 1000)
    decode_charge: str = word("marginal", "single_stream")
    operating_concurrency: int = whole(100, 1, 4096)
    expected_output_tokens: int = whole(200, 1, 1_000_000)
    pairing: str = word("on", "off")
    decode_share: float = number(0.8, 0, 1)
    kv_share: float = number(0.85, 0, 1)
    chunk_tokens: int = whole(1024, 1, 1_000_000)
    balance_abs_threshold: float = number(8, 0, 1_000_000)
    balance_rel_threshold: float = number(1.5, 1, 1_000_000)
    max_window_requests: int = whole(100_000, 100, 10_000_000)


@dataclass(frozen=True, slots=True)
class _Question:
    """One request before its candidates.

    Attributes:
        held: tokens of its prompt at each worker.
        open: indices of the workers within the guard, never none.
        near: those of them that are hardly ahead of the least loaded, never none.
    """

    request: Request
    workers: Sequence[WorkerView]
    held: Sequence[int]
    missed: Sequence[int]
    open: Sequence[int]
    near: Sequence[int]
    bill: Bill
    now: float


class _Found(NamedTuple):
    """The index of a worker, the best of those in `among`, and why these."""

    chosen: int
    cost: float
    reason: str
    among: Sequence[int]


@dataclass(slots=True)
class Preble(FollowsPrefixes):
    """See the docstring of this file."""

    local_order: ClassVar[Order] = Order.PRIORITY_GROUPS

    params: Parameters
    seed: int
    window: Window = field(init=False, repr=False)
    charge: Charge = field(init=False, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        self.window = Window(params.window_s, params.max_window_requests)
        alone = params.decode_charge == "single_stream"
        self.charge = Charge(
            1 if alone else params.operating_concurrency, unknown_tokens=params.expected_output_tokens
        )

    # --- choosing ------------------------------------------------------------------------------------

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        _, found = self._find(request, workers, now)
        return Choice(request.id, workers[found.chosen].name, cost=found.cost, reason=found.reason)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        question, found = self._find(request, workers, now)
        bill = question.bill
        rows = [
            Row(
                worker=w.name,
                total=bill.cost(index),
                terms={
                    **bill.terms(index),
                    "cached_tokens": question.held[index],
                    "missed_tokens": question.missed[index],
                    **request_terms(w),
                },
                tier=0 if index in found.among else 1,
                reason=found.reason if index in found.among else self._why_not(question, index),
            )
            for index, w in enumerate(workers)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    @staticmethod
    def _why_not(question: _Question, index: int) -> str:
        return "not compared" if index in question.open else "ahead of the guard"

    def _find(self, request: Request, workers: Sequence[WorkerView], now: float) -> tuple[_Question, _Found]:
        match, portion = self._known(request)
        question = self._question(request, workers, match, now)
        question.bill.keep(None if portion is None else portion.key)
        longest = max(question.held)
        if longest * 2 > match.prompt_tokens:
            enough = max(longest - BLOCK_TOKENS, match.prompt_tokens // 2 + 1)
            holders = [index for index in question.open if question.held[index] >= enough]
            if holders:
                return question, self._exploit(question, holders, portion)
            return question, self._explore(question, question.near, "overflow")
        paired = self._decoding(question)
        if paired:
            return question, self._explore(question, paired, "pair")
        reason = "no_prompt" if self.prefixes is None or request.key is None else "explore"
        return question, self._explore(question, question.near, reason)

    def _known(self, request: Request) -> tuple[Match, Portion | None]:
        return self.matched(request), None if self.prefixes is None else self.prefixes.portion(request)

    def _question(
        self, request: Request, workers: Sequence[WorkerView], match: Match, now: float
    ) -> _Question:
        params, tokens = self.params, match.tokens
        held = [tokens.get(w.name, 0) for w in workers] if tokens else [0] * len(workers)
        missed = [match.prompt_tokens - n for n in held]
        loads = request_loads(workers)
        highest = highest_load(loads, params.balance_abs_threshold, params.balance_rel_threshold)
        nearly = highest_load(
            loads, params.balance_abs_threshold * _NEAR, 1 + (params.balance_rel_threshold - 1) * _NEAR
        )
        return _Question(
            request=request,
            workers=workers,
            held=held,
            missed=missed,
            open=[index for index, load in enumerate(loads) if load <= highest],
            near=[index for index, load in enumerate(loads) if load <= nearly],
            bill=Bill(self.window, self.charge, workers, missed, now),
            now=now,
        )

    def _explore(self, question: _Question, among: Sequence[int], reason: str) -> _Found:
        index, cost = question.bill.cheapest(among, question.request, self.seed)
        return _Found(index, cost, reason, among)

    def _exploit(self, question: _Question, holders: Sequence[int], portion: Portion | None) -> _Found:
        index, cost = question.bill.cheapest(holders, question.request, self.seed)
        others = [other for other in question.open if other not in holders]
        if others and portion is not None and self._may_copy(portion, question.now):
            copy = self._rebalance(question, others, index, cost) or self._replicate(
                question, others, index, portion
            )
            if copy is not None:
                return copy
        return _Found(index, cost, "exploit", holders)

    def _may_copy(self, portion: Portion, now: float) -> bool:
        return not self.window.copied_since(portion.key, now - self.params.copy_interval_s)

    def _rebalance(
        self, question: _Question, others: Sequence[int], holder: int, cost: float
    ) -> _Found | None:
        bill, loads = question.bill, question.bill.loads
        lowest = min(loads)
        if self.params.rebalancing == "off" or loads[holder] <= self.params.rebalance_threshold * lowest:
            return None
        loads_of_others = [loads[other] for other in others]
        views = [question.workers[other] for other in others]
        lightest = others[least(loads_of_others, views, question.request, self.seed)]
        cost_there = bill.cost(lightest)
        gap_s = loads[holder] - loads[lightest]
        copy_s = cost_there - cost + gap_s  # what M and P are above those of the holder
        if loads[lightest] > lowest or gap_s <= 2 * copy_s:
            return None
        return _Found(lightest, cost_there, "rebalance", (lightest,))

    def _replicate(
        self, question: _Question, others: Sequence[int], holder: int, portion: Portion
    ) -> _Found | None:
        waits_s = self.window.waits_s(portion.key, question.workers[holder].name, question.now)
        if waits_s is None:
            return None
        older, newer = waits_s
        copy_s = question.bill.prefill_s(holder, portion.own_tokens)
        if newer < self.params.replicate_factor * older or newer - older <= copy_s:
            return None
        return self._explore(question, others, "replicate")

    def _decoding(self, question: _Question) -> list[int]:
        """Those of the open workers that mostly decode, have room for KV, and are not held up by this one."""
        params = self.params
        if params.pairing == "off":
            return []
        longest = 2 * params.chunk_tokens
        paired = [
            index
            for index in question.open
            if question.missed[index] <= longest
            and question.bill.decode_share(index) > params.decode_share
            and _has_room(question.workers[index], params.kv_share)
        ]
        return [index for index in paired if index in question.near] or paired

    # --- learning ------------------------------------------------------------------------------------

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if retry and self.window.knows(request.id):
            return
        match, portion = self._known(request)
        self.window.add(
            Dispatch(
                id=request.id,
                at=now,
                worker=choice.worker,
                key=None if portion is None else portion.key,
                own_tokens=0 if portion is None else portion.own_tokens,
                missed_tokens=match.prompt_tokens - match.on(choice.worker),
                prompt_tokens=match.prompt_tokens,
                sequences=request.sequences,
                output_tokens=self._expected_tokens(request, portion),
            ),
            now,
        )
        if portion is not None and choice.reason in _COPIES:
            self.window.copied(portion.key, now)

    def started(self, lease: Lease, now: float) -> None:
        if lease.streamed or lease.prefill_only:
            self.window.started(lease.request.id, lease.worker, now - lease.granted, now)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        ok = outcome is Outcome.OK
        if ok or lease.answered:
            self.window.ended(lease.request.id, lease.worker, lease.generated_tokens, whole=ok)
        else:
            self.window.withdraw(lease.request.id, lease.worker)

    def _expected_tokens(self, request: Request, portion: Portion | None) -> int | None:
        """Of all sequences: 0 when another worker decodes it, None when only the mean of all is known."""
        if request.split:
            return 0
        own = self.window.mean_tokens_of(None if portion is None else portion.key)
        mean = own if own is not None else self.window.mean_tokens
        if mean is None:
            mean = self.params.expected_output_tokens
        if request.max_tokens is not None and request.max_tokens < mean:
            own = request.max_tokens
        return None if own is None else max(round(own), 1) * request.sequences


def _has_room(worker: WorkerView, share: float) -> bool:
    capacity = worker.kv_capacity_tokens
    return worker.role is Role.BOTH and capacity is not None and worker.kv_tokens < share * capacity


SPEC = PolicySpec(
    name="preble",
    factory=Preble,
    parameters=Parameters,
    roles=frozenset({Role.BOTH, Role.PREFILL}),
    cost_unit="seconds of GPU time, of the window and of this request",
    page=__doc__,
)
