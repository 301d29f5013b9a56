"""The router's state as plain samples, for a scrape of its own metrics."""

from __future__ import annotations

from router.core.budget import Budget
from router.core.health import State
from router.fleet import Fleet, Member
from router.telemetry.samples import QueueSample, Snapshot, WorkerSample


def snapshot(fleet: Fleet, bodies: Budget, now: float, *, ready: bool) -> Snapshot:
    """Everything that is a gauge, read from the accounts themselves."""
    return Snapshot(
        now=now,
        ready=ready,
        in_flight=fleet.in_flight.used,
        in_flight_capacity=fleet.in_flight.limit,
        body_bytes=bodies.used,
        body_capacity_bytes=bodies.limit,
        workers=[_worker(member) for member in fleet],
        queues=_queues(fleet, now),
    )


def _worker(member: Member) -> WorkerSample:
    worker = member.worker
    return WorkerSample(
        name=worker.name,
        model=worker.model,
        role=worker.role.value,
        state=worker.state.value,
        eligible=worker.state is State.READY,
        in_flight=worker.in_flight,
        sequences=worker.sequences,
        queued_tokens=worker.queued_tokens,
        kv_tokens=worker.mirror.kv_tokens,
        kv_capacity_tokens=worker.kv_capacity_tokens,
        slots=worker.slots,
        incarnation=worker.incarnation,
        stats=worker.stats,
    )


def _queues(fleet: Fleet, now: float) -> list[QueueSample]:
    """One sample per model that can be asked for, so that an empty queue shows as 0 and not as absent."""
    waiting: dict[str, list[float]] = {model: [] for model in sorted(fleet.models())}
    for dispatcher in fleet.dispatchers.values():
        for model, since in dispatcher.pool.waits():
            waiting.setdefault(model, []).append(since)
    capacity = max((d.pool.rules.max_queued for d in fleet.dispatchers.values()), default=None)
    return [
        QueueSample(
            model=model,
            depth=len(times),
            depth_capacity=capacity,
            oldest_wait_s=now - min(times) if times else None,
        )
        for model, times in waiting.items()
    ]
