"""The fleets that workloads were published on, by name.

Separate from the workloads because any workload can be run on any fleet, and from the simulation, which takes
whatever fleet it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.roofline import MEASURED, Roofline, StepClock, StepTimes
from engines.model.specs import GPUS, MODELS
from router.core.binding import Mode
from router.core.worker import Role
from router.policies import POLICIES, Shape
from router.studies.metrics import Slo
from router.studies.simulation.fleet import FleetPlan, PoolPlan, SplitPlan, WorkerPlan
from router.studies.simulation.known import measured
from router.studies.workloads.preble import DOCUMENT, VIDEO

OTHER_SIDE = "least_tokens"
"""Places on the side of a pair that the policy which is studied is not for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """A policy with its parameters, under the name that results carry."""

    policy: str
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The policy, and what of it is not the default."""
        if not self.params:
            return self.policy
        return f"{self.policy}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One fleet.

    Attributes:
        plan: the fleet under a policy.
        targets: of each class of service. Nearly every call meets them when it has the fleet to itself.
        rates: calls per second at which round robin is about to collapse, by workload. The lower of two: the
            highest at which nine of ten calls meet their targets, as `pointsman saturate` finds it, and the
            highest at which calls take at most twice as long as in an idle fleet; both of 2,000 calls. For a
            barrier group, where a step of a full fleet lasts ten times as long, the first alone.
        plain: its workers are plain servers instead of engines.
    """

    name: str
    plan: Callable[[Choosing], FleetPlan]
    targets: Mapping[str, Slo]
    rates: Mapping[str, float]
    plain: bool = False


def _alike(
    count: int, prefix: str, engine: EngineConfig, clock: StepClock, group: str | None = None
) -> tuple[WorkerPlan, ...]:
    known = measured(clock)
    return tuple(
        WorkerPlan(
            name=f"{prefix}{index:03}",
            engine=engine,
            clock=clock,
            slots=engine.max_num_seqs,
            barrier_group=group,
            calibrated=known,
        )
        for index in range(count)
    )


def colocated(choosing: Choosing, workers: tuple[WorkerPlan, ...]) -> FleetPlan:
    """One pool of workers that do everything."""
    return FleetPlan(pools=(_pool("pool", Role.BOTH, choosing, workers),))


def disaggregated(
    choosing: Choosing, prefills: tuple[WorkerPlan, ...], decodes: tuple[WorkerPlan, ...], link: TransferLink
) -> FleetPlan:
    """A pair of pools. A policy that is for one side leaves the other to `OTHER_SIDE`."""
    return FleetPlan(
        pools=(
            _side("prefill", Role.PREFILL, choosing, prefills),
            _side("decode", Role.DECODE, choosing, decodes),
        ),
        split=SplitPlan(link=link),
    )


def _side(name: str, role: Role, choosing: Choosing, workers: tuple[WorkerPlan, ...]) -> PoolPlan:
    chosen = choosing if POLICIES[choosing.policy].fits(role) else Choosing(policy=OTHER_SIDE)
    return _pool(name, role, chosen, workers)


def _pool(name: str, role: Role, choosing: Choosing, workers: tuple[WorkerPlan, ...]) -> PoolPlan:
    """It binds as a pool of the live router does that says nothing of it."""
    barrier = any(worker.barrier_group for worker in workers)
    slots = all(worker.slots for worker in workers)
    return PoolPlan(
        name=name,
        workers=workers,
        policy=choosing.policy,
        params=choosing.params,
        role=role,
        mode=POLICIES[choosing.policy].mode(role, barrier=barrier, slots=slots),
    )


# --- the classics -----------------------------------------------------------------------------------------


def _no_engines(choosing: Choosing) -> FleetPlan:
    raise ValueError("plain servers have no fleet; they are run by router.studies.queueing")


CLASSIC_16 = Setup(
    name="classic_16",
    plan=_no_engines,
    targets={},
    rates={"classic_exponential": 14.4, "classic_heavy_tail": 14.4},
    plain=True,
)
"""16 servers, first come, first served; at 0.9 of what they can do."""

# --- Preble -------------------------------------------------------------------------------------------------

_A6000 = Roofline(MODELS["mistral-7b"], GPUS["a6000"])
_A6000_ENGINE = EngineConfig(
    num_blocks=_A6000.kv_capacity_tokens() // 64 + 1,
    block_size=64,
    max_model_len=32_768,
    max_num_seqs=256,
    max_num_batched_tokens=1_024,
)


def preble(workers: int = 4) -> Callable[[Choosing], FleetPlan]:
    """So many Mistral-7B on an A6000 each, chunks of 1,024 tokens; the paper's second machine has two."""
    return lambda choosing: colocated(choosing, _alike(workers, "w", _A6000_ENGINE, _A6000))


