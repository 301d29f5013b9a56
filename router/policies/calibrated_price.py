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
    prefill_wait_s,
    slot_wait_s,
    slowdown_s,
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
        mean_kv_tokens, final_kv_tokens: that it holds there on average and at its end.
        sigma: how much its own seconds weigh.
        fresh_from: a scrape taken before is not used (s).
        exact: whether residents are looked at one by one, rather than their sums.
    """

    demand: Demand
    prefills: bool
    decodes: bool
    mean_kv_tokens: float
    final_kv_tokens: float
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
    """The terms at one worker, in seconds but for the queue and the pressure.

    Attributes:
        total: what is compared, with the factor of a worker that warms up.
        pressure: KV after it was admitted, at its end, over the capacity; None while that is unknown.
        backlog: prefills that are queued before it, and in the paper's form its share of what is left to
            decode.
        size: in the paper's form, its own.
        queue: requests; room: until its KV and its sequences have room.
        ready: until it could begin, as far as can be foreseen.
    """

    total: float
    pressure: float | None
    ready: float
    backlog: float = 0.0
    transfer: float = 0.0
    room: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    size: float = 0.0
    slowdown: float = 0.0
    queue: float = 0.0

    @property
    def fits(self) -> bool:
        return self.pressure is None or self.pressure <= 1.0

    @property
    def terms(self) -> dict[str, float]:
        """All of them by name with the unit, for those who ask why; what is 0 is left out."""
        fields = self._asdict()
        named = {f"{name}_s": fields[name] for name in _SECONDS if fields[name]}
        if self.queue:
            named["queue_requests"] = self.queue
        return named if self.pressure is None else {**named, "pressure": self.pressure}


_SECONDS = ("backlog", "transfer", "room", "prefill", "decode", "size", "slowdown")


def physical(offer: Offer, ask: Ask, weights: Weights) -> Price:
    """Seconds until it is done, times sigma, and those that it costs the others there.

    The terms of `router.core.cost`, written out: a call of each for every worker costs more than they do.
    """
    worker, step, cached_tokens, transfer_s = offer
    backlog_s = prefill_s = room_s = decode_s = slowdown_s = 0.0
    kv_tokens, demand = worker.kv_tokens, ask.demand
    if ask.prefills:
        prefill_s = step.prefill_s(demand.prompt_tokens - cached_tokens, cached_tokens)
        backlog_s = queued_s(worker, step, ask)
    if ask.decodes:
        sequences = worker.sequences
        growth_s = step.step_per_sequence_s * demand.sequences + step.step_per_kv_token_s * ask.mean_kv_tokens
        after_s = (
            step.step_base_s
            + step.step_per_sequence_s * sequences
            + step.step_per_kv_token_s * kv_tokens
            + growth_s
        )
        decode_s = demand.output_tokens * after_s / step.tokens_per_step
        room_s = _room_s(worker, step, ask, after_s)
        slowdown_s = _slowdown_s(worker, step, ask, growth_s)
    ready_s = transfer_s + backlog_s + room_s
    own_s = ask.sigma * (ready_s + prefill_s + decode_s)
    total = (own_s + weights.resident * slowdown_s) * worker.warmup
    return Price(
        total,
        _pressure(worker, kv_tokens, ask),
        ready_s,
        backlog_s,
        transfer_s,
        room_s,
        prefill_s,
        decode_s,
        slowdown=slowdown_s,
    )


def paper(offer: Offer, ask: Ask, weights: Weights) -> Price:
    """The paper's sum of backlog, own size and queue, with the backlog of a decode over the operating
    concurrency."""
    worker, step, cached_tokens, _ = offer
    demand, backlog_s, size_s, room_s = ask.demand, 0.0, 0.0, 0.0
    pressure = _pressure(worker, worker.kv_tokens, ask)
    if ask.prefills:
        backlog_s = queued_s(worker, step, ask)
        size_s = step.prefill_s(demand.prompt_tokens - cached_tokens, cached_tokens)
    ready_s = backlog_s
    if ask.decodes:
        token_s = operating_token_s(step, worker.kv_capacity_tokens, weights.concurrency)
        backlog_s += token_s * worker.remaining_tokens / weights.concurrency
        over = max((pressure or 0.0) - _CALM_PRESSURE, 0.0)
        size_s += demand.output_tokens * token_s * (1.0 + weights.pressure * over)
        if pressure is not None and pressure > 1.0:
            room_s = _room_s(worker, step, ask, token_s)
    queue = worker.in_flight + foreign(worker, ask)
    own_s = ask.sigma * (weights.backlog * backlog_s + weights.size * size_s)
    total = (own_s + weights.queue_s * queue) * worker.warmup
    return Price(total, pressure, ready_s + room_s, backlog=backlog_s, room=room_s, size=size_s, queue=queue)


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
    strangers, queued_tokens = foreign(worker, ask), worker.queued_tokens
    beyond_s = strangers * step.prefill_s(ask.demand.prompt_tokens) if strangers else 0.0
    if not queued_tokens:
        return beyond_s
    residents = _residents(worker) if ask.exact else ()
    if residents:
        return beyond_s + prefill_wait_s(step, residents, ask.now)
    return beyond_s + prefill_backlog_s(step, 1, queued_tokens)


def foreign(worker: WorkerView, ask: Ask) -> int:
    """Requests that wait in the engine and cannot be ours."""
    stats = worker.stats
    if stats is None or not stats.waiting or stats.taken < ask.fresh_from:
        return 0
    return max(stats.waiting - worker.in_flight, 0)


def _pressure(worker: WorkerView, kv_tokens: int, ask: Ask) -> float | None:
    capacity = worker.kv_capacity_tokens
    return (kv_tokens + ask.final_kv_tokens) / capacity if capacity else None


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


def _slowdown_s(worker: WorkerView, step: StepModel, ask: Ask, growth_s: float) -> float:
    residents = _residents(worker) if ask.exact else ()
    if residents:
        return slowdown_s(step, ask.demand, residents)
    shared = min(worker.remaining_tokens, worker.sequences * ask.demand.output_tokens)
    return growth_s * shared / step.tokens_per_step


def _residents(worker: WorkerView) -> Iterable[Lease]:
    return residents_of(worker) or ()
