"""The simulation tells what the live router does: the same calls go to the same workers at the same times.

Everything live is there but sockets: the whole router, its ports, and mock engines behind it, in virtual
time. Times agree to a microsecond because both sides have the same engine model and no other delays; how
real sockets differ is for a benchmark to say.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.local_queue import Order
from router.policies import POLICIES, Shape
from router.studies.simulation.call import Call
from router.studies.workloads import WORKLOADS
from tests.studies.parity_stage import EVEN, Crash, Seen, Stage, lived, simulated

SINGLE = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.ONE)
BATCH = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.BATCH)


def calls(workload: str = "toolbench", count: int = 36, rate: float = 14.0, seed: int = 1) -> list[Call]:
    return WORKLOADS[workload].calls(count, rate, seed)


def assert_same(stage: Stage, made: list[Call]) -> None:
    """Every placement, every time and every hit."""
    left, right = simulated(stage, made), lived(stage, made)
    assert [seen.outcome for seen in left] == [seen.outcome for seen in right]
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


# --- turns, budgets and troubles ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [Order.FCFS, Order.PRIORITY_GROUPS])
def test_turns_at_a_worker_come_in_the_same_order(order: Order) -> None:
    made = calls("toolbench", 48, 40.0)
    stage = Stage(policy="preble", slots=4, local=order, max_dispatched=4)
    assert_same(stage, made)
    free = simulated(replace(stage, local=Order.OFF), made)
    assert times(simulated(stage, made)) != times(free), "somebody waited"


def test_a_preble_pool_holds_back_by_itself() -> None:
    assert_same(Stage(policy="preble", slots=4, local=Order.AUTO), calls("toolbench", 48, 40.0))


def test_prefills_of_a_pair_take_turns_alike() -> None:
    made = calls("toolbench", 36, 30.0)
    stage = Stage(policy="cache_aware", workers=4, prefills=2, slots=8, local=Order.FCFS, max_dispatched=1)
    assert_same(stage, made)
    assert times(simulated(stage, made)) != times(simulated(replace(stage, local=Order.OFF), made))


def test_a_full_prefill_worker_gets_no_more_until_the_same_mark() -> None:
    made = calls("toolbench", 36, 14.0)
    stage = Stage(policy="least_tokens", workers=4, prefills=2, kv_tokens=8_000, budget=(0.4, 0.2))
    assert_same(stage, made)
    assert times(simulated(stage, made)) != times(simulated(replace(stage, budget=(0.85, 0.75)), made))


@pytest.mark.parametrize(("policy", "at"), [("least_tokens", 1.64), ("cache_aware", 1.03)])
def test_a_crash_in_mid_traffic_ends_and_moves_the_same_calls(policy: str, at: float) -> None:
    """Within the same microsecond: those that had begun are broken, those that had not are tried again, and
    the worker is out, back and warmed up alike."""
    made = calls("toolbench", 70, 14.0)
    assert_same(Stage(policy=policy, crashes=(Crash(at, "w1", 2.5),)), made)


def test_what_a_crash_leads_to_is_all_there() -> None:
    """The traffic above has every case in it, or it would prove nothing."""
    made = calls("toolbench", 70, 14.0)
    stage = Stage(policy="least_tokens", crashes=(Crash(1.64, "w1", 2.5),))
    tried = simulated(stage, made)
    untried = simulated(replace(stage, sections={"retry": {"enabled": False}}), made)
    assert {one.outcome for one in tried} == {"ok", "broken"}
    assert {one.outcome for one in untried} == {"ok", "broken", "refused"}
    assert "w1" in {one.worker for one, call in zip(tried, made, strict=True) if call.at > 5.0}


@pytest.mark.parametrize(("name", "at"), [("w0", 1.48), ("w0", 1.64), ("w3", 1.48), ("w2", 1.7)])
def test_a_crash_on_either_side_of_a_pair_ends_and_moves_the_same_calls(name: str, at: float) -> None:
    stage = Stage(policy="least_tokens", workers=5, prefills=2, crashes=(Crash(at, name, 2.5),))
    assert_same(stage, calls("toolbench", 50, 14.0))


SECTIONS: dict[str, tuple[Stage, str, float]] = {
    "no retries": (
        Stage(
            policy="least_tokens",
            crashes=(Crash(1.64, "w1", 1.0),),
            sections={"retry": {"enabled": False}},
        ),
        "toolbench",
        14.0,
    ),
    "back soon": (
        Stage(
            policy="least_tokens",
            crashes=(Crash(1.03, "w1", 0.7),),
            sections={
                "health": {**EVEN["health"], "interval_s": 0.5, "failures_to_eject": 1, "warmup_s": 3.0}
            },
        ),
        "toolbench",
        14.0,
    ),
    "first events in time": (
        Stage(policy="least_tokens", slots=4, sections={"timeouts": {"first_event_s": 0.25}}),
        "toolbench",
        40.0,
    ),
    "prefills in time": (
        Stage(policy="least_tokens", workers=4, prefills=2, sections={"timeouts": {"prefill_s": 0.1}}),
        "toolbench",
        14.0,
    ),
    "a short queue": (
        Stage(
            policy="balance_route_0",
            slots=2,
            batch=True,
            sections={"limits": {"queue_size": 5, "queue_timeout_s": 0.6}},
        ),
        "chat_short",
        40.0,
    ),
    "few turns": (
        Stage(
            policy="least_tokens",
            slots=2,
            local=Order.FCFS,
            max_dispatched=2,
            sections={"limits": {"queue_size": 8, "queue_timeout_s": 0.6}},
        ),
        "chat_short",
        80.0,
    ),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_settings_lead_to_the_same(name: str) -> None:
    stage, workload, rate = SECTIONS[name]
    made = calls(workload, 40, rate)
    assert_same(stage, made)
    usual = simulated(replace(stage, sections={}), made)
    assert simulated(stage, made) != usual, "the settings matter here"
