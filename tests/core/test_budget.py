"""Laws of the bounded accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.budget import Budget, RetryBudget
from router.core.errors import InternalError


def test_all_of_it_is_taken_or_nothing() -> None:
    budget = Budget("bytes", 10)
    assert budget.take(7)
    assert not budget.take(4)
    assert budget.used == 7
    assert budget.take(3)
    assert repr(budget) == "<Budget bytes [10 of 10]>"


def test_giving_back_what_was_not_taken_is_a_bug() -> None:
    budget = Budget("bytes", 10)
    budget.take(2)
    with pytest.raises(InternalError, match="bytes would fall below zero"):
        budget.give(3)
    assert budget.used == 2


@given(limit=st.integers(0, 50), moves=st.lists(st.tuples(st.booleans(), st.integers(0, 60))))
def test_it_never_leaves_its_bounds(limit: int, moves: list[tuple[bool, int]]) -> None:
    budget = Budget("x", limit)
    held: list[int] = []
    for taking, amount in moves:
        if taking and budget.take(amount):
            held.append(amount)
        elif not taking and held:
            budget.give(held.pop())
        assert budget.used == sum(held)
        assert 0 <= budget.used <= limit


@pytest.mark.parametrize(("in_flight", "limit"), [(0, 10), (50, 10), (54, 10), (55, 11), (1000, 200)])
def test_retries_are_a_fifth_of_the_requests_in_flight_and_at_least_ten(in_flight: int, limit: int) -> None:
    requests = Budget("in flight", 10_000)
    requests.take(in_flight)
    retries = RetryBudget(requests)
    assert retries.limit == limit
    assert [retries.take() for _ in range(limit + 1)] == [True] * limit + [False]


def test_a_retry_given_back_makes_room_for_the_next() -> None:
    retries = RetryBudget(Budget("in flight", 100), floor=1)
    assert retries.take()
    assert not retries.take()
    retries.give()
    assert retries.take()
    assert repr(retries) == "<RetryBudget [1 of 1]>"


def test_a_retry_given_back_twice_is_a_bug() -> None:
    with pytest.raises(InternalError, match="below zero"):
        RetryBudget(Budget("in flight", 100)).give()


def test_retries_under_way_are_kept_when_the_limit_falls_below_them() -> None:
    requests = Budget("in flight", 1000)
    requests.take(100)
    retries = RetryBudget(requests, floor=1)
    assert all(retries.take() for _ in range(20))
    requests.give(100)
    assert (retries.used, retries.limit) == (20, 1)
    assert not retries.take()
