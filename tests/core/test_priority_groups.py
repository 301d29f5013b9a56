"""Laws of the priority groups: the paper's figures, shares, and that nobody waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.priority_groups import Round, group_of


@pytest.mark.parametrize(
    ("cached", "prompt", "group"),
    [(63, 100, 6), (0, 100, 0), (99, 100, 9), (100, 100, 9), (9, 100, 0), (0, 0, 0)],
)
def test_the_group_is_ten_times_the_hit_ratio_rounded_down(cached: int, prompt: int, group: int) -> None:
    assert group_of(cached, prompt) == group


def test_of_ten_full_groups_55_are_taken_10_from_the_highest_and_1_from_the_lowest() -> None:
    waiting = [(number, order) for order in range(100) for number in range(10)]
    chosen = Round().take(waiting, lambda one: one[0], 55)
    assert Counter(group for group, _ in chosen) == {group: group + 1 for group in range(10)}
    assert chosen[:10] == [(9, order) for order in range(10)]


def test_a_single_group_is_first_come_first_served() -> None:
    assert Round().take(range(30), lambda _: 0, 12) == list(range(12))


def test_what_a_short_group_leaves_goes_to_the_others() -> None:
    waiting = [(9, 0), *((0, order) for order in range(20))]
    assert Round().take(waiting, lambda one: one[0], 5) == [(9, 0), (0, 0), (0, 1), (0, 2), (0, 3)]


def test_taken_one_at_a_time_a_round_is_the_same_and_the_next_one_follows() -> None:
    waiting = [(number, order) for order in range(30) for number in range(10)]
    turns, chosen = Round(), []
    for _ in range(110):
        (one,) = turns.take(waiting, lambda one: one[0], 1)
        waiting.remove(one)
        chosen.append(one[0])
    assert chosen[:55] == chosen[55:] == [number for number in range(9, -1, -1) for _ in range(number + 1)]


@given(st.lists(st.integers(0, 9)), st.integers(0, 200))
def test_the_chosen_are_of_those_that_wait_each_once_and_oldest_first_within_a_group(
    groups: list[int], count: int
) -> None:
    waiting = list(enumerate(groups))
    chosen = Round().take(waiting, lambda one: one[1], count)
    assert len(chosen) == len(set(chosen)) == min(count, len(waiting))
    for group in range(10):
        of_group = [one for one in waiting if one[1] == group]
        taken = [one for one in chosen if one[1] == group]
        assert taken == of_group[: len(taken)]


@given(st.integers(1, 60))
def test_a_single_request_of_the_lowest_group_starts_within_the_first_round(others: int) -> None:
    waiting = [9] * others + [0]
    assert 0 in Round().take(waiting, lambda group: group, 11)


@given(st.integers(-5, 10**6), st.integers(0, 10**6))
def test_a_group_is_always_one_of_the_ten(cached: int, prompt: int) -> None:
    assert 0 <= group_of(cached, prompt) <= 9
