"""Snapshot → gauge families: the state half of /metrics.

Separate from the counters (`metrics`): nothing here lives longer than a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from router.core.engine_stats import EngineStats
from router.telemetry.calibration_gauges import calibration_gauges
from router.telemetry.choosing_gauges import choosing_gauges
from router.telemetry.exposition import SampleFamily
from router.telemetry.forecast_gauges import forecast_gauges
from router.telemetry.prefix_gauges import prefix_gauges
from router.telemetry.samples import QueueSample, Snapshot, WorkerSample

_WORKER = ("worker", "model", "role")


class Signal(NamedTuple):
    """One thing that an engine may say about itself, relayed under our prefix."""

    name: str
    kind: str
    description: str
    read: Callable[[EngineStats], float | None]


SIGNALS: dict[str, Signal] = {
    "running": Signal("running", "gauge", "Sequences that the engine says it runs.", lambda s: s.running),
    "waiting": Signal(
        "waiting", "gauge", "Requests that the engine says wait inside it.", lambda s: s.waiting
    ),
    "kv_usage": Signal(
        "kv_usage_ratio",
        "gauge",
        "Share of KV blocks in use by the engine's own account, 0 to 1.",
        lambda s: s.kv_usage,
    ),
    "kv_capacity_tokens": Signal(
        "kv_capacity_tokens",
        "gauge",
        "KV tokens that fit, by the engine's own account.",
        lambda s: s.kv_capacity_tokens,
    ),
    "prefix_queries": Signal(
        "prefix_queries_total",
        "counter",
        "Prompt tokens the engine has looked up in its prefix cache since it started.",
        lambda s: s.prefix_queries,
    ),
    "prefix_hits": Signal(
        "prefix_hits_total",
        "counter",
        "Prompt tokens the engine has found in its prefix cache since it started.",
        lambda s: s.prefix_hits,
    ),
    "preemptions": Signal(
        "preemptions_total",
        "counter",
        "Sequences the engine has preempted since it started.",
        lambda s: s.preemptions,
    ),
    "generation_tokens": Signal(
        "generation_tokens_total",
        "counter",
        "Tokens the engine has sampled since it started.",
        lambda s: s.generation_tokens,
    ),
}
"""By the name that stands in the `signal` label. What an engine does not export has no sample here and a 1 in
pointsman_worker_signal_missing."""


def gauges(snapshot: Snapshot) -> Iterator[SampleFamily]:
    """Every gauge of the router, with the samples of `snapshot`; families without samples included."""
    yield from _router_gauges(snapshot)
    yield from _queue_gauges(snapshot.queues)
    yield from _worker_gauges(snapshot.workers)
    yield from _engine_gauges(snapshot.workers, snapshot.now)
    yield from calibration_gauges(snapshot.workers, snapshot.now)
    yield from prefix_gauges(snapshot.prefixes)
    yield from choosing_gauges(snapshot.choosing)
    yield from forecast_gauges(snapshot.forecasts)


def _router_gauges(snapshot: Snapshot) -> Iterator[SampleFamily]:
    for name, description, value in (
        ("ready", "1 when /readiness says yes.", int(snapshot.ready)),
        ("requests_in_flight", "Requests being served.", snapshot.in_flight),
        (
            "requests_in_flight_capacity",
            "Requests that may be served at once.",
            snapshot.in_flight_capacity,
        ),
        ("body_bytes", "Request bodies held in memory.", snapshot.body_bytes),
        (
            "pairs_set_aside",
            "Prefill and decode workers that may not hand over KV to each other for a while.",
            snapshot.pairs_set_aside,
        ),
        ("body_capacity_bytes", "Request bodies that may be held in memory.", snapshot.body_capacity_bytes),
    ):
        family = SampleFamily(f"pointsman_{name}", description)
        family.set(value)
        yield family
    late = SampleFamily(
        "pointsman_pool_late_binding", "1 while requests wait in the router for a free slot.", ("pool",)
    )
    for pool, is_late in snapshot.bindings:
        late.set(int(is_late), pool)
    yield late


def _queue_gauges(queues: Sequence[QueueSample]) -> Iterator[SampleFamily]:
    depth = SampleFamily("pointsman_queue_depth", "Requests waiting in the router for a worker.", ("model",))
    capacity = SampleFamily("pointsman_queue_capacity", "Requests that may wait in the router.", ("model",))
    oldest = SampleFamily(
        "pointsman_queue_oldest_wait_seconds",
        "How long the request that waits longest has waited; absent when nobody waits.",
        ("model",),
    )
    pooled = SampleFamily(
        "pointsman_prompt_pool_entries", "Prefilled requests waiting for a decode worker.", ("model",)
    )
    for queue in queues:
        depth.set(queue.depth, queue.model)
        capacity.set(queue.depth_capacity, queue.model)
        oldest.set(queue.oldest_wait_s, queue.model)
        pooled.set(queue.prompt_pool_entries, queue.model)
    yield from (depth, capacity, oldest, pooled)


_LEDGER: dict[str, tuple[str, Callable[[WorkerSample], float | None]]] = {
    "requests_in_flight": ("Requests held at the worker.", lambda w: w.in_flight),
    "sequences": ("Output sequences of those requests.", lambda w: w.sequences),
    "turns_waited_for": (
        "Requests that were given the worker and wait in the router for their turn there.",
        lambda w: w.turns_waited_for,
    ),
    "queued_tokens": ("Prompt tokens sent and not yet known to be prefilled.", lambda w: w.queued_tokens),
    "kv_tokens": ("KV tokens in use, by the router's own account.", lambda w: w.kv_tokens),
    "kv_capacity_tokens": ("KV tokens that fit; absent while unknown.", lambda w: w.kv_capacity_tokens),
    "transfers": ("Hand-overs of KV to the worker under way.", lambda w: w.transfers),
    "held_tokens": (
        "KV tokens that the worker has prefilled and holds for a decode worker.",
        lambda w: w.held_tokens,
    ),
    "stranded_tokens": (
        "KV tokens that the worker holds for nobody any more, until its lease on them ends.",
        lambda w: w.stranded_tokens,
    ),
    "saturated": (
        "1 when a prefill worker gets no prompt for the KV that it holds; absent for others.",
        lambda w: None if w.saturated is None else int(w.saturated),
    ),
    "kv_drift_tokens": (
        "KV tokens in use by the engine's account less the router's, smoothed; absent until compared.",
        lambda w: w.drift_tokens,
    ),
    "slot_capacity": ("Sequences that may run at once; absent when not configured.", lambda w: w.slots),
    "eligible": ("1 when a policy may pick the worker now.", lambda w: int(w.eligible)),
    "incarnation": ("How often the engine has lost its state.", lambda w: w.incarnation),
}


def _worker_gauges(workers: Sequence[WorkerSample]) -> Iterator[SampleFamily]:
    for name, (description, read) in _LEDGER.items():
        family = SampleFamily(f"pointsman_worker_{name}", description, _WORKER)
        for worker in workers:
            family.set(read(worker), worker.name, worker.model, worker.role)
        yield family
    state = SampleFamily(
        "pointsman_worker_state", "1 for the state that the worker is in.", (*_WORKER, "state")
    )
    for worker in workers:
        state.set(1, worker.name, worker.model, worker.role, worker.state)
    yield state


def _engine_gauges(workers: Sequence[WorkerSample], now: float) -> Iterator[SampleFamily]:
    age = SampleFamily(
        "pointsman_worker_scrape_age_seconds",
        "Age of what the engine last said; absent before its first answer.",
        ("worker",),
    )
    missing = SampleFamily(
        "pointsman_worker_signal_missing",
        "1 when the engine does not export the signal, so that nobody reads its absence as 0.",
        ("worker", "signal"),
    )
    for worker in workers:
        age.set(None if worker.stats is None else now - worker.stats.taken, worker.name)
    yield age
    for key, signal in SIGNALS.items():
        name = f"pointsman_worker_engine_{signal.name}"
        family = SampleFamily(name, signal.description, ("worker",), signal.kind)
        for worker in workers:
            value = None if worker.stats is None else signal.read(worker.stats)
            family.set(value, worker.name)
            missing.set(int(value is None), worker.name, key)
        yield family
    yield missing
