"""What is simulated: workers, the engines behind them, and the pools that they stand in.

Separate from the run, which gives them life: a fleet is plain data, and can be built from a configuration,
from a study, or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.roofline import StepClock
from router.core.binding import Mode
from router.core.calibration_fit import OnlineSettings
from router.core.split_rule import Fallback
from router.core.step_model import StepModel
from router.core.worker import Role

_LIVE_PROGRESS_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker and the engine that it is.

    Attributes:
        slots: that the router knows of; None when nobody told it.
        calibrated: coefficients that the router has of it from the start, None for none.
        slow: how many times longer its steps last than its clock says.
    """

    name: str
    engine: EngineConfig
    clock: StepClock
    slots: int | None = None
    capacity: float = 1.0
    barrier_group: str | None = None
    calibrated: StepModel | None = None
    slow: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One pool. Two of roles prefill and decode are a pair."""

    name: str
    workers: tuple[WorkerPlan, ...]
    policy: str
    params: Mapping[str, object] = field(default_factory=dict)
    role: Role = Role.BOTH
    mode: Mode = Mode.EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How requests are split between the pools of a pair.

    Attributes:
        link: between any two engines.
        concurrent: both legs are sent at once, as SGLang's bootstrap needs it.
        lease_s: how long a prefill engine keeps KV that nobody fetches.
    """

    link: TransferLink
    min_tokens: int = 0
    fallback: Fallback = Fallback.AGGREGATED
    max_transfers: int = 4
    concurrent: bool = False
    lease_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What keeps a live router from knowing at once.

    Attributes:
        router_s: from the decision to the engine.
        event_s: from the engine to the router.
        scrape_s: period of the poller.
        progress_s: how often the router takes in the tokens of a running stream. A live one does every 50 ms;
            more makes a run faster and the router's KV counts older.
        stretch_s: steps that are alike pass at once for so long at most; 0 looks at each.
        round_s: least time between two rounds of a batch policy.
        sweep_s: period of the router's upkeep.
    """

    router_s: float = 0.001
    event_s: float = 0.001
    scrape_s: float = 1.0
    progress_s: float = 1.0
    stretch_s: float = 1.0
    round_s: float = 0.010
    sweep_s: float = 1.0

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
class FleetPlan:
    """Everything but the calls and the seed.

    Attributes:
        model: name of the one model that all workers serve.
        online: how the router learns step times from traffic; None: it keeps to those of the plan.
        max_queued, max_wait_s: of the router's queue, per pool.
    """

    pools: tuple[PoolPlan, ...]
    model: str = "model"
    split: SplitPlan | None = None
    delays: Delays = field(default_factory=Delays)
    troubles: tuple[Trouble, ...] = ()
    online: OnlineSettings | None = None
    max_queued: int = 1_000_000
    max_wait_s: float = 1e9
    in_flight: int = 1_000_000
