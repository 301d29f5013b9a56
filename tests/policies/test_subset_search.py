"""The search equals brute force, and its shortcut equals looking at all sums."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.policies.f_score import Hinge, Hinges, Score
from router.policies.subset_search import (
    ENUMERATED,
    Candidate,
    Limits,
    _listed,
    _reached,
    best_single,
    best_subset,
)

lengths = st.lists(st.integers(0, 3_000), min_size=1, max_size=9)


def all_subsets(candidates: Sequence[Candidate], limits: Limits) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(candidates) + 1):
        for picked in itertools.combinations(range(len(candidates)), count):
            chosen = [candidates[i] for i in picked]
            tokens, slots = sum(c[0] for c in chosen), sum(c[1] for c in chosen)
            if tokens <= limits.kv_tokens and slots <= limits.slots:
                yield picked


def value_of(picked: Sequence[int], candidates: Sequence[Candidate], limits: Limits, score: Score) -> float:
    chosen = [candidates[i] for i in picked]
    slots = sum(c[1] for c in chosen)
    return score.value(sum(c[0] for c in chosen) + limits.tokens_per_slot * slots)


def brute_force(candidates: Sequence[Candidate], limits: Limits, score: Score) -> float:
    return max(value_of(p, candidates, limits, score) for p in all_subsets(candidates, limits))


def instance(source: random.Random) -> tuple[list[Candidate], Limits, Score]:
    horizon = source.choice([0, 0, 1, 5, 20, 80])
    margins = [max(0.0, source.gauss(4_000, 4_000)) for _ in range(horizon + 1)]
    discount = source.choice([0.86, 0.95, 1.0])
    overflow = source.choice([2.0, 8.0, 43.0])
    score: Score = Hinge(source.choice([2, 8, 64]), margins[0])
    if horizon:
        score = Hinges(margins, [discount**h for h in range(horizon + 1)], fill=1.0, overflow=overflow)
    limits = Limits(
        slots=source.choice([1, 2, 3, 8, math.inf]),
        kv_tokens=source.choice([6_000, 12_000, math.inf]),
        tokens_per_slot=source.choice([0, 0, 1_000]),
    )
    wide = [1, 1, 2] if limits.slots >= 2 else [1]
    candidates = [(source.randint(0, 6_000), source.choice(wide)) for _ in range(source.choice([1, 2, 4, 7]))]
    return candidates, limits, score


def test_thousands_of_instances_equal_brute_force() -> None:
    source = random.Random(1)
    for _ in range(2_000):
        candidates, limits, score = instance(source)
        found = best_subset(candidates, limits, score)
        best = brute_force(candidates, limits, score)
        assert found.value == pytest.approx(best, rel=1e-9, abs=1e-4)
        assert found.value == value_of(found.picked, candidates, limits, score)
        assert found.picked in set(all_subsets(candidates, limits))


def test_bit_sets_and_lists_agree_on_the_subset_itself() -> None:
    source = random.Random(2)
    for _ in range(1_000):
        candidates, limits, score = instance(source)
        target = score.best_tokens
        by_list = {(s.tokens, s.slots, s.mask) for s in _listed(candidates, limits, target)}
        by_bits = [(s.tokens, s.slots, s.mask) for s in _reached(candidates, limits, target)]
        below = [s for s in by_bits if s[0] <= target]
        above = [s for s in by_bits if s[0] > target]
        ends = {min(below, key=lambda s: (-s[0], *s[1:]), default=None), min(above, default=None)}
        assert by_list == ends - {None}


@given(lengths, st.integers(1, 9), st.floats(0, 10_000))
def test_the_two_sums_next_to_the_margin_are_enough(sizes: list[int], slots: int, margin: float) -> None:
    candidates, limits, score = [(s, 1) for s in sizes], Limits(slots), Hinge(8, margin)
    assert best_subset(candidates, limits, score).value == brute_force(candidates, limits, score)


@given(lengths)
def test_the_best_single_is_the_best_of_the_subsets_of_one(sizes: list[int]) -> None:
    candidates, score = [(s, 1) for s in sizes], Hinge(4, 1_000.0)
    single = best_single(candidates, Limits(), score)
    values = [score.value(s) for s in sizes]
    assert single.value == max(values)
    assert len(single.picked) == 1
    assert values[single.picked[0]] == single.value


def test_among_equals_the_oldest_is_taken() -> None:
    candidates = [(500, 1), (300, 1), (500, 1), (300, 1)]
    assert best_single(candidates, Limits(), Hinge(4, 500.0)).picked == (0,)
    assert best_subset(candidates, Limits(2), Hinge(4, 800.0)).picked == (0, 1)
    many = candidates * 2
    assert best_subset(many, Limits(2), Hinge(4, 800.0)).picked == (0, 1)


def test_among_equal_sums_the_fewest_slots_are_taken() -> None:
    candidates = [(400, 1), (400, 1), (800, 1)]
    assert best_subset(candidates, Limits(3), Hinge(4, 800.0)).picked == (2,)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 30_000), min_size=ENUMERATED + 1, max_size=16),
    st.integers(2, 8),
    st.integers(30_000, 90_000),
    st.floats(0, 60_000),
)
def test_rounding_keeps_the_limits_and_misses_little(
    sizes: list[int], slots: int, room: int, margin: float
) -> None:
    candidates, score = [(s, 1) for s in sizes], Hinge(8, margin)
    exact = best_subset(candidates, Limits(slots, room), score)
    coarse = best_subset(candidates, Limits(slots, room, quantum_tokens=16), score)
    assert len(coarse.picked) <= slots
    assert sum(sizes[i] for i in coarse.picked) <= room
    # Up to a quantum of each candidate, weighed by the steeper side; the edge of the room may cost one more.
    if sum(sorted(sizes)[-slots:]) <= room:
        assert coarse.value >= exact.value - 16 * len(sizes) * 7


def test_where_rounding_leaves_no_room_for_one_the_single_is_taken() -> None:
    candidates = [(17, 1)] * (ENUMERATED + 1)
    assert best_subset(candidates, Limits(4, 17, quantum_tokens=16), Hinge(4, 100.0)).picked == (0,)
