"""Conversations stay, few move, and nobody gets more than the bound."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.examples import NOW, FrozenWorker, idle, place, policy, request, worker

KEYS = [f"conversation {n}" for n in range(3_000)]


def homes(pool: list[FrozenWorker], seed: int = 1) -> dict[str, str]:
    chooser = policy("session_affinity", seed)
    return {key: place(chooser, request(n, affinity=key), pool) for n, key in enumerate(KEYS)}


def test_a_conversation_stays_on_its_worker_whatever_its_sequence_numbers() -> None:
    chooser, pool = policy("session_affinity"), idle(8)
    assert len({place(chooser, request(n, affinity="one"), pool) for n in range(200)}) == 1


def test_the_order_in_which_workers_are_offered_does_not_matter() -> None:
    assert homes(idle(5)) == homes(idle(5)[::-1])


def test_a_worker_that_leaves_moves_only_its_own_conversations() -> None:
    pool = idle(6)
    before, after = homes(pool), homes(pool[1:])
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == pool[0].name}
    spread = Counter(after[key] for key in moved)
    assert min(spread[w.name] for w in pool[1:]) > 0.6 * len(moved) / 5


def test_a_worker_that_joins_takes_its_share_and_moves_nothing_else() -> None:
    before, after = homes(idle(5)), homes([*idle(5), worker("new")])
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert 0.8 < len(moved) / (len(KEYS) / 6) < 1.2


def test_conversations_are_shared_out_by_capacity() -> None:
    pool = [worker("fast", capacity=3.0), worker("a"), worker("b", capacity=2.0)]
    counts = Counter(homes(pool).values())
    assert counts["fast"] / len(KEYS) == pytest.approx(3 / 6, abs=0.03)
    assert counts["a"] / len(KEYS) == pytest.approx(1 / 6, abs=0.03)


def test_speeds_measured_a_little_apart_move_hardly_a_conversation() -> None:
    """Equal speeds take a way without logarithms; it must lead to the same place."""
    before = homes(idle(5))
    after = homes([worker(w.name, capacity=1.0 + 1e-9 * n) for n, w in enumerate(idle(5))])
    assert before == after


def test_routers_with_one_seed_agree_and_with_two_do_not() -> None:
    assert homes(idle(4), 1) == homes(idle(4), seed=1)
    assert homes(idle(4), 1) != homes(idle(4), seed=2)


def loaded(counts: list[int]) -> list[FrozenWorker]:
    return [worker(w.name, in_flight=n) for w, n in zip(idle(len(counts)), counts, strict=True)]


def with_home_first(counts: list[int]) -> tuple[list[FrozenWorker], str]:
    """A pool in which the home of the key "k" has counts[0] in flight."""
    home = place(policy("session_affinity"), request(affinity="k"), idle(len(counts)))
    rest = iter(counts[1:])
    return [
        worker(w.name, in_flight=counts[0] if w.name == home else next(rest)) for w in idle(len(counts))
    ], home


@pytest.mark.parametrize(
    ("counts", "stays"),
    [
        ([4, 0, 0, 0], True),  # up to 4 on a quiet pool
        ([5, 0, 0, 0], False),  # mean 1.25, bound max(2, 4)
        ([13, 9, 9, 9], True),  # mean 10, bound 12.5 → 13
        ([14, 9, 9, 8], False),  # the same mean, one above
    ],
)
def test_a_home_above_its_bound_is_passed_over(counts: list[int], stays: bool) -> None:
    pool, home = with_home_first(counts)
    choice = policy("session_affinity").pick(request(affinity="k"), pool, NOW)
    assert choice is not None
    assert (choice.worker == home) is stays
    assert choice.reason == ("affinity" if stays else "overflow")


def test_the_overflow_of_a_conversation_goes_to_its_second_worker() -> None:
    pool, home = with_home_first([50, 0, 0, 0, 0])
    second = place(policy("session_affinity"), request(affinity="k"), [w for w in pool if w.name != home])
    assert {place(policy("session_affinity"), request(n, affinity="k"), pool) for n in range(30)} == {second}


def test_a_faster_worker_has_a_higher_bound() -> None:
    def reason(capacity: float) -> str:
        pool = [worker("home", in_flight=12, capacity=capacity), worker("other", in_flight=4)]
        for n in range(100):
            choice = policy("session_affinity").pick(request(affinity=f"{n}"), pool, NOW)
            assert choice is not None
            if choice.worker == "home":
                return choice.reason
        return "passed over by all"

    assert reason(3.0) == "affinity"
    assert reason(1.0) == "passed over by all"


@given(st.lists(st.integers(0, 60), min_size=1, max_size=10), st.integers(0, 5), st.text())
def test_nobody_above_the_bound_is_ever_chosen(counts: list[int], least: int, key: str) -> None:
    chooser = policy("session_affinity", min_in_flight=least)
    pool = loaded(counts)
    chosen = place(chooser, request(affinity=key), pool)
    bound = max(ceil(1.25 * sum(counts) / len(counts)), least)
    assert next(w.in_flight for w in pool if w.name == chosen) <= bound


def test_one_hot_conversation_cannot_take_more_than_its_bound() -> None:
    chooser, counts = policy("session_affinity"), Counter[str]()
    for n in range(400):
        pool = [worker(w.name, in_flight=counts[w.name]) for w in idle(4)]
        counts[place(chooser, request(n, affinity="hot"), pool)] += 1
    assert max(counts.values()) <= ceil(1.25 * 100) + 1


def test_without_a_key_the_least_loaded_is_chosen() -> None:
    choice = policy("session_affinity").pick(request(), loaded([3, 1, 2]), NOW)
    assert choice is not None
    assert (choice.worker, choice.reason, choice.cost) == (idle(3)[1].name, "no_key", 2.0)


def test_an_empty_key_is_a_key() -> None:
    choice = policy("session_affinity").pick(request(affinity=""), idle(3), NOW)
    assert choice is not None
    assert choice.reason == "affinity"
