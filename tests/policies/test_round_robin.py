"""Turns: even, weighted, steady under change, and unmoved by retries."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.policies.round_robin import RoundRobin
from router.policies.spec import NoParameters
from tests.policies.examples import NOW, FrozenWorker, idle, place, policy, request, worker


def run(chooser: RoundRobin, pool: list[FrozenWorker], count: int, start: int = 0) -> list[str]:
    return [place(chooser, request(start + n), pool) for n in range(count)]


def fresh(seed: int = 1) -> RoundRobin:
    return RoundRobin(NoParameters(), seed)


def test_equal_workers_follow_each_other_in_one_fixed_order() -> None:
    names = run(fresh(), idle(5), 50)
    assert sorted(names[:5]) == [w.name for w in idle(5)]
    assert names == names[:5] * 10


def test_the_order_is_that_of_the_seed_and_not_of_names() -> None:
    orders = {tuple(run(fresh(seed), idle(4), 4)) for seed in range(20)}
    assert len(orders) > 8


def test_twice_the_capacity_is_twice_the_turns_and_not_in_a_burst() -> None:
    pool = [worker("fast", capacity=2.0), worker("a"), worker("b")]
    names = run(fresh(), pool, 400)
    assert Counter(names) == {"fast": 200, "a": 100, "b": 100}
    assert all("fast" in names[n : n + 3] for n in range(398))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6))
def test_turns_are_in_proportion_to_capacity_to_within_two(capacities: list[float]) -> None:
    pool = [worker(f"w{n}", capacity=c) for n, c in enumerate(capacities)]
    counts = Counter(run(fresh(), pool, 300))
    if len(pool) > 1:
        for w in pool:
            assert abs(counts[w.name] - 300 * w.capacity / sum(capacities)) <= 1 + len(pool) / 2


def test_warmup_slows_the_turns_of_a_worker_that_came_back() -> None:
    pool = [worker("back", warmup=2.0), worker("a"), worker("b")]
    assert Counter(run(fresh(), pool, 250)) == {"back": 50, "a": 100, "b": 100}


def test_a_worker_that_joins_has_its_turn_and_no_burst() -> None:
    chooser, pool = fresh(), idle(4)
    run(chooser, pool, 4_003)
    names = run(chooser, [*pool, worker("new")], 50, start=4_003)
    assert "new" in names[:5]
    assert Counter(names)["new"] == 10


def test_a_worker_that_was_away_does_not_catch_up() -> None:
    chooser, pool = fresh(), idle(4)
    run(chooser, pool, 10)
    run(chooser, pool[1:], 1_000, start=10)
    counts = Counter(run(chooser, pool, 40, start=1_010))
    assert set(counts.values()) <= {9, 10, 11}


def test_a_worker_that_leaves_gives_its_turns_to_all_alike() -> None:
    chooser, pool = fresh(), idle(5)
    run(chooser, pool, 52)
    counts = Counter(run(chooser, pool[:-1], 40, start=52))
    assert set(counts.values()) <= {9, 10, 11}


def test_a_flapping_worker_gets_no_more_than_its_share() -> None:
    chooser, pool = fresh(), idle(4)
    names = [place(chooser, request(n), pool if n % 2 else pool[1:]) for n in range(400)]
    assert Counter(names)[pool[0].name] <= 101


def test_requests_for_some_workers_only_do_not_lock_the_others_in_phase() -> None:
    chooser, pool = fresh(), idle(6)
    names = []
    for n in range(600):
        some = place(chooser, request(2 * n), pool[:2])
        assert some in {pool[0].name, pool[1].name}
        names.append(place(chooser, request(2 * n + 1), pool))
    counts = Counter(names)
    assert all(counts[w.name] >= 100 for w in pool[2:])
    assert max(counts.values()) <= 151


def test_a_pinned_request_changes_no_turn() -> None:
    chooser, pool = fresh(), idle(3)
    expected = run(fresh(), pool, 30)
    names = []
    for n in range(30):
        assert place(chooser, request(1_000 + n), pool[:1]) == pool[0].name
        names.append(place(chooser, request(n), pool))
    assert names == expected


def test_a_retry_is_not_the_next_turn_and_moves_none() -> None:
    chooser, pool = fresh(), idle(5)
    place(chooser, request(0), pool)
    successor = chooser.pick(request(1), pool, NOW).worker
    others = [w for w in pool if w.name != chooser.pick(request(0), pool, NOW).worker]
    retried = {place(chooser, request(n, attempt=1, avoid=frozenset({"bad"})), others) for n in range(50)}
    assert len(retried) == 4
    assert chooser.pick(request(1), pool, NOW).worker == successor


def test_a_commit_marked_as_retry_moves_nothing() -> None:
    chooser, pool = fresh(), idle(3)
    choice = chooser.pick(request(0), pool, NOW)
    before = dataclasses.replace(chooser, last=dict(chooser.last))
    chooser.committed(request(0), choice, NOW, retry=True)
    assert chooser == before
    chooser.committed(request(0), choice, NOW, retry=False)
    assert chooser != before


def test_one_worker_that_always_fails_is_met_once_a_round() -> None:
    """Rivals meet it nine times of ten: their retry takes the turn of the good one."""
    chooser, pool = fresh(), idle(2)
    bad, met = pool[0].name, 0
    for n in range(100):
        if place(chooser, request(n), pool) == bad:
            met += 1
            assert place(chooser, request(n, attempt=1, avoid=frozenset({bad})), pool[1:]) == pool[1].name
    assert met == 50


def test_names_are_remembered_within_a_bound() -> None:
    chooser = fresh()
    for n in range(5_000):
        place(chooser, request(n), [worker(f"pod-{n}"), worker(f"pod-{n + 1}")])
    assert len(chooser.last) <= 4_096
    assert "served=5000" in repr(chooser)


def test_load_is_not_looked_at() -> None:
    light, heavy = idle(3), [worker(w.name, in_flight=n * 50) for n, w in enumerate(idle(3))]
    assert run(fresh(), light, 9) == run(fresh(), heavy, 9)
    assert isinstance(policy("round_robin"), RoundRobin)
