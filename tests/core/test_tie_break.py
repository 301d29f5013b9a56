"""The hash that draws, orders and breaks ties."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.policy import text_key, tie_break, tie_breaks

SEEDS = st.integers(-(2**63), 2**63)


@given(seed=SEEDS, sequence=st.integers(0, 2**80), names=st.lists(st.text(), max_size=8))
def test_many_at_once_are_the_same_numbers(seed: int, sequence: int, names: list[str]) -> None:
    assert tie_breaks(seed, sequence, names) == [tie_break(seed, sequence, name) for name in names]


@given(seed=SEEDS, sequence=st.integers(0, 2**80), name=st.text())
def test_a_number_is_one_of_64_bits(seed: int, sequence: int, name: str) -> None:
    assert 0 <= tie_break(seed, sequence, name) < 2**64


def test_a_number_never_changes_between_releases() -> None:
    """Routers of two releases must agree on the home of a conversation."""
    assert tie_break(7, 42, "10.0.0.1:8000") == 9173406113429137920


def test_a_lone_surrogate_is_text() -> None:
    assert text_key(1, "\ud800") != text_key(1, "\ud801")


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_place_in_the_order_is_equally_likely(count: int, seed: int) -> None:
    """Consecutive sequence numbers and names that differ in one digit are the hard case for a cheap hash."""
    names = [f"w{n}" for n in range(count)]
    runs = 8_000
    first, last = Counter[int](), Counter[int]()
    for sequence in range(runs):
        numbers = tie_breaks(seed, sequence, names)
        first[numbers.index(min(numbers))] += 1
        last[numbers.index(max(numbers))] += 1
    for place in (first, last):
        expected = runs / count
        chi_square = sum((place[n] - expected) ** 2 / expected for n in range(count))
        assert chi_square < {2: 10.8, 3: 13.8, 8: 24.3}[count]  # 99.9 %


def test_the_winner_says_nothing_about_the_next_one() -> None:
    runs = 8_000
    winners = [tie_break(1, n, "a") < tie_break(1, n, "b") for n in range(runs)]
    changes = sum(x != y for x, y in itertools.pairwise(winners))
    assert abs(changes - runs / 2) < 3.3 * (runs / 4) ** 0.5
