"""What is simulated: workers, the engines behind them, and the pools that they stand in.

Separate from the run, which gives them life: a fleet is plain data, and can be built from a configuration,
from a study, or by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.roofline import StepClock
from router.core.binding import Mode
from router.core.calibration_fit import OnlineSettings
from router.core.deadlines import SplitDeadlines
from router.core.health import HealthSettings
from router.core.local_queue import LocalQueueRules
from router.core.prefix_settings import PrefixSettings
from router.core.split_rule import Fallback
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role

_LIVE_PROGRESS_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker and the engine that it is.

    Attributes:
        slots: that the router knows of; None when nobody told it.
        calibrated: coefficients that the router has of it from the start, None for none.
        slow: how many times longer its steps last than its clock says.
        role: None: that of its pool.
        may_prefill: it may serve whole requests in a decode pool.
        revision: what it runs; KV is handed over between workers of one revision.
        process: what the ranks of one engine have in common, None for an engine of its own.
    """

    name: str
    engine: EngineConfig
    clock: StepClock
    slots: int | None = None
    capacity: float = 1.0
    barrier_group: str | None = None
    calibrated: StepModel | None = None
    slow: float = 1.0
    role: Role | None = None
    may_prefill: bool = True
    revision: str = ""
    process: str | None = None


_NO_BOUND = 1_000_000
_ANY_NUMBER_HELD = LocalQueueRules(max_held=_NO_BOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One pool. Two of roles prefill and decode are a pair.

    Attributes:
        local: what is held back of the requests that have their worker.
    """

    name: str
    workers: tuple[WorkerPlan, ...]
    policy: str
    params: Mapping[str, object] = field(default_factory=dict)
    role: Role = Role.BOTH
    mode: Mode = Mode.EARLY
    local: LocalQueueRules = _ANY_NUMBER_HELD


_PATIENT = SplitDeadlines(prefill_s=math.inf, decode_first_event_s=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How requests are split between the pools of a pair.

    Attributes:
        link: between any two engines.
        concurrent: both legs are sent at once, as SGLang's bootstrap needs it.
        sequences_on_handle, takes_whole: what the connector allows, see `SplitFacts`.
        budget_high, budget_low: shares of a prefill worker's KV above which it gets no more, and below which
            it does again.
        deadlines: of both legs, and of the hand-over in between.
        known: what the router knows of the time that transfers take, by the worker that decodes and the one
            that prefilled.
    """

    link: TransferLink
    min_tokens: int = 0
    fallback: Fallback = Fallback.AGGREGATED
    max_transfers: int = 4
    concurrent: bool = False
    sequences_on_handle: bool = False
    takes_whole: bool = True
    budget_high: float = 0.85
    budget_low: float = 0.75
    deadlines: SplitDeadlines = _PATIENT
    known: Mapping[str, Mapping[str, TransferModel]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What keeps a live router from knowing at once.

    Attributes:
        router_s: from the decision to the engine.
        event_s: from the engine to the router.
        scrape_s: period of the poller; prefill_scrape_s: the same at a prefill worker while it holds
            something.
        probe_s: period of the probes.
        progress_s: how often the router takes in the tokens of a running stream. A live one does every 50 ms;
            more makes a run faster and the router's KV counts older.
        stretch_s: steps that are alike pass at once for so long at most; 0 looks at each.
        round_s: least time between two rounds of a batch policy.
        sweep_s: period of the router's upkeep, as the live one has it.
    """

    router_s: float = 0.001
    event_s: float = 0.001
    scrape_s: float = 1.0
    prefill_scrape_s: float = 0.25
    probe_s: float = 5.0
    progress_s: float = 1.0
    stretch_s: float = 1.0
    round_s: float = 0.010
    sweep_s: float = 0.25

    @property
    def lags(self) -> bool:
        """Whether the router hears of tokens later than a live one would."""
        return self.progress_s > _LIVE_PROGRESS_S


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to a worker at a time: `crash` (its work is lost, its port refuses), `restart` (it is back
    with an empty cache), `freeze`, `thaw`, or `slow` by a factor."""

    at: float
    worker: str
    what: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the router waits for whom, and how often it tries again.

    Attributes:
        health: when counts of failures become signs.
        min_share: of a pool that stays in rotation whatever it looks like.
        stall_min_s, stall_max_s: bounds of the patience with a worker that shows no progress.
        first_event_s, idle_s: of a stream, to its first event and between two.
        tries: of one request in all, None leaves it to the kinds of failure.
        budget_share, budget_min: tries of all requests that are under way, as a share of those in flight, and
            at least so many.
    """

    health: HealthSettings = field(default_factory=HealthSettings)
    min_share: float = 0.5
    stall_min_s: float = 10.0
    stall_max_s: float = 120.0
    first_event_s: float = math.inf
    idle_s: float = math.inf
    tries: int | None = None
    budget_share: float = 0.2
    budget_min: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Everything but the calls and the seed.

    Attributes:
        model: name of the one model that all workers serve.
        online: how the router learns step times from traffic; None: it keeps to those of the plan.
        max_queued, max_wait_s: of the router's queue, per pool; queued_bytes: of all pools.
        prefix_index: bounds of what is remembered of prompts.
    """

    pools: tuple[PoolPlan, ...]
    model: str = "model"
    split: SplitPlan | None = None
    delays: Delays = field(default_factory=Delays)
    troubles: tuple[Trouble, ...] = ()
    online: OnlineSettings | None = None
    max_queued: int = _NO_BOUND
    max_wait_s: float = 1e9
    queued_bytes: int = 1 << 60
    in_flight: int = _NO_BOUND
    prefix_index: PrefixSettings = field(default_factory=PrefixSettings)
    patience: Patience = field(default_factory=Patience)
