"""The router's state as plain samples, for a scrape of its own metrics."""

from __future__ import annotations

from collections import Counter

from router.core.budget import Budget
from router.core.forecasts import Forecasts
from router.core.health import State
from router.core.pool import Pool
from router.core.shadows import Verdict
from router.core.worker import Role
from router.fleet import Fleet, Member
from router.kv_events.fleet_events import FleetEvents
from router.prefix_snapshot import prefix_snapshot
from router.telemetry.choosing_gauges import ChoosingSample, ShadowSample
from router.telemetry.forecast_gauges import ForecastSample
from router.telemetry.samples import QueueSample, Snapshot, WorkerSample


def snapshot(fleet: Fleet, bodies: Budget, events: FleetEvents, now: float, *, ready: bool) -> Snapshot:
    """Everything that is a gauge, read from the accounts themselves."""
    held = _held_tokens(fleet)
    return Snapshot(
        now=now,
        ready=ready,
        in_flight=fleet.in_flight.used,
        in_flight_capacity=fleet.in_flight.limit,
        body_bytes=bodies.used,
        body_capacity_bytes=bodies.limit,
        pairs_set_aside=sum(1 for t in fleet.topologies for _ in t.partners.pairs.set_aside(now)),
        bindings=[(name, d.pool.binding.late) for name, d in fleet.dispatchers.items()],
        prefixes=prefix_snapshot(fleet, events),
        choosing=[_choosing(name, d.pool) for name, d in fleet.dispatchers.items()],
        forecasts=[
            _forecast(name, d.pool.ledger.forecasts)
            for name, d in fleet.dispatchers.items()
            if d.pool.rules.role is not Role.PREFILL
        ],
        workers=[_worker(member, fleet, held[member.name], now) for member in fleet],
        queues=_queues(fleet, now),
    )


def _choosing(name: str, pool: Pool) -> ChoosingSample:
    chooser = pool.chooser
    alone = "one" if chooser.one_by_one else "pair"
    return ChoosingSample(
        pool=name,
        policy=chooser.name,
        shape="batch" if pool.decides_by_batch else alone,
        shadows=[
            ShadowSample(
                policy=shadow.seat.name,
                unit=shadow.unit,
                verdicts={verdict.value: shadow.verdicts[verdict] for verdict in Verdict},
                regret=shadow.regret,
                busy_s=shadow.busy_s,
            )
            for shadow in chooser.shadows
        ],
    )


def _forecast(pool: str, forecasts: Forecasts) -> ForecastSample:
    predictor = forecasts.predictor
    return ForecastSample(
        pool=pool,
        trust=int(predictor.trust),
        residents=len(forecasts),
        known=forecasts.known,
        errors=predictor.errors(),
    )


def _worker(member: Member, fleet: Fleet, held_tokens: int, now: float) -> WorkerSample:
    worker = member.worker
    topology = fleet.topology_for(member.dispatcher) if worker.role is Role.PREFILL else None
    budget = topology.partners.budget if topology is not None else None
    return WorkerSample(
        name=worker.name,
        model=worker.model,
        role=worker.role.value,
        state=worker.state.value,
        eligible=worker.state is State.READY,
        in_flight=worker.in_flight,
        sequences=worker.sequences,
        queued_tokens=worker.queued_tokens,
        turns_waited_for=member.dispatcher.pool.local.depth(worker.name),
        kv_tokens=worker.mirror.kv_tokens,
        kv_capacity_tokens=worker.kv_capacity_tokens,
        slots=worker.slots,
        transfers=worker.mirror.transfers,
        held_tokens=held_tokens,
        stranded_tokens=budget.stranded_tokens(worker.name, worker.incarnation, now) if budget else 0,
        saturated=budget.is_saturated(worker) if budget else None,
        drift_tokens=worker.drift.smoothed_tokens,
        incarnation=worker.incarnation,
        stats=worker.stats,
        calibration=worker.calibration,
    )


def _held_tokens(fleet: Fleet) -> Counter[str]:
    """KV tokens by the name of the prefill worker that holds them for a hand-over."""
    held: Counter[str] = Counter()
    for dispatcher in fleet.dispatchers.values():
        if dispatcher.pool.rules.role is Role.PREFILL:
            for lease in dispatcher.pool.ledger.leases:
                if lease.prefilled:
                    held[lease.worker] += lease.kv_tokens
    return held


def _queues(fleet: Fleet, now: float) -> list[QueueSample]:
    """One sample per model that can be asked for, so that an empty queue shows as 0 and not as absent."""
    waiting: dict[str, list[float]] = {model: [] for model in sorted(fleet.models())}
    pooled: Counter[str] = Counter()
    for dispatcher in fleet.dispatchers.values():
        for model, since, prefilled in dispatcher.pool.waits():
            if prefilled:
                pooled[model] += 1
            else:
                waiting.setdefault(model, []).append(since)
    capacity = max((d.pool.rules.max_queued for d in fleet.dispatchers.values()), default=None)
    return [
        QueueSample(
            model=model,
            depth=len(times),
            depth_capacity=capacity,
            oldest_wait_s=now - min(times) if times else None,
            prompt_pool_entries=pooled[model],
        )
        for model, times in waiting.items()
    ]
