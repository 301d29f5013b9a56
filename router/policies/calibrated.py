"""The worker where the request costs least takes it: seconds until it is done, and seconds that it costs
those who are there.

**Source.** "Calibrate then route", arXiv 2609.16206: marginal completion time as the cost of a placement,
with constants that were measured on the very fleet. The paper gives the shape of its sum and neither the
weights nor how a backlog is normalised; those values, the physical form and the fallbacks are ours.

**Inputs.** `step`, `residents`, `kv_tokens`, `kv_capacity_tokens`, `sequences`, `free_slots`,
`queued_tokens`, `remaining_tokens`, `in_flight`, `transfers`, `warmup`, `capacity`, `role` and
`stats.waiting` of each worker; `prompt_tokens`, `max_tokens`, `sequences` and `slo` of the request, and the
mean output of finished ones like it. With `prefixes` yes, also who holds its prefix.

**Formula.** All in seconds. n, KV and rem are sequences, KV tokens and remaining output of a worker; p, o and
s prompt, expected output and sequences of the request; h what is cached of p; b, c, a the base, per-sequence
and per-KV-token time of a step.

Physical form (the default):

- prefill = c0 + c1 × (p − h) + c2 × (p − h) × (p + h), after the prefills that are queued there;
- decode = o × step_after, step_after = b + c × (n + s) + a × (KV + p + s × o / 2), after the time until p
  fits into the KV and s sequences into the slots, as those who are there end in the order of what they have
  left, and after the transfer of the KV where it comes from another worker;
- slowdown of others = (c × s + a × (p + s × o / 2)) × Σ min(rem of each, o). That they share their steps
  with its prefill is left out: charged in full, it drives long prompts together, onto the few workers that
  decode little, and fewer requests meet their targets;
- cost = (σ × (waits + prefill + decode) + `resident_weight` × slowdown) × warmup. A prefill worker is
  charged the prefill alone, a decode worker the decode alone, a worker of role both their sum.

Paper's form:

- cost = (`backlog_weight` × backlog × σ + `size_weight` × size × σ + `queue_weight_s` × queue) × warmup;
- backlog = seconds of queued prefills, and τ × Σ rem / N: decode is batched, so the plain sum would count
  every second N times. N is the operating concurrency, a constant, and τ the time of a step there;
- size = prefill of p, and o × τ × (1 + `pressure_weight` × max(0, press − 0.7)), where press is KV use over
  the capacity once all of the request is there; queue is requests in flight.

In both forms σ is `tight_sigma` for requests of the class `tight` and 1 for others, and a worker whose KV
would not hold the request (press above 1) is chosen only when all are like that. Ties are drawn by hash.

Fallbacks, the first that holds decides. Each shows as the `reason` of its choices, and so is counted in
`pointsman_policy_decisions_total`:

- `fallback:uncalibrated`, `fallback:wrong_constants`: a candidate has no coefficients, or those it had were
  given up because steps took less than half or more than twice as long. The fewest requests in flight win.
- `fallback:narrow_pool`: at most `narrow_workers` candidates, where counts say nearly all there is to say;
  `fallback:homogeneous`: prompts and outputs of the last 5 minutes both vary by less than `homogeneous_cv`.
  The fewest requests win, and of equal ones the shortest prefill. Prefill workers are still chosen by cost.
- `fallback:scarcity`: every candidate is above its KV, or none could begin within `tight_ttft_s`. The
  cheapest would get everything, so the less loaded of two drawn workers wins, until there was none for
  `scarcity_hold_s` (`fallback:scarcity_lately`).
- `fallback:concentration`: the cheapest had at least 8 and more than `concentration` / workers of the last 64
  picks. The cheaper of two drawn workers wins.

**Parameters.**

- `form` (default physical; allowed: physical or paper): which cost.
- `tight_sigma` (default 2; allowed: a number from 1 to 100): σ of the class `tight`.
- `resident_weight` (default 1; allowed: a number from 0 to 100): a second of others against one of its own.
- `backlog_weight` (default 1; allowed: a number from 0 to 100): of the paper's form.
- `size_weight` (default 1; allowed: a number from 0 to 100): of the paper's form.
- `queue_weight_s` (default 0.15; allowed: a number from 0.001 to 10): of the paper's form, seconds per
  request. Never 0: without it the constants alone decide, and they are never quite right.
- `pressure_weight` (default 1; allowed: a number from 0 to 100): of the paper's form.
- `operating_concurrency` (default 100; allowed: a whole number from 1 to 4,096): N, the batch an engine runs
  when it is well used; about its KV over the mean context.
- `tight_ttft_s` (default 0; allowed: a number from 0 to 600): 0: 2.5 × the prefill of a prompt at nine tenths
  of the last 5 minutes.
- `narrow_workers` (default 3; allowed: a whole number from 0 to 64): see above.
- `homogeneous_cv` (default 0.3; allowed: a number from 0 to 10): see above.
- `scarcity_hold_s` (default 30; allowed: a number from 0 to 3,600): see above.
- `concentration` (default 2; allowed: a number from 1 to 1,000): see above.
- `unknown_output_tokens` (default 200; allowed: a whole number from 1 to 1,000,000): output of a request that
  is like none before.
- `stats_max_age_s` (default 3; allowed: a number from 0 to 60): a scrape older than this is not used.
- `prefixes` (default no; allowed: no or yes): whether the pool keeps an index of prefixes for it.

**Use it when** requests differ much in length, there are more than three workers, and they are calibrated: by
`pointsman calibrate`, or by live traffic after some minutes. The paper reports 0.864 of requests within
their SLO, against 0.835 to 0.847 for round robin, least loaded and a length heuristic.

**Not when** prompts share long prefixes (`joint`, `preble` or `cache_aware`), or decode workers step together
(`balance_route_h`). The gain over `least_requests` is small at moderate load and none under scarcity.

**Absent data.** `step` None: the fallback above, for the whole pool, as seconds and counts do not compare.
KV capacity or slots None: there is room. `residents` unknown: as if all had the same left. A transfer that
was never measured takes as long as the mean of those that were. `stats` None or too old: the router's own
ledger alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from router.core.calibration import CalibrationState
from router.core.cost import Demand, prefill_own_s
from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.prefix_settings import TreeBound
from router.core.prefixes import Prefixes
from router.core.request import Request
from router.core.worker import Role, StepModel, WorkerView
from router.policies.calibrated_price import Ask, Offer, Price, Weights, paper, physical
from router.policies.ladder import Ladder, LadderSettings, Rung, two_of
from router.policies.least_work import steps_of
from router.policies.load import least, request_loads
from router.policies.output_length import OutputLengths
from router.policies.spec import PolicySpec, number, whole, word
from router.policies.table import drawn_table, request_terms

_MANY = 512
"""Requests in flight above which residents are priced by their sums: one by one takes up to half a
microsecond each."""
_TIGHT_TTFT = 2.5


@dataclass(frozen=True, slots=True)
class Parameters:
    form: str = word("physical", "paper")
    tight_sigma: float = number(2, 1, 100)
    resident_weight: float = number(1, 0, 100)
    backlog_weight: float = number(1, 0, 100)
    size_weight: float = number(1, 0, 100)
    queue_weight_s: float = number(0.15, 0.001, 10)
    pressure_weight: float = number(1, 0, 100)
    operating_concurrency: int = whole(100, 1, 4096)
    tight_ttft_s: float = number(0, 0, 600)
    narrow_workers: int = whole(3, 0, 64)
    homogeneous_cv: float = number(0.3, 0, 10)
    scarcity_hold_s: float = number(30, 0, 3600)
    concentration: float = number(2, 1, 1000)
    unknown_output_tokens: int = whole(200, 1, 1_000_000)
    stats_max_age_s: float = number(3, 0, 60)
    prefixes: str = word("no", "yes")


class _Compared(NamedTuple):
    """What decides between the workers.

    Attributes:
        costs: what is compared, of each.
        among: indices that are compared.
        reason: of whoever wins.
        orders: breaks ties of costs, before the hash does.
        prices: of each, where they were computed.
    """

    costs: Sequence[float]
    among: Sequence[int]
    reason: str
    orders: Sequence[float] | None = None
    prices: Sequence[Price] | None = None


@dataclass(slots=True)
class Calibrated:
    """See the docstring of this file."""

    params: Parameters
    seed: int
    ladder: Ladder = field(init=False)
    outputs: OutputLengths = field(init=False)
    weights: Weights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        p = self.params
        self.ladder = Ladder(
            LadderSettings(p.narrow_workers, p.homogeneous_cv, p.scarcity_hold_s, p.concentration)
        )
        self.outputs = OutputLengths(p.unknown_output_tokens)
        self.weights = Weights(
            p.backlog_weight,
            p.size_weight,
            p.queue_weight_s,
            p.pressure_weight,
            p.resident_weight,
            p.operating_concurrency,
        )

    # --- decisions -----------------------------------------------------------------------------------------

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        compared = self._compare(request, workers, now)
        index = self._least(compared, request, workers)
        return Choice(request.id, workers[index].name, cost=compared.costs[index], reason=compared.reason)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        compared = self._compare(request, workers, now)
        among, orders, prices = set(compared.among), compared.orders, compared.prices
        rows = [
            Row(
                worker=w.name,
                total=compared.costs[index],
                terms=request_terms(w) if prices is None else {**prices[index].terms, "warmup": w.warmup},
                tier=0 if index in among else None,
                order=0.0 if orders is None else orders[index],
                reason=compared.reason if index in among else _why_not(prices, index),
            )
            for index, w in enumerate(workers)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _least(self, compared: _Compared, request: Request, workers: Sequence[WorkerView]) -> int:
        costs, among, orders = compared.costs, compared.among, compared.orders
        if orders is not None:
            lowest = min([costs[n] for n in among])
            among = [n for n in among if costs[n] == lowest]
            costs = orders
        offered = [workers[n] for n in among]
        return among[least([costs[n] for n in among], offered, request, self.seed)]

    def _compare(self, request: Request, workers: Sequence[WorkerView], now: float) -> _Compared:
        """The first rung that holds, or the costs."""
        everybody = range(len(workers))
        steps = steps_of(workers)
        if steps is None:
            drifted = any(_drifted(w) for w in workers)
            rung = Rung.WRONG_CONSTANTS if drifted else Rung.UNCALIBRATED
            return _Compared(request_loads(workers), everybody, rung.value)
        ask = self._ask(request, workers, now)
        counts = self.ladder.by_counts(len(workers), now) if ask.decodes else None
        if counts is not None:
            return _Compared(
                request_loads(workers),
                everybody,
                counts.value,
                self._prefills_s(request, ask, workers, steps),
            )
        prices = self._prices(request, ask, workers, steps)
        scarce = self._scarce(ask, prices, steps)
        if scarce or self.ladder.scarce_lately(now):
            rung = Rung.SCARCITY if scarce else Rung.SCARCITY_LATELY
            return _Compared(request_loads(workers), two_of(workers, request, self.seed), rung.value)
        return self._cheapest(request, workers, prices)

    def _cheapest(
        self, request: Request, workers: Sequence[WorkerView], prices: Sequence[Price]
    ) -> _Compared:
        """By cost, among those that the request fits on; of two alone while one worker gets too many."""
        costs = [price.total for price in prices]
        fitting = [n for n, price in enumerate(prices) if price.fits] or range(len(prices))
        compared = _Compared(costs, fitting, self.params.form, prices=prices)
        winner = workers[self._least(compared, request, workers)]
        if not self.ladder.concentrated(winner.name, len(workers)):
            return compared
        offered = [workers[n] for n in fitting]
        two = sorted({fitting[n] for n in two_of(offered, request, self.seed)})
        return compared._replace(among=two, reason=Rung.CONCENTRATION.value)

    def _ask(self, request: Request, workers: Sequence[WorkerView], now: float) -> Ask:
        """What the workers, all of one side, would do of it."""
        output_tokens = self.outputs.expected(request)
        prefill_only = all(w.role is Role.PREFILL for w in workers)
        whole = request.handover is None and not request.split
        demand = Demand(request.prompt_tokens, output_tokens, request.sequences)
        decodes = not prefill_only and output_tokens > 0
        return Ask(
            demand,
            prefills=prefill_only or whole,
            decodes=decodes,
            mean_kv_tokens=demand.mean_kv_tokens,
            final_kv_tokens=demand.final_kv_tokens if decodes else request.prompt_tokens,
            sigma=self.params.tight_sigma if request.slo == "tight" else 1.0,
            now=now,
            fresh_from=now - self.params.stats_max_age_s,
            exact=sum([w.in_flight for w in workers]) <= _MANY,
        )

    def _prices(
        self, request: Request, ask: Ask, workers: Sequence[WorkerView], steps: Sequence[StepModel]
    ) -> list[Price]:
        price = physical if self.params.form == "physical" else paper
        held = self._cached_tokens(request, workers) if ask.prefills else [0] * len(workers)
        transfers_s = _transfers_s(request, workers)
        offers = map(Offer, workers, steps, held, transfers_s)
        return [price(offer, ask, self.weights) for offer in offers]

    def _prefills_s(
        self, request: Request, ask: Ask, workers: Sequence[WorkerView], steps: Sequence[StepModel]
    ) -> list[float] | None:
        """What is left to tell workers of equal counts by; None where nothing is prefilled."""
        if not ask.prefills:
            return None
        held = self._cached_tokens(request, workers)
        return [
            prefill_own_s(step, w.queued_tokens + request.prompt_tokens, cached)
            for w, step, cached in zip(workers, steps, held, strict=True)
        ]

    def _cached_tokens(self, request: Request, workers: Sequence[WorkerView]) -> Sequence[int]:
        return [0] * len(workers)

    def _scarce(self, ask: Ask, prices: Sequence[Price], steps: Sequence[StepModel]) -> bool:
        """Whether nobody has room for it, or could begin in time."""
        if not any(price.fits for price in prices):
            return True
        tight_s, long_tokens = self.params.tight_ttft_s, self.ladder.long_tokens
        if not tight_s:
            if long_tokens is None:
                return False
            tight_s = _TIGHT_TTFT * min([step.prefill_s(long_tokens) for step in steps])
        return min([price.ready for price in prices]) > tight_s

    # --- what it remembers ---------------------------------------------------------------------------------

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if not retry:
            self.ladder.committed(request, self.outputs.expected(request), choice, now)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.OK:
            self.outputs.learn(lease)


@dataclass(slots=True)
class CalibratedByPrefix(Calibrated):
    """The same with an index of prefixes, so that prefills are charged for what is not cached."""

    prefixes: Prefixes | None = field(default=None, init=False, repr=False)

    def bind(self, prefixes: Prefixes) -> None:
        """Asks these about prefixes from now on."""
        self.prefixes = prefixes
        prefixes.bound(TreeBound())

    def _cached_tokens(self, request: Request, workers: Sequence[WorkerView]) -> Sequence[int]:
        tokens = {} if self.prefixes is None else self.prefixes.matched(request).tokens
        return [tokens.get(w.name, 0) for w in workers]


def _new(params: Parameters, seed: int) -> Calibrated:
    return CalibratedByPrefix(params, seed) if params.prefixes == "yes" else Calibrated(params, seed)


def _why_not(prices: Sequence[Price] | None, index: int) -> str:
    return "not drawn" if prices is None or prices[index].fits else "no room"


def _drifted(worker: WorkerView) -> bool:
    calibration = getattr(worker, "calibration", None)
    return calibration is not None and calibration.state is CalibrationState.DRIFTED


def _transfers_s(request: Request, workers: Sequence[WorkerView]) -> list[float]:
    """Until its KV is there, where it comes from another worker."""
    handover = request.handover
    models = [
        None if handover is None else getattr(w, "transfers", {}).get(handover.producer) for w in workers
    ]
    known = [model.transfer_s(request.prompt_tokens) for model in models if model is not None]
    if not known:
        return [0.0] * len(workers)
    mean_s, measured = sum(known) / len(known), iter(known)
    return [mean_s if model is None else next(measured) for model in models]


SPEC = PolicySpec(
    name="calibrated",
    factory=_new,
    parameters=Parameters,
    roles=frozenset(Role),
    cost_unit="seconds (requests at capacity 1, when the reason is a fallback to counts)",
    page=__doc__,
)
