"""What one request would cost at one worker, in both forms of `calibrated`.

Separate from the policy, which compares and falls back: here are the formulas alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from router.core.cost import (
    Demand,
    kv_wait_s,
    prefill_backlog_s,
    prefill_own_s,
    prefill_slowdown_s,
    prefill_wait_s,
    slot_wait_s,
    slowdown_bound_s,
    slowdown_s,
    step_after_s,
)
from router.core.lease import Lease
from router.core.step_model import StepModel
from router.core.worker import WorkerView
from router.policies.barrier import residents_of

_CALM_PRESSURE = 0.7
_TYPICAL_CONTEXT_TOKENS = 600


class Ask(NamedTuple):
    """One request, as it is priced.

    Attributes:
        prefills, decodes: which parts of it the worker would do.
        sigma: how much its own seconds weigh.
        fresh_from: a scrape taken before is not used (s).
        exact: whether residents are looked at one by one, rather than their sums.
    """

    demand: Demand
    prefills: bool
    decodes: bool
    sigma: float
    now: float
    fresh_from: float
    exact: bool = True


class Offer(NamedTuple):
    """A worker that it might go to, what is known of its speed, how much of the prompt it holds, and how long
    its KV would take to come there."""

    worker: WorkerView
    step: StepModel
    cached_tokens: int = 0
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the paper's terms; see the docstring of `calibrated`."""

    backlog: float
    size: float
    queue_s: float
    pressure: float
    resident: float
    concurrency: int


class Price(NamedTuple):
    """The terms at one worker.

    Attributes:
        wait: until it could begin, as far as can be foreseen (s).
        pressure: KV after it was admitted, at its end, over the capacity; None while that is unknown.
        terms: what `total` is made of, by name with the unit.
        total: seconds, with the factor of a worker that warms up.
    """

    total: float
    wait: float
    pressure: float | None
    terms: dict[str, float]

    @property
    def fits(self) -> bool:
        return self.pressure is None or self.pressure <= 1.0


def physical(offer: Offer, ask: Ask, weights: Weights) -> Price:
    """Seconds until it is done, times sigma, and those that it costs the others there."""
    worker, step, cached_tokens, wait_s = offer
    demand, own_prefill_s, others_s = ask.demand, 0.0, 0.0
    terms = {"transfer_s": wait_s} if wait_s else {}
    if ask.prefills:
        own_prefill_s = prefill_own_s(step, demand.prompt_tokens, cached_tokens)
        terms["backlog_s"] = backlog_s = queued_s(worker, step, ask)
        terms["prefill_s"] = own_prefill_s
        wait_s += backlog_s
    own_s = own_prefill_s
    if ask.decodes:
        after_s = step_after_s(step, worker.sequences, worker.kv_tokens, demand)
        terms["room_s"] = room_s = _room_s(worker, step, ask, after_s)
        terms["decode_s"] = decode_s = step.steps(demand.output_tokens) * after_s
        terms["slowdown_s"] = others_s = _slowdown_s(worker, step, ask)
        if own_prefill_s:
            terms["stall_s"] = stall_s = prefill_slowdown_s(own_prefill_s, worker.sequences)
            others_s += stall_s
        wait_s += room_s
        own_s += decode_s
    total = (ask.sigma * (wait_s + own_s) + weights.resident * others_s) * worker.warmup
    return Price(total, wait_s, _pressure(worker, ask), terms)


