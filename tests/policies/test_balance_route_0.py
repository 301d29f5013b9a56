"""BR-0: gaps are filled, peaks avoided, and nobody is forgotten."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from router.core.request import Request
from router.core.worker import StepModel
from router.policies.balance_route_0 import BalanceRoute0, Parameters
from router.policies.round_watch import STAGES
from tests.policies.examples import NOW, Server, idle, place, policy, request, varied, worker
from tests.policies.rank_examples import FrozenRank, Watch, admitted, batch, commit, group, prompts, rank

STEP = StepModel(0.0, 0.0, 0.005, 0.0, 2e-7)


def reasons(pool: list[FrozenRank], waiting: list[Request], **params: object) -> list[str]:
    choices = batch("balance_route_0", 1, **params).admit(waiting, pool, NOW)
    return [choice.reason for choice in choices]


def go(pool: list[FrozenRank], waiting: list[Request], **params: object) -> dict[str, str]:
    return dict(admitted(batch("balance_route_0", 1, **params).admit(waiting, pool, NOW)))


# --- the bypass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "value"), [(900, 900), (1_000, 1_000), (1_100, 300), (1_200, -400)])
def test_the_cost_is_minus_f_of_eight_workers(tokens: int, value: int) -> None:
    pool = group(4_000, *[5_000] * 7)
    choice = policy("balance_route_0").pick(request(prompt_tokens=tokens), pool, NOW)
    assert choice is not None
    assert (choice.worker, choice.reason) == ("w0", "bypass")
    assert choice.cost == pytest.approx(-value)


def test_a_full_worker_that_is_not_offered_still_sets_the_height() -> None:
    members = group(4_000, 4_500, 9_000)
    alone = [rank("w0", kv_tokens=4_000, barrier_group="g"), rank("w1", kv_tokens=4_500, barrier_group="g")]
    one = request(prompt_tokens=1_000)
    with_peers = policy("balance_route_0").pick(one, members[:2], NOW)
    without = policy("balance_route_0").pick(one, alone, NOW)
    assert with_peers is not None
    assert without is not None
    assert with_peers.cost == -1_000
    assert without.cost == -(1_000 - 2 * 500)


def test_of_workers_that_all_have_a_gap_the_least_loaded_takes_it() -> None:
    pool = group(4_000, 3_000, 9_000, 5_000)
    assert place(policy("balance_route_0"), request(prompt_tokens=500), pool) == "w1"


def test_the_bypass_waits_for_room() -> None:
    pool = group(900, 800, kv_capacity_tokens=1_000)
    assert policy("balance_route_0").pick(request(prompt_tokens=500), pool, NOW) is None
    assert policy("balance_route_0").pick(request(prompt_tokens=5), group(1, 2, free=0), NOW) is None


@pytest.mark.parametrize("seed", [0, 1])
def test_idle_workers_are_bypassed_to_evenly(seed: int) -> None:
    chooser, pool = policy("balance_route_0", seed), idle(8)
    counts = Counter(place(chooser, varied(n), pool) for n in range(4_000))
    assert sum((counts[w.name] - 500) ** 2 / 500 for w in pool) < 24.3  # 7 degrees of freedom, 99.9 %


def test_twice_the_capacity_gets_about_twice_the_tokens() -> None:
    chooser, source = policy("balance_route_0"), random.Random(5)
    servers = [Server(name=f"s{n}", capacity=2.0 if n % 2 else 1.0) for n in range(8)]
    by_name, running = {s.name: s for s in servers}, list[str]()
    fast = slow = 0
    for n in range(2_000):
        chosen = by_name[place(chooser, request(n, prompt_tokens=1_000), servers)]
        chosen.kv_tokens += 1_000
        chosen.in_flight += 1
        running.append(chosen.name)
        if len(running) > 120:
            gone = by_name[running.pop(source.randrange(len(running)))]
            gone.kv_tokens -= 1_000
            gone.in_flight -= 1
        if n > 400:
            fast += sum(s.kv_tokens for s in servers if s.capacity == 2.0)
            slow += sum(s.kv_tokens for s in servers if s.capacity == 1.0)
    assert 1.6 < fast / slow < 2.4


def test_calibrated_workers_are_compared_in_seconds() -> None:
    """The slow one holds fewer tokens and yet is the one that all wait for."""
    slow = StepModel(0.0, 0.0, 0.005, 0.0, 4e-7)
    pool = [rank("fast", kv_tokens=60_000, step=STEP), rank("slow", kv_tokens=50_000, step=slow)]
    choice = policy("balance_route_0").pick(request(prompt_tokens=10_000), pool, NOW)
    assert choice is not None
    assert choice.worker == "fast"
    assert choice.cost == pytest.approx(-10_000 * 2e-7)
    uncalibrated = [rank("fast", kv_tokens=60_000, step=STEP), rank("slow", kv_tokens=50_000)]
    assert place(policy("balance_route_0"), request(prompt_tokens=10_000), uncalibrated) == "slow"


# --- stage 1 ---------------------------------------------------------------------------------------------


def test_while_slots_are_many_the_emptiest_takes_what_fits_its_gap() -> None:
    pool = [
        rank("a", kv_tokens=1_000, in_flight=1, free_slots=9),
        rank("b", kv_tokens=4_000, in_flight=1, free_slots=8),
    ]
    choices = batch("balance_route_0").admit(prompts(200, 3_500, 2_900, 100), pool, NOW)
    assert (choices[0].request_id, choices[0].worker, choices[0].reason) == ("r2", "a", "greedy")
    assert choices[0].cost == -2_900


def test_the_oldest_of_equals_goes_first() -> None:
    assert next(iter(go(group(0, 0, free=5), prompts(300, 300, 300)))) == "r0"


def test_slots_that_nobody_named_are_without_end() -> None:
    placed = batch("balance_route_0").admit(prompts(*[50] * 40), [rank("a"), rank("b")], NOW)
    assert Counter(choice.worker for choice in placed) == {"a": 20, "b": 20}
    assert {choice.reason for choice in placed} == {"greedy"}


# --- stage 2 ---------------------------------------------------------------------------------------------


def test_when_slots_are_few_a_subset_fills_the_gap() -> None:
    pool = group(10_000, 4_000, 10_000, 10_000, free=0)
    pool[1] = rank("w1", kv_tokens=4_000, in_flight=1, free_slots=3, barrier_group="g", barrier_peers=pool)
    choices = batch("balance_route_0").admit(prompts(5_000, 2_600, 3_400, 900), pool[1:2], NOW)
    assert [(c.request_id, c.reason) for c in choices] == [
        ("r1", "subset"),  # 6,000 of 6,000
        ("r2", "subset"),
        ("r3", "guard"),  # the third slot
    ]
    assert [c.cost for c in choices] == [-6_000, -6_000, 3 * 900]


def test_only_the_head_of_the_queue_is_searched() -> None:
    pool = group(10_000, 4_000, 10_000)[1:2]
    waiting = prompts(100, 200, 300, 400, 6_000)
    assert go(pool, waiting) == {"r3": "w1"}
    assert go(pool, waiting, candidates=5) == {"r4": "w1"}


def test_a_free_slot_is_filled_even_when_it_hurts() -> None:
    pool = group(9_000, 1_000)[:1]
    assert go(pool, prompts(700, 300, 900)) == {"r1": "w0"}
    assert reasons(pool, prompts(700, 300, 900)) == ["guard"]


def test_one_worker_alone_serves_in_order() -> None:
    chooser, waiting, order = batch("balance_route_0"), prompts(700, 300, 900, 100), []
    while waiting:
        ((chosen, _),) = admitted(chooser.admit(waiting, group(50), NOW))
        order.append(chosen)
        waiting = [one for one in waiting if one.id != chosen]
    assert order == ["r0", "r1", "r2", "r3"]


def test_groups_keep_their_own_height() -> None:
    pool = [
        rank("a", kv_tokens=1_000, in_flight=1, free_slots=1, barrier_group="g"),
        rank("b", kv_tokens=1_200, in_flight=1, free_slots=0, barrier_group="g"),
        rank("c", kv_tokens=90_000, in_flight=1, free_slots=0, barrier_group="h"),
        rank("d", kv_tokens=50_000, in_flight=1, free_slots=1, barrier_group="h"),
    ]
    assert go([w for w in pool if w.free_slots] + pool[1:3], prompts(200, 30_000)) == {"r0": "a", "r1": "d"}


# --- KV --------------------------------------------------------------------------------------------------


def test_a_share_of_the_kv_is_left_to_what_runs() -> None:
    pool = group(500, kv_capacity_tokens=1_000, free=4)
    assert set(go(pool, prompts(300, 150, 100))) == {"r0", "r1"}
    assert set(go(pool, prompts(300, 150, 100), kv_reserve=0.0)) == {"r0", "r1"}
    assert set(go(pool, prompts(300, 150, 100), kv_reserve=0.3)) == {"r1"}


def test_what_does_not_fit_lets_others_pass() -> None:
    assert go(group(500, kv_capacity_tokens=1_000), prompts(800, 800, 800, 800, 800, 90)) == {"r5": "w0"}


def test_what_nobody_could_ever_hold_goes_to_the_engine_at_once() -> None:
    pool = group(500, 300, kv_capacity_tokens=1_000)
    choices = batch("balance_route_0").admit(prompts(5_000, 90), pool, NOW)
    assert next((c.request_id, c.worker, c.reason) for c in choices) == ("r0", "w1", "oversized")
    unsure = [*group(500, kv_capacity_tokens=1_000), rank("unknown", in_flight=1, free_slots=1)]
    assert go(unsure, prompts(5_000)) == {"r0": "unknown"}


def test_what_needs_a_whole_worker_waits_for_an_empty_one() -> None:
    wide = prompts(100, sequences=9)
    busy, empty = group(500, free=4), [rank("empty", free_slots=4)]
    assert go(busy, wide) == {}
    assert go([*busy, *empty], wide) == {"r0": "empty"}
    assert reasons(empty, wide) == ["whole_worker"]
    long = prompts(990)
    assert go([rank("empty", free_slots=4, kv_capacity_tokens=1_000)], long) == {"r0": "empty"}
    assert go(group(5, kv_capacity_tokens=1_000), long) == {}


# --- ageing ----------------------------------------------------------------------------------------------


def overtaken(count: int, at: float, **params: object) -> BalanceRoute0:
    """A policy that has placed so many requests which came just now."""
    made = batch("balance_route_0", 1, **params)
    assert isinstance(made, BalanceRoute0)
    for n in range(count):
        late = request(100 + n, arrived=at)
        choice = made.pick(late, idle(1), at)
        assert choice is not None
        made.committed(late, choice, at, retry=False)
    return made


def test_the_aged_goes_first_to_the_worker_with_most_free_kv() -> None:
    pool = [
        rank("small", kv_tokens=1_000, in_flight=1, free_slots=2, kv_capacity_tokens=40_000),
        rank("large", kv_tokens=9_000, in_flight=1, free_slots=1, kv_capacity_tokens=90_000),
    ]
    waiting = prompts(20_000, 100)
    fresh = batch("balance_route_0").admit(waiting, pool, NOW)
    assert [c.reason for c in fresh if c.request_id == "r0"] != ["aged"]
    old = overtaken(1, NOW).admit(waiting, pool, NOW + 2.0)
    assert next((c.request_id, c.worker, c.reason) for c in old) == ("r0", "large", "aged")
    many = overtaken(16, NOW).admit(waiting, pool, NOW)
    assert (many[0].request_id, many[0].reason) == ("r0", "aged")


def test_the_roomiest_worker_is_kept_for_the_aged_one_that_does_not_fit() -> None:
    pool = [
        rank("a", kv_tokens=90_000, in_flight=9, free_slots=3, kv_capacity_tokens=100_000),
        rank("b", kv_tokens=70_000, in_flight=9, free_slots=3, kv_capacity_tokens=100_000),
    ]
    waiting = prompts(50_000, 100, 100, 100)
    choices = overtaken(1, NOW).admit(waiting, pool, NOW + 2.0)
    assert {(c.request_id, c.worker) for c in choices} == {(f"r{n}", "a") for n in (1, 2, 3)}
    drained = [pool[0], rank("b", kv_tokens=30_000, in_flight=2, free_slots=9, kv_capacity_tokens=100_000)]
    choices = overtaken(1, NOW).admit(waiting, drained, NOW + 3.0)
    assert (choices[0].request_id, choices[0].worker) == ("r0", "b")


def test_a_long_prompt_that_is_never_the_best_gets_in_within_the_bound() -> None:
    """Without margin the shortest wins every round: the failure of the guard alone."""
    made = batch("balance_route_0", 1, age_s=1_000.0)
    waiting, passed = prompts(50_000, 10), 0
    for n in range(100):
        choices = made.admit(waiting, group(5_000, 100)[:1], NOW + n / 100)
        commit(made, waiting, choices, NOW + n / 100)
        ((chosen, _),) = admitted(choices)
        if chosen == "r0":
            break
        passed += 1
        waiting = [waiting[0], *prompts(10, first=n + 2)]
    assert passed == 16


# --- what a shell sees -----------------------------------------------------------------------------------


def test_the_end_of_each_stage_is_told() -> None:
    told = Watch()
    made = BalanceRoute0(Parameters(), 1, watch=told)
    choices = made.admit(prompts(1, 2), group(5, 6), NOW)
    assert tuple(told.stages) == ("began", *STAGES)
    (result,) = told.results
    assert (result.waiting, result.choices, result.fallback) == (2, choices, None)


def test_what_a_round_gains_is_what_its_sets_are_worth() -> None:
    """One gap of 1,000 below the highest of three: 900 fill it, and 1,200 make two others wait 200 each."""
    told = Watch()
    made = BalanceRoute0(Parameters(), 1, watch=told)
    made.admit(prompts(900), group(1_000, 2_000, 2_000)[:1], NOW)
    made.admit(prompts(1_200), group(1_000, 2_000, 2_000)[:1], NOW)
    made.admit(prompts(3_000), group(1_000, 2_000, 2_000)[:1], NOW)
    assert [(result.gained, result.lost) for result in told.results] == [(900, 0), (600, 0), (0, 3_000)]


def test_a_plain_view_without_peers_will_do() -> None:
    pool = [worker("a", free_slots=1, kv_tokens=500), worker("b", free_slots=1, kv_tokens=900)]
    choices = batch("balance_route_0").admit(prompts(400, 10), pool, NOW)
    assert admitted(choices) == [("r0", "a"), ("r1", "b")]
