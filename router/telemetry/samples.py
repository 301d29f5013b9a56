"""What a scrape needs to know of the router's state, as plain values.

Separate so that whoever owns the state can fill these without knowing of Prometheus. Gauges are read from
such a snapshot when a scrape asks and are never moved request by request, so they cannot leak: they are
exactly as right as the accounts they are read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.calibration import Calibration
from router.core.engine_stats import EngineStats
from router.telemetry.choosing_gauges import ChoosingSample
from router.telemetry.forecast_gauges import ForecastSample
from router.telemetry.prefix_gauges import PrefixSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSample:
    """One worker at the time of a scrape.

    Attributes:
        name: opaque name of the worker, never its URL.
        role: prefill, decode or both.
        state: of the health table, one word.
        eligible: whether a policy may be offered it now.
        in_flight: leases held.
        sequences: output sequences of those leases.
        queued_tokens: prompt tokens charged and not yet known to be prefilled.
        turns_waited_for: requests of its own that wait in the router for their turn.
        kv_tokens: the router's belief of the KV tokens in use.
        kv_capacity_tokens: None while unknown.
        slots: sequences it may run at once, None when not configured.
        transfers: hand-overs to it under way.
        held_tokens: KV that it has prefilled and holds for a decode worker.
        stranded_tokens: KV that it holds for nobody, until its lease ends.
        saturated: whether it gets no prompt for the KV that it holds; None for a worker without a budget.
        drift_tokens: KV in use by its own account less ours, smoothed; None before it could be compared.
        incarnation: rises by one whenever the engine lost its state.
        stats: the last scrape of the engine, None before the first.
        calibration: what is known of its coefficients.
    """

    name: str
    model: str
    role: str
    state: str
    eligible: bool
    in_flight: int
    sequences: int = 0
    queued_tokens: int = 0
    turns_waited_for: int = 0
    kv_tokens: int = 0
    kv_capacity_tokens: int | None = None
    slots: int | None = None
    transfers: int = 0
    held_tokens: int = 0
    stranded_tokens: int = 0
    saturated: bool | None = None
    drift_tokens: float | None = None
    incarnation: int = 0
    stats: EngineStats | None = None
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSample:
    """What waits for one model.

    Attributes:
        depth: requests waiting in the router for a worker.
        depth_capacity: how many may wait.
        oldest_wait_s: how long the first of them has waited, None when nobody waits.
        prompt_pool_entries: prefilled requests that wait for a decode worker.
    """

    model: str
    depth: int
    depth_capacity: int | None = None
    oldest_wait_s: float | None = None
    prompt_pool_entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The router at one instant.

    Attributes:
        now: the instant, on the clock that `EngineStats.taken` was read from (s).
        ready: what /readiness says.
        in_flight: requests being served, from the first byte read to the last byte written.
        in_flight_capacity: how many may be.
        body_bytes: request bodies held in memory.
        body_capacity_bytes: how much may be held.
        pairs_set_aside: prefill and decode workers that may not hand over KV for a while.
        bindings: (pool, whether its requests wait for a free slot) of each pool.
        prefixes: what workers are believed to hold.
        choosing: the policy of each pool.
        forecasts: the predictor of each pool that decodes.
    """

    now: float
    ready: bool
    in_flight: int
    in_flight_capacity: int | None = None
    body_bytes: int = 0
    body_capacity_bytes: int | None = None
    pairs_set_aside: int = 0
    bindings: Sequence[tuple[str, bool]] = ()
    prefixes: PrefixSnapshot = field(default_factory=PrefixSnapshot)
    choosing: Sequence[ChoosingSample] = ()
    forecasts: Sequence[ForecastSample] = ()
    workers: Sequence[WorkerSample] = ()
    queues: Sequence[QueueSample] = ()
