"""Small fleets and calls for tests of simulations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.parts import Part
from engines.model.roofline import StepTimes
from router.core.binding import Mode
from router.core.worker import Role
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import Delays, FleetPlan, PoolPlan, SplitPlan, Trouble, WorkerPlan

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=1e-4, per_kv_token_s=1e-6, prefill_base_s=0.005, prefill_per_token_s=1e-4
)
ENGINE = EngineConfig(num_blocks=2_001, max_model_len=8_000, max_num_seqs=16, max_num_batched_tokens=2_048)
LINK = TransferLink(block_bytes=1_000, bytes_per_s=1e6, latency_s=0.002)


def workers(
    count: int, prefix: str = "w", group: str | None = None, **knobs: object
) -> tuple[WorkerPlan, ...]:
    return tuple(
        WorkerPlan(name=f"{prefix}{n}", engine=ENGINE, clock=CLOCK, barrier_group=group, **knobs)  # type: ignore[arg-type]  # any field
        for n in range(count)
    )


def fleet(
    count: int = 4,
    policy: str = "least_tokens",
    *,
    params: Mapping[str, object] | None = None,
    mode: Mode = Mode.EARLY,
    troubles: Sequence[Trouble] = (),
    delays: Delays | None = None,
    **knobs: object,
) -> FleetPlan:
    """One pool of engines that do everything."""
    pool = PoolPlan(
        name="pool", workers=workers(count, **knobs), policy=policy, params=params or {}, mode=mode
    )  # type: ignore[arg-type]  # any field
    return FleetPlan(pools=(pool,), troubles=tuple(troubles), delays=delays or Delays())


def split_fleet(
    policy: str = "least_tokens",
    *,
    concurrent: bool = False,
    min_tokens: int = 0,
    troubles: Sequence[Trouble] = (),
) -> FleetPlan:
    """Two prefill and three decode engines."""
    return FleetPlan(
        pools=(
            PoolPlan(name="prefill", workers=workers(2, "p"), policy=policy, role=Role.PREFILL),
            PoolPlan(name="decode", workers=workers(3, "d"), policy=policy, role=Role.DECODE),
        ),
        split=SplitPlan(link=LINK, concurrent=concurrent, min_tokens=min_tokens),
        troubles=tuple(troubles),
    )


def calls(count: int = 60, rate: float = 20.0, seed: int = 1, shared: int = 0, **knobs: object) -> list[Call]:
    """Poisson arrivals of prompts of about 300 tokens, of which so many are the same in all."""
    chance = random.Random(seed)
    at, made = 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        own = Part(number + 1, chance.randrange(50, 500))
        parts = (Part(0, shared), own) if shared else (own,)
        made.append(Call(number=number, at=at, parts=parts, output_tokens=chance.randrange(1, 60), **knobs))  # type: ignore[arg-type]  # any field
    return made
