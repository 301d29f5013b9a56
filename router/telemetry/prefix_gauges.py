"""What the prefix index holds, how far it is trusted, and what engines' KV events brought.

Separate from the other gauges because only pools whose policy asks for prefixes have any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from router.kv_events.counters import KvEventCounters
from router.telemetry.exposition import SampleFamily

_WORKER = ("worker", "model", "role")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPoolSample:
    """The index of one pool.

    Attributes:
        entries: nodes and blocks, by what they stand for.
        evicted: so far, to keep the bounds.
    """

    pool: str
    used_bytes: int
    capacity_bytes: int
    entries: Mapping[str, int]
    evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixWorkerSample:
    """What is known of one worker's prefixes.

    Attributes:
        trust: 0 load only, 1 approximate, 2 exact.
        inexact: why it is not 2, one word.
        held_tokens: that it is believed to hold.
        resident_tokens: that its events say it holds; None when they are not followed.
        errors: mean of |predicted - reported| / prompt, by what predicted; only where it was compared.
        biases: mean of (predicted - reported) / prompt.
        counters: of its event stream, None when it is not followed.
    """

    name: str
    model: str
    role: str
    trust: int
    inexact: str | None
    held_tokens: float
    resident_tokens: int | None
    errors: Mapping[str, float] = field(default_factory=dict)
    biases: Mapping[str, float] = field(default_factory=dict)
    counters: KvEventCounters | None = None


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """All indexes at one instant."""

    pools: Sequence[PrefixPoolSample] = ()
    workers: Sequence[PrefixWorkerSample] = ()


COUNTERS: dict[str, tuple[str, Callable[[KvEventCounters], int]]] = {
    "batches": ("Batches of KV events taken in.", lambda c: c.batches),
    "replayed": ("Of these, batches that a replay brought.", lambda c: c.replayed),
    "blocks_stored": ("Blocks that the engine said it stored.", lambda c: c.blocks_stored),
    "blocks_removed": ("Blocks that the engine said it removed.", lambda c: c.blocks_removed),
    "cleared": ("Times that the engine forgot all blocks.", lambda c: c.cleared),
    "ignored": ("Events of blocks that do not tell a prefix: off the GPU, of windows.", lambda c: c.ignored),
    "unknown": ("Events of types that this router does not know.", lambda c: c.unknown),
    "orphans": ("Stored events whose parent block is not known.", lambda c: c.orphans),
    "broken": ("Messages and events that could not be decoded.", lambda c: c.broken),
    "oversized": ("Batches dropped unread, for their size.", lambda c: c.oversized),
    "foreign": ("Batches of another data-parallel rank.", lambda c: c.foreign),
    "duplicates": ("Batches that had been taken already.", lambda c: c.duplicates),
    "gaps": ("Times that batches were missing.", lambda c: c.gaps),
    "missed": ("Batches that were missing.", lambda c: c.missed),
    "filled": ("Missing batches that a replay brought.", lambda c: c.filled),
    "replays": ("Replays that were asked for.", lambda c: c.replays),
    "replays_failed": ("Replays that were not served to their end.", lambda c: c.replays_failed),
    "restarts": ("Times that the engine counted its batches anew.", lambda c: c.restarts),
    "lost": ("Times that the record of the engine's blocks was given up.", lambda c: c.lost),
    "full": ("Of these, for lack of room in the index.", lambda c: c.full),
    "disconnects": ("Times that the connection to the publisher was lost.", lambda c: c.disconnects),
}
"""By the word between `pointsman_worker_kv_events_` and `_total`."""


def prefix_gauges(snapshot: PrefixSnapshot) -> Iterator[SampleFamily]:
    """Every family, those without samples included."""
    yield from _pool_gauges(snapshot.pools)
    yield from _worker_gauges(snapshot.workers)
    yield from _error_gauges(snapshot.workers)
    yield from _event_gauges(snapshot.workers)


def _pool_gauges(pools: Sequence[PrefixPoolSample]) -> Iterator[SampleFamily]:
    used = SampleFamily("pointsman_prefix_index_bytes", "Memory accounted to the prefix index.", ("pool",))
    capacity = SampleFamily(
        "pointsman_prefix_index_capacity_bytes", "Memory that the prefix index may take.", ("pool",)
    )
    entries = SampleFamily(
        "pointsman_prefix_index_entries",
        "Places in the prefix index: of text, of token blocks, of blocks told by events.",
        ("pool", "kind"),
    )
    evicted = SampleFamily(
        "pointsman_prefix_index_evictions_total",
        "Prefixes forgotten to keep the bounds of workers and memory.",
        ("pool",),
        "counter",
    )
    for pool in pools:
        used.set(pool.used_bytes, pool.pool)
        capacity.set(pool.capacity_bytes, pool.pool)
        evicted.set(pool.evicted, pool.pool)
        for kind, count in pool.entries.items():
            entries.set(count, pool.pool, kind)
    yield from (used, capacity, entries, evicted)


_WORKER_GAUGES: dict[str, tuple[str, Callable[[PrefixWorkerSample], float | None]]] = {
    "prefix_held_tokens": (
        "Tokens of prefixes that the worker is believed to hold.",
        lambda w: w.held_tokens,
    ),
    "prefix_resident_tokens": (
        "Tokens of the blocks that the worker's events say it holds; absent when they are not followed.",
        lambda w: w.resident_tokens,
    ),
    "prefix_trust": (
        "How far the prefix index is relied upon for the worker: 0 load only, 1 approximate, 2 exact.",
        lambda w: w.trust,
    ),
    "kv_events_up": (
        "1 while the worker's KV events arrive; absent when they are not followed.",
        lambda w: None if w.counters is None else int(w.counters.up),
    ),
}


def _worker_gauges(workers: Sequence[PrefixWorkerSample]) -> Iterator[SampleFamily]:
    for name, (description, read) in _WORKER_GAUGES.items():
        family = SampleFamily(f"pointsman_worker_{name}", description, _WORKER)
        for worker in workers:
            family.set(read(worker), worker.name, worker.model, worker.role)
        yield family
    inexact = SampleFamily(
        "pointsman_worker_prefix_inexact",
        "1 for what keeps the worker's prefixes from being known exactly; absent when nothing does.",
        (*_WORKER, "reason"),
    )
    for worker in workers:
        if worker.inexact is not None:
            inexact.set(1, worker.name, worker.model, worker.role, worker.inexact)
    yield inexact


def _error_gauges(workers: Sequence[PrefixWorkerSample]) -> Iterator[SampleFamily]:
    error = SampleFamily(
        "pointsman_worker_prefix_error_ratio",
        "Mean distance of predicted from reported cached tokens, as a share of the prompt.",
        ("worker", "by"),
    )
    bias = SampleFamily(
        "pointsman_worker_prefix_bias_ratio",
        "Mean of predicted less reported cached tokens, as a share of the prompt.",
        ("worker", "by"),
    )
    for worker in workers:
        for by, value in worker.errors.items():
            error.set(value, worker.name, by)
        for by, value in worker.biases.items():
            bias.set(value, worker.name, by)
    yield from (error, bias)


def _event_gauges(workers: Sequence[PrefixWorkerSample]) -> Iterator[SampleFamily]:
    followed = [(worker.name, worker.counters) for worker in workers if worker.counters is not None]
    for name, (description, read) in COUNTERS.items():
        family = SampleFamily(f"pointsman_worker_kv_events_{name}_total", description, ("worker",), "counter")
        for worker, counters in followed:
            family.set(read(counters), worker)
        yield family
