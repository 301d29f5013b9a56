"""What the calibrated cost is for: requests of very different size, over engines in virtual time."""

from __future__ import annotations

import random
from statistics import fmean

from engines.model.engine import EngineConfig
from engines.model.parts import Part
from engines.model.roofline import MEASURED
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import FleetPlan, PoolPlan, WorkerPlan
from router.studies.simulation.known import measured
from router.studies.simulation.run import Simulation

CLOCK = MEASURED["qwen2.5-3b", "a40"]
ENGINE = EngineConfig(num_blocks=2_501, max_model_len=16_000, max_num_seqs=64, max_num_batched_tokens=2_048)
SEEDS = range(3)


def _calls(seed: int, count: int = 200, rate: float = 18.0) -> list[Call]:
    """Mostly short chats; one in five has a long prompt, another one a long answer."""
    chance, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        kind = chance.random()
        prompt = chance.randrange(2_000, 6_000) if kind < 0.2 else chance.randrange(50, 500)
        output = chance.randrange(400, 1_000) if kind > 0.8 else chance.randrange(10, 120)
        made.append(
            Call(number=number, at=at, parts=(Part(number, prompt),), output_tokens=output, max_tokens=output)
        )
    return made


def _mean_s(policy: str) -> float:
    """Mean time to the last token, over some seeds."""
    known = measured(CLOCK)
    workers = tuple(WorkerPlan(name=f"w{n}", engine=ENGINE, clock=CLOCK, calibrated=known) for n in range(4))
    plan = FleetPlan(pools=(PoolPlan(name="pool", workers=workers, policy=policy),))
    times = []
    for seed in SEEDS:
        result = Simulation(plan, _calls(seed), seed).run()
        assert all(call.outcome == "ok" for call in result.calls)
        times += [call.e2e_s for call in result.calls if call.e2e_s is not None]
    return fmean(times)


def test_sizes_that_differ_are_served_sooner_than_by_turns_or_counts() -> None:
    cost = _mean_s("calibrated")
    assert cost < 0.99 * _mean_s("round_robin")
    assert cost < _mean_s("least_requests")
