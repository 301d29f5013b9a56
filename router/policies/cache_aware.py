"""The holder of the longest prefix takes the request, unless it is too far ahead; else the least loaded does.

**Source.** The cache-aware routing of SGLang's router, whose names the parameters keep, with what its users
found since: the guard looks at the worker in question and not at the whole fleet, all holders of a prefix are
compared, and a miss goes by load and not to the worker with the smallest tree. The threshold of one half is
also Preble's (arXiv 2407.00023): follow when more is saved than could be balanced.

**Inputs.** The prompt of the request, its `prompt_tokens` and `max_tokens`; what each worker is believed to
hold of it, by the prefix index of the pool; `in_flight`, `capacity`, `warmup` of each worker, and for the
guard in seconds what `least_work` reads.

**Formula.**

- load(w) = (in_flight + 1) × warmup / capacity, in requests.
- A holder is a worker that holds more than `cache_threshold` of the prompt. Of 23,000 tokens with 21,013 of
  them held, that is 0.91; a system prompt of 13 tokens is no reason to go anywhere.
- Guard in requests: a holder is open while load ≤ max(least + `balance_abs_threshold`, least ×
  `balance_rel_threshold`), least being the lowest load of all. Of the open holders, those within 16 tokens of
  the longest prefix are equal, as engines cache whole blocks; of these the least loaded wins. Reason
  `prefix`, cost = load.
- No holder: the least loaded worker, reason `least_load`. Holders, but none is open: the same, reason
  `overflow`. It will hold the prefix too from then on, so a hot prefix is copied to as many workers as it
  needs.
- Loads within an eighth above the lowest are equal to it, and among the holders of one prefix those within
  a half. What is in flight is a glance; what a worker holds tells how many conversations will come back.
- Guard in seconds: cost(w) = that of `least_work` − saved(w) × warmup, in seconds. saved = what it takes to
  prefill the held tokens (for holders only), and the tokens that the prompts waiting at w are believed to
  find there. The lowest wins: a prefix is followed when the seconds that it saves exceed the extra wait.
- Of equal workers, the one that holds the fewest tokens in all; then by hash. One that holds less than half
  the mean came lately, so what it holds tells nothing: it counts as the mean of the others.

**Parameters.**

- `cache_threshold` (default 0.5; allowed: a number from 0 to 1): share of the prompt above which its prefix
  is followed. From 0.25 to 0.75 it hardly matters; at 0.1 a shared system prompt draws everything to one
  worker, at 0.9 documents are followed no more once the question is a tenth of the prompt.
- `balance_abs_threshold` (default 8; allowed: a number from 0 to 1,000,000): requests above the least loaded
  that a holder may have.
- `balance_rel_threshold` (default 1.5; allowed: a number from 1 to 1,000,000): or so many times its load.
- `guard` (default auto; allowed: auto or requests or seconds): unit of the guard; auto is seconds once
  every candidate is calibrated, and requests before. The two thresholds are for requests: whoever sets one
  of them gets requests, unless `guard` is set, too.
- `max_tree_size` (default 67108864; allowed: a whole number from 1,000 to 100,000,000,000): bytes of text
  that one worker is believed to hold, whatever fits into its KV.
- `eviction_interval_s` (default 120; allowed: a number from 0 to 86,400): between two evictions down to it.

Pure affinity is `cache_threshold` 0 with both thresholds at 1,000,000; affinity by threshold alone keeps
`cache_threshold`. The flags `--cache-threshold`, `--balance-abs-threshold`, `--balance-rel-threshold`,
`--max-tree-size` and `--eviction-interval-secs` set these parameters, with the meaning that they have in
SGLang's router: it takes both thresholds to be outside. Its defaults are 0.3, 64, 1.5, 67108864 and 120.

**Use it when** prompts share long beginnings: documents, tools, conversations, parallel samples. Workers then
hold different prefixes, and the caches of the pool add up.

**Not when** prompts share little, where it is `least_requests` with more to compute, or on a decode pool,
where a prefix only saves a part of the transfer.

**Absent data.** No prompt (embeddings, audio), or no index: as `least_requests`, reason `no_prompt`. A worker
that the index does not trust holds nothing. `step` None with the guard in seconds: the prior of `least_work`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.prefix_match import Match
from router.core.prefix_settings import TreeBound
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies import least_work
from router.policies.following import FollowsPrefixes
from router.policies.guard import BLOCK_TOKENS, highest_load
from router.policies.least_work import PRIOR, LeastWork, steps_of
from router.policies.load import least, request_loads
from router.policies.queued_hits import QueuedHits
from router.policies.spec import PolicySpec, number, whole, word
from router.policies.table import drawn_table, request_terms

_EVEN, _EVEN_HOLDERS = 1 / 8, 1 / 2
"""Differences of load that decide nothing. With none, of 40 conversations that begin at once under one system
prompt 12 end at one of four workers; with these, 10 or 11."""
_THRESHOLDS = frozenset({"balance_abs_threshold", "balance_rel_threshold"})


@dataclass(frozen=True, slots=True)
class Parameters:
    cache_threshold: float = number(0.5, 0, 1)
    balance_abs_threshold: float = number(8, 0, 1_000_000)
    balance_rel_threshold: float = number(1.5, 1, 1_000_000)
    guard: str = word("auto", "requests", "seconds")
    max_tree_size: int = whole(67_108_864, 1_000, 100_000_000_000)
    eviction_interval_s: float = number(120, 0, 86_400)


class _Compared(msgspec.Struct, frozen=True):
    """What decides between the workers.

    Attributes:
        costs: of each.
        reason: for which the lowest one wins.
        among: indices that are compared; None: all.
        held: where it decides the reason, tokens of the prompt at each.
    """

    costs: Sequence[float]
    reason: str
    among: Sequence[int] | None = None
    held: Sequence[int] | None = None

    def reason_of(self, index: int) -> str:
        """Why a worker would be chosen if it were."""
        return "overflow" if self.held is not None and not self.held[index] else self.reason


@dataclass(slots=True)
class CacheAware(FollowsPrefixes):
    """See the docstring of this file."""

    params: Parameters
    seed: int
    work: LeastWork = field(init=False, repr=False)
    queued_hits: QueuedHits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.work = LeastWork(least_work.Parameters(), self.seed)
        self.queued_hits = QueuedHits()

    @property
    def tree_bound(self) -> TreeBound:
        """As its parameters say."""
        return TreeBound(self.params.max_tree_size, self.params.eviction_interval_s)

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        compared = self._compare(request, workers, now)
        index = self._least(request, workers, compared)
        return Choice(
            request.id, workers[index].name, cost=compared.costs[index], reason=compared.reason_of(index)
        )

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        compared = self._compare(request, workers, now)
        among = range(len(workers)) if compared.among is None else frozenset(compared.among)
        queued = self.queued_hits.tokens(workers)
        held = self.matched(request)
        stored = self.prefixes.held_tokens(workers) if self.prefixes is not None else [0.0] * len(workers)
        order = _grown(stored)
        rows = [
            Row(
                worker=w.name,
                total=cost,
                terms={
                    "prompt_tokens": held.prompt_tokens,
                    "cached_tokens": held.on(w.name),
                    "stored_tokens": stored[index],
                    "queued_hit_tokens": queued[index],
                    **request_terms(w),
                },
                tier=0 if index in among else 1,
                order=order[index],
                reason=compared.reason_of(index) if index in among else "not among the open holders",
            )
            for index, (w, cost) in enumerate(zip(workers, compared.costs, strict=True))
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _compare(self, request: Request, workers: Sequence[WorkerView], now: float) -> _Compared:
        prefixes = self.prefixes
        if prefixes is None or request.key is None:
            return _Compared(request_loads(workers), "no_prompt")
        held = self._held(self.matched(request), workers)
        if self._in_seconds(workers):
            costs = self._seconds(request, workers, held, now)
            if any(held):
                return _Compared(costs, "prefix", held=held)
            return _Compared(_evened(costs, _EVEN), "least_load")
        loads = request_loads(workers)
        if not any(held):
            return _Compared(_evened(loads, _EVEN), "least_load")
        params = self.params
        highest = highest_load(loads, params.balance_abs_threshold, params.balance_rel_threshold)
        longest = max([tokens for tokens, load in zip(held, loads, strict=True) if load <= highest])
        if not longest:
            return _Compared(_evened(loads, _EVEN), "overflow")
        enough = max(longest - BLOCK_TOKENS, 1)
        best = [
            index
            for index, tokens in enumerate(held)
            if tokens and tokens >= enough and loads[index] <= highest
        ]
        return _Compared(_evened(loads, _EVEN_HOLDERS, best), "prefix", best)

    def _held(self, match: Match, workers: Sequence[WorkerView]) -> list[int]:
        """Tokens of the prompt at each worker, 0 where they are too few to go there for."""
        few = self.params.cache_threshold * match.prompt_tokens
        tokens = match.tokens
        if not tokens or max(tokens.values()) <= few:
            return [0] * len(workers)
        held = [tokens.get(w.name, 0) for w in workers]
        return [n if n > few else 0 for n in held]

    def _in_seconds(self, workers: Sequence[WorkerView]) -> bool:
        guard = self.params.guard
        if guard != "auto":
            return guard == "seconds"
        return workers[0].step is not None and steps_of(workers) is not None

    def _seconds(
        self, request: Request, workers: Sequence[WorkerView], held: Sequence[int], now: float
    ) -> list[float]:
        """The work that each would have with it, less what its prefix and the queued ones save."""
        costs = self.work.costs(request, workers, now)
        steps, queued = steps_of(workers), self.queued_hits.tokens(workers)
        for index, tokens in enumerate(held):
            if tokens or queued[index]:
                worker, step = workers[index], steps[index] if steps else PRIOR
                saved_s = step.prefill_s(tokens) - step.prefill_base_s
                saved_s = (saved_s + step.prefill_per_token_s * queued[index]) * worker.warmup
                costs[index] -= saved_s if steps else saved_s / worker.capacity
        return costs

    def _least(self, request: Request, workers: Sequence[WorkerView], compared: _Compared) -> int:
        """Index of the lowest cost; of equals the one that holds the least, then by hash."""
        costs, among = compared.costs, compared.among
        lowest = min(costs) if among is None else min([costs[index] for index in among])
        if among is None and (self.prefixes is None or costs.count(lowest) == 1):
            return least(costs, workers, request, self.seed)
        tied = [index for index in among or range(len(costs)) if costs[index] == lowest]
        if len(tied) == 1 or self.prefixes is None:
            return tied[0]
        stored = _grown(self.prefixes.held_tokens(workers))
        views = [workers[index] for index in tied]
        return tied[least([stored[index] for index in tied], views, request, self.seed)]

    # --- learning ------------------------------------------------------------------------------------

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if request.key is not None:
            self.queued_hits.placed(request.id, choice.worker, self.matched(request).on(choice.worker))

    def started(self, lease: Lease, now: float) -> None:
        self.queued_hits.ended(lease)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        self.queued_hits.ended(lease)


def _grown(stored: Sequence[float]) -> list[float]:
    """With those that came lately, and so hold little, taken to hold as much as the others do."""
    half = sum(stored) / len(stored) / 2
    grown = [tokens for tokens in stored if tokens >= half]
    mean = sum(grown) / len(grown)
    return [tokens if tokens >= half else mean for tokens in stored]


def _evened(costs: Sequence[float], share: float, among: Sequence[int] | None = None) -> list[float]:
    """With all that are no more than so much above the lowest, of those that are compared, equal to it."""
    lowest = min(costs) if among is None else min([costs[index] for index in among])
    highest = lowest * (1 + share)
    return [lowest if lowest < cost <= highest else cost for cost in costs]


def _completed(given: Mapping[str, object]) -> Mapping[str, object]:
    """Whoever sets a threshold means it, calibrated or not."""
    if _THRESHOLDS.isdisjoint(given):
        return given
    return {"guard": "requests", **given}


SPEC = PolicySpec(
    name="cache_aware",
    factory=CacheAware,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="requests in flight, this one included, at capacity 1 (seconds with the guard in seconds)",
    page=__doc__,
    completed=_completed,
)
