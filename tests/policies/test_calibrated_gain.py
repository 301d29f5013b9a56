"""What the calibrated cost is for: requests of very different size, over engines in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

from engines.model.engine import EngineConfig
from engines.model.parts import Part
from engines.model.roofline import MEASURED
from router.core.calibration import CalibrationState
from router.core.calibration_online import OnlineCalibration
from router.core.worker import Role
from router.studies.setups import CALIBRATED_A40, Choosing
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import FleetPlan, PoolPlan, WorkerPlan
from router.studies.simulation.known import measured
from router.studies.simulation.run import Simulation
from router.studies.workloads import WORKLOADS

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


def test_a_pair_of_pools_learns_its_own_constants_and_decides_by_them() -> None:
    """Reports as often as a live router takes them in; nothing is known at the start."""
    plan = CALIBRATED_A40.plan(Choosing(policy="calibrated"))
    pools = tuple(
        replace(pool, workers=tuple(replace(worker, calibrated=None) for worker in pool.workers))
        for pool in plan.pools
    )
    live = replace(plan, pools=pools, delays=replace(plan.delays, progress_s=0.05, stretch_s=0.05))
    simulation = Simulation(live, WORKLOADS["mixed_bursty"].calls(300, 13.0, 1), 1)
    for rounds in simulation.rounds:
        rounds.pool.ledger.online = OnlineCalibration()
    result = simulation.run()
    truth = measured(CLOCK)
    for rounds in simulation.rounds:
        for worker in rounds.pool.roster:
            assert worker.calibration.state is CalibrationState.ONLINE
            assert worker.step is not None
            if worker.role is Role.DECODE:
                for sequences, kv_tokens in ((5, 4_000), (20, 20_000), (40, 40_000)):
                    step_s = truth.step_s(sequences, kv_tokens)
                    assert abs(worker.step.step_s(sequences, kv_tokens) / step_s - 1) < 0.05
            else:
                for tokens in (500, 2_000):
                    assert abs(worker.step.prefill_s(tokens) / truth.prefill_s(tokens) - 1) < 0.1
    reasons = Counter(call.reason for call in result.calls)
    assert reasons["physical"] > reasons["fallback:uncalibrated"] > 0
