"""The prefix indexes of all pools as plain samples, for a scrape of the router's metrics.

Separate from the other snapshot because the facts come from three places: the index, the listeners, and the
settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.core.prefix_error import PrefixError
from router.core.prefix_holder import Holder
from router.core.prefixes import PoolPrefixes
from router.core.trust import Trust
from router.fleet import Fleet, Member
from router.kv_events.fleet_events import FleetEvents
from router.kv_events.locate import Place
from router.kv_events.reasons import Facts, why_not_exact
from router.telemetry.prefix_gauges import PrefixPoolSample, PrefixSnapshot, PrefixWorkerSample

_TRUST = {Trust.LOAD_ONLY: 0, Trust.APPROXIMATE: 1, Trust.EXACT: 2}


def prefix_snapshot(fleet: Fleet, events: FleetEvents) -> PrefixSnapshot:
    """Of the pools that keep prefixes now, and of their workers."""
    kept = {
        name: dispatcher.pool.chooser.prefixes
        for name, dispatcher in fleet.dispatchers.items()
        if dispatcher.pool.chooser.prefixes is not None
    }
    pools = [_pool(name, prefixes) for name, prefixes in kept.items() if prefixes is not None]
    return PrefixSnapshot(pools, list(_workers(fleet, events)))


def _pool(name: str, prefixes: PoolPrefixes) -> PrefixPoolSample:
    store = prefixes.index.store
    return PrefixPoolSample(
        pool=name,
        used_bytes=store.used_bytes,
        capacity_bytes=store.settings.max_bytes,
        entries={
            "text": store.text.nodes,
            "blocks": store.blocks.nodes + store.predicted.nodes,
            "events": store.event_blocks.rows,
        },
        evicted=store.evicted,
    )


def _workers(fleet: Fleet, events: FleetEvents) -> Iterator[PrefixWorkerSample]:
    for member in fleet:
        prefixes = member.dispatcher.pool.chooser.prefixes
        if prefixes is not None:
            yield _worker(member, prefixes, events)


def _worker(member: Member, prefixes: PoolPrefixes, events: FleetEvents) -> PrefixWorkerSample:
    worker, place = member.worker, events.place(member.name)
    counters = events.counters(member.name) if place is Place.FOUND else None
    holder = prefixes.index.holder(member.name)
    text = events.counts_only(member)
    trust = prefixes.index.trust(member.name, text=text)
    facts = Facts(
        follows=events.follows,
        shared_address=worker.shared_address,
        deaf=events.deaf,
        place=place,
        known=events.known(member.name),
        full=counters is not None and counters.full > 0,
        text=text,
        trust=trust,
    )
    reason = why_not_exact(facts)
    compared = _compared(holder)
    return PrefixWorkerSample(
        name=member.name,
        model=worker.model,
        role=worker.role.value,
        trust=_TRUST[trust],
        inexact=None if reason is None else reason.value,
        held_tokens=0.0 if holder is None else prefixes.index.store.held_tokens(holder),
        resident_tokens=(
            holder.ledger.resident_tokens if holder is not None and holder.ledger is not None else None
        ),
        errors={by: error.error for by, error in compared.items()},
        biases={by: error.bias for by, error in compared.items()},
        counters=counters,
    )


def _compared(holder: Holder | None) -> dict[str, PrefixError]:
    """What was compared with the engine's reports, by what predicted them."""
    if holder is None:
        return {}
    both = {"dispatches": holder.beliefs, "events": holder.events}
    return {by: error for by, error in both.items() if error.samples}