def paper(offer: Offer, ask: Ask, weights: Weights) -> Price:
    """The paper's sum of backlog, own size and queue, with the backlog of a decode over the operating
    concurrency."""
    worker, step, cached_tokens, _ = offer
    demand, backlog_s, size_s = ask.demand, 0.0, 0.0
    pressure = _pressure(worker, ask)
    terms: dict[str, float] = {}
    if ask.prefills:
        backlog_s = queued_s(worker, step, ask)
        size_s = prefill_own_s(step, demand.prompt_tokens, cached_tokens)
    wait_s = backlog_s
    if ask.decodes:
        token_s = operating_token_s(step, worker.kv_capacity_tokens, weights.concurrency)
        backlog_s += token_s * worker.remaining_tokens / weights.concurrency
        over = max((pressure or 0.0) - _CALM_PRESSURE, 0.0)
        size_s += demand.output_tokens * token_s * (1.0 + weights.pressure * over)
        if pressure is not None and pressure > 1.0:
            wait_s += _room_s(worker, step, ask, token_s)
        terms["token_s"] = token_s
    queue = worker.in_flight + foreign(worker, ask)
    terms |= {"backlog_s": backlog_s, "size_s": size_s, "queue_requests": queue}
    own_s = weights.backlog * backlog_s + weights.size * size_s
    total = (ask.sigma * own_s + weights.queue_s * queue) * worker.warmup
    return Price(total, wait_s, pressure, terms)


def operating_token_s(step: StepModel, kv_capacity_tokens: int | None, concurrency: int) -> float:
    """Seconds per output token of one sequence when an engine is well used: so many sequences, and seven
    tenths of its KV, or 600 tokens for each of them where the capacity is unknown."""
    kv_tokens = (
        concurrency * _TYPICAL_CONTEXT_TOKENS
        if kv_capacity_tokens is None
        else round(_CALM_PRESSURE * kv_capacity_tokens)
    )
    return step.steps(1.0) * step.step_s(concurrency, kv_tokens)


def queued_s(worker: WorkerView, step: StepModel, ask: Ask) -> float:
    """Seconds of prefill that stand before it: the worker's own queue, and what others have sent there, each
    taken for one like the request at hand."""
    beyond_s = 0.0
    strangers = foreign(worker, ask)
    if strangers:
        beyond_s = strangers * step.prefill_s(ask.demand.prompt_tokens)
    if not worker.queued_tokens:
        return beyond_s
    residents = _residents(worker) if ask.exact else ()
    if residents:
        return beyond_s + prefill_wait_s(step, residents, ask.now)
    return beyond_s + prefill_backlog_s(step, 1, worker.queued_tokens)


def foreign(worker: WorkerView, ask: Ask) -> int:
    """Requests that wait in the engine and cannot be ours."""
    stats = worker.stats
    if stats is None or not stats.waiting or stats.taken < ask.fresh_from:
        return 0
    return max(stats.waiting - worker.in_flight, 0)


def _pressure(worker: WorkerView, ask: Ask) -> float | None:
    capacity = worker.kv_capacity_tokens
    if not capacity:
        return None
    needed = ask.demand.final_kv_tokens if ask.decodes else ask.demand.prompt_tokens
    return (worker.kv_tokens + needed) / capacity


def _room_s(worker: WorkerView, step: StepModel, ask: Ask, step_s: float) -> float:
    """Seconds until its prompt fits and its sequences may run: the longer of both."""
    demand, capacity, free = ask.demand, worker.kv_capacity_tokens, worker.free_slots
    lacking = 0 if capacity is None else worker.kv_tokens + demand.prompt_tokens - capacity
    slots = 0 if free is None else demand.sequences - free
    if lacking <= 0 and slots <= 0:
        return 0.0
    residents = _residents(worker)
    if residents:
        for_kv_s = kv_wait_s(step, residents, lacking, step_s)
        return max(for_kv_s, slot_wait_s(step, residents, slots, step_s))
    share = max(lacking / (worker.kv_tokens or 1), slots / (worker.sequences or 1))
    mean_tokens = worker.remaining_tokens / (worker.sequences or 1)
    return min(share, 1.0) * step.steps(mean_tokens) * step_s


def _slowdown_s(worker: WorkerView, step: StepModel, ask: Ask) -> float:
    residents = _residents(worker) if ask.exact else ()
    if residents:
        return slowdown_s(step, ask.demand, residents)
    return slowdown_bound_s(step, ask.demand, worker.sequences, worker.remaining_tokens)


def _residents(worker: WorkerView) -> Iterable[Lease]:
    return residents_of(worker) or ()