_CHUNK_TPOT_S = 0.2
"""A step with a chunk of 1,024 tokens lasts 0.13 s, and 0.2 s behind a long context."""

PREBLE_A6000 = Setup(
    name="preble_a6000",
    plan=preble(),
    targets={
        "": Slo(2.0, _CHUNK_TPOT_S),
        VIDEO: Slo(6.0, _CHUNK_TPOT_S),
        DOCUMENT: Slo(8.0, _CHUNK_TPOT_S),
    },
    rates={
        "toolbench": 26.0,
        "embodied_agent": 25.0,
        "programming": 10.5,
        "video_qa": 3.1,
        "long_document": 0.87,
        "preble_mixed": 2.1,
    },
)
"""A video of 25,000 tokens is prefilled in 5 s, a document of 32,000 in 6.6 s; the paper has no targets."""

# --- calibrated ---------------------------------------------------------------------------------------------

_A40 = MEASURED["qwen2.5-3b", "a40"]
_A40_ENGINE = EngineConfig(
    num_blocks=60_000 // 16 + 1,
    block_size=16,
    max_model_len=32_768,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
    kv_connector=True,
)
_A40_LINK = TransferLink(
    block_bytes=16 * MODELS["qwen2.5-3b"].kv_bytes_per_token, bytes_per_s=12.5e9, latency_s=0.003
)
TIGHT = Slo(0.175, 0.0397)
"""The tight class of "Calibrate then route"; the loose one has three times as long."""


def calibrated(prefills: int = 2, decodes: int = 4) -> Callable[[Choosing], FleetPlan]:
    """Qwen2.5-3B on an A40 each, 60,000 KV tokens, two that prefill and four that decode in the main runs."""
    return lambda choosing: disaggregated(
        choosing, _alike(prefills, "p", _A40_ENGINE, _A40), _alike(decodes, "d", _A40_ENGINE, _A40), _A40_LINK
    )


CALIBRATED_A40 = Setup(
    name="calibrated_a40",
    plan=calibrated(),
    targets={"": TIGHT, "tight": TIGHT, "loose": Slo(3 * TIGHT.ttft_s, 3 * TIGHT.tpot_s)},
    rates={"chat_short": 80.0, "long_prefill": 11.5, "long_decode": 5.4, "mixed_bursty": 21.0},
)

# --- BalanceRoute -------------------------------------------------------------------------------------------

_NPU = StepTimes(
    base_s=5e-3, per_sequence_s=0.0, per_kv_token_s=0.20e-6, prefill_base_s=0.0, prefill_per_token_s=0.0
)
"""The decode side alone: prompts come prefilled, from a tier that is never short."""


def balanceroute(
    workers: int = 8, slots: int = 64, *, early: bool = False
) -> Callable[[Choosing], FleetPlan]:
    """Decode ranks that step together, 64 slots each (DeepSeek-V3, data parallel over 8 times 4 dies).

    Args:
        early: policies that choose for one call at a time do so when it comes, as the paper's baselines do;
            a pool of the live router lets it wait for a free slot where workers step together.
    """
    engine = EngineConfig(
        num_blocks=slots * 48_000 // 64 + 1,
        block_size=64,
        max_model_len=48_064,
        max_num_seqs=slots,
        max_num_batched_tokens=slots * 48_064,
        enable_prefix_caching=False,
    )

    def plan(choosing: Choosing) -> FleetPlan:
        made = colocated(choosing, _alike(workers, "d", engine, _NPU, "group"))
        if early and POLICIES[choosing.policy].shape is not Shape.BATCH:
            made = replace(made, pools=(replace(made.pools[0], mode=Mode.EARLY),))
        return made

    return plan


BALANCEROUTE_8 = Setup(
    name="balanceroute_8",
    plan=balanceroute(),
    targets={"": Slo(10.0, 0.09)},
    rates={"balanceroute_proprietary": 9.2, "balanceroute_azure": 6.5},
)

# --- agents -------------------------------------------------------------------------------------------------

_A100 = Roofline(MODELS["llama-3-8b"], GPUS["a100"])
_A100_ENGINE = EngineConfig(
    num_blocks=_A100.kv_capacity_tokens() // 64 + 1,
    block_size=64,
    max_model_len=40_000,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
)

AGENTS_A100 = Setup(
    name="agents_a100",
    plan=lambda choosing: colocated(choosing, _alike(4, "w", _A100_ENGINE, _A100)),
    targets={"": Slo(1.0, 0.05)},
    rates={"agents": 21.0},
)

SETUPS: dict[str, Setup] = {
    setup.name: setup for setup in (CLASSIC_16, PREBLE_A6000, CALIBRATED_A40, BALANCEROUTE_8, AGENTS_A100)
}
