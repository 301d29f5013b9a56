"""Small fleets and calls for tests of simulations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.parts import Part
from engines.model.roofline import StepTimes
from router.core.binding import Mode
from router.core.local_queue import LocalQueueRules, Order
from router.core.worker import Role
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import (
    Delays,
    FleetPlan,
    Patience,
    PoolPlan,
    SplitPlan,
    Trouble,
    WorkerPlan,
)
from router.studies.simulation.run import RunResult, Simulation
from tests.core.fleet_examples import assert_idle

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=1e-4, per_kv_token_s=1e-6, prefill_base_s=0.005, prefill_per_token_s=1e-4
)
ENGINE = EngineConfig(num_blocks=2_001, max_model_len=8_000, max_num_seqs=16, max_num_batched_tokens=2_048)
SETTLED_S = 35.0
NOTHING_HELD = LocalQueueRules(Order.OFF)
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
    local: LocalQueueRules | None = None,
    patience: Patience | None = None,
    **knobs: object,
) -> FleetPlan:
    """One pool of engines that do everything."""
    pool = PoolPlan(
        name="pool",
        workers=workers(count, **knobs),
        policy=policy,
        params=params or {},
        mode=mode,
        local=local or NOTHING_HELD,
    )
    return FleetPlan(
        pools=(pool,),
        troubles=tuple(troubles),
        delays=delays or Delays(),
        patience=patience or Patience(),
    )


def split_fleet(
    policy: str = "least_tokens",
    *,
    concurrent: bool = False,
    min_tokens: int = 0,
    troubles: Sequence[Trouble] = (),
    local: LocalQueueRules | None = None,
    patience: Patience | None = None,
) -> FleetPlan:
    """Two prefill and three decode engines; of a local queue, the prefill ones'."""
    return FleetPlan(
        pools=(
            PoolPlan(
                name="prefill",
                workers=workers(2, "p"),
                policy=policy,
                role=Role.PREFILL,
                local=local or NOTHING_HELD,
            ),
            PoolPlan(
                name="decode", workers=workers(3, "d"), policy=policy, role=Role.DECODE, local=NOTHING_HELD
            ),
        ),
        split=SplitPlan(link=LINK, concurrent=concurrent, min_tokens=min_tokens),
        troubles=tuple(troubles),
        patience=patience or Patience(),
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


def run(plan: FleetPlan, made: list[Call], seed: int = 0) -> RunResult:
    """Runs it, and holds it to what every run must show."""
    simulation = Simulation(plan, made, seed)
    result = simulation.run()
    settle(simulation)
    for rounds in simulation.rounds:
        assert_idle(rounds.pool)
        assert rounds.pool._budgets.in_flight.used == 0
        assert rounds.pool._budgets.queued_bytes.used == 0
        assert len(rounds.pool.local) == 0
        assert rounds.turns._waiting == {}
    assert simulation.trying.budget.used == 0
    assert simulation.courses.lives == {}
    assert all(record.outcome for record in result.calls)
    assert_engines_idle(simulation)
    return result


def settle(simulation: Simulation) -> None:
    """Lets time pass until the last lease on KV that nobody fetched has ended, and the router has seen it."""
    timeline = simulation.timeline
    ends = timeline.now + SETTLED_S
    while timeline.next_at is not None and timeline.next_at < ends:
        timeline.step()


def assert_engines_idle(simulation: Simulation) -> None:
    """Nothing runs at an engine that is there, and nothing is held for anybody."""
    hall = simulation.hall
    wires = simulation.courses.reports.wires
    assert wires is None or not wires._awaited
    for rank in hall:
        assert simulation.courses.reports.at(rank.name) == []
        if hall.is_up(rank.name) and hall.stepper(rank.name).stopped is None:
            assert rank.engine.idle, rank.engine
            assert rank.engine.kv_usage == 0.0
            assert len(rank.engine.kept) == 0
