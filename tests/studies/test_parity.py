"""The simulation tells what the live router does: the same calls go to the same workers at the same times.

Everything live is there but sockets: the whole router, its ports, and mock engines behind it, in virtual
time. Times agree to a microsecond because both sides have the same engine model and no other delays; how
real sockets differ is for a benchmark to say.
"""

from __future__ import annotations

import pytest

from router.policies import POLICIES, Shape
from router.studies.simulation.call import Call
from router.studies.workloads import WORKLOADS
from tests.studies.parity_stage import Seen, Stage, lived, simulated

SINGLE = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.ONE)
BATCH = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.BATCH)


def calls(workload: str = "toolbench", count: int = 36, rate: float = 14.0, seed: int = 1) -> list[Call]:
    return WORKLOADS[workload].calls(count, rate, seed)


def assert_same(stage: Stage, made: list[Call]) -> None:
    """Every placement, every time and every hit."""
    left, right = simulated(stage, made), lived(stage, made)
    assert [seen.worker for seen in left] == [seen.worker for seen in right]
    assert [seen.hit_tokens for seen in left] == [seen.hit_tokens for seen in right]
    assert times(left) == pytest.approx(times(right), abs=1e-6)


def times(seen: list[Seen]) -> list[float]:
    return [each for one in seen for each in (one.ttft_s, one.e2e_s)]


@pytest.mark.parametrize("policy", SINGLE)
def test_the_simulation_places_as_the_live_router_does(policy: str) -> None:
    assert_same(Stage(policy=policy), calls())


@pytest.mark.parametrize("policy", BATCH)
def test_rounds_place_the_same_batches(policy: str) -> None:
    assert_same(Stage(policy=policy, slots=4, batch=True), calls("chat_short", 24, 40.0))


@pytest.mark.parametrize("policy", ["least_tokens", "cache_aware", "joint"])
def test_split_calls_take_the_same_course(policy: str) -> None:
    assert_same(Stage(policy=policy, workers=5, prefills=2), calls())


def test_another_seed_places_otherwise_and_still_the_same_on_both_sides() -> None:
    stage, made = Stage(policy="random"), calls(count=20)
    first, second = simulated(stage, made, seed=1), simulated(stage, made, seed=2)
    assert [seen.worker for seen in first] != [seen.worker for seen in second]
    assert [seen.worker for seen in second] == [seen.worker for seen in lived(stage, made, seed=2)]


def test_a_cache_that_overflows_is_believed_to_overflow_alike() -> None:
    assert_same(Stage(policy="cache_aware", kv_tokens=20_000), calls("toolbench", 40, 10.0, seed=3))
