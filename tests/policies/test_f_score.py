"""F is the fall of idle work, by hand and by definition, and it is concave."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policies.f_score import Hinge, Hinges

margins = st.lists(st.floats(0, 1e5), min_size=1, max_size=81)
discounts = st.sampled_from([0.5, 0.86, 0.97, 1.0])


def hinges(ms: list[float], discount: float, fill: float = 1.0, overflow: float = 43.0) -> Hinges:
    return Hinges(ms, [discount**h for h in range(len(ms))], fill=fill, overflow=overflow)


def by_definition(z: float, ms: list[float], discount: float, fill: float, overflow: float) -> float:
    gain = fill * z * sum(discount**h for h in range(len(ms)))
    return gain - overflow * sum(discount**h * max(z - m, 0.0) for h, m in enumerate(ms))


@pytest.mark.parametrize(("tokens", "value"), [(900, 900), (1_000, 1_000), (1_100, 300), (1_200, -400)])
def test_eight_workers_and_a_margin_of_1000(tokens: int, value: int) -> None:
    assert Hinge(8, 1_000).value(tokens) == value
    assert hinges([1_000], 1.0, overflow=8).value(tokens) == pytest.approx(value)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=16), st.integers(0, 15), st.integers(0, 10**6))
def test_f_is_the_fall_of_the_idle_work(loads: list[int], index: int, tokens: int) -> None:
    index %= len(loads)
    after = [load + tokens * (n == index) for n, load in enumerate(loads)]
    fall = _idle(loads) - _idle(after)
    assert Hinge(len(loads), max(loads) - loads[index]).value(tokens) == fall


def _idle(loads: list[int]) -> int:
    return len(loads) * max(loads) - sum(loads)


def test_with_one_worker_nothing_is_ever_idle() -> None:
    assert [Hinge(1, 0.0).value(tokens) for tokens in (0, 1, 10**6)] == [0, 0, 0]


@given(margins, discounts, st.floats(0, 100), st.floats(0, 2e5))
def test_the_fast_form_is_the_formula(ms: list[float], d: float, overflow: float, z: float) -> None:
    value = hinges(ms, d, overflow=overflow).value(z)
    expected = by_definition(z, ms, d, 1.0, overflow)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-6 * max(overflow, 1.0) * len(ms))


@given(st.integers(2, 64), st.floats(0, 1e5), st.integers(0, 10**6))
def test_without_a_horizon_it_is_br_0(workers: int, margin: float, tokens: int) -> None:
    vector, scalar = hinges([margin], 0.86, overflow=workers), Hinge(workers, margin)
    assert vector.value(tokens) == pytest.approx(scalar.value(tokens), rel=1e-9, abs=1e-5)
    assert vector.best_tokens == scalar.best_tokens


@given(margins, discounts, st.floats(0.1, 100))
def test_beyond_the_best_it_falls_and_before_it_grows(ms: list[float], d: float, overflow: float) -> None:
    score = hinges(ms, d, overflow=overflow)
    slack = 1e-6 * max(overflow, 1.0) * len(ms)
    if math.isinf(score.best_tokens):
        points = sorted({*ms, 0.0, 2e5})
        values = [score.value(z) for z in points]
        assert all(b >= a - slack for a, b in itertools.pairwise(values))
        return
    top = score.value(score.best_tokens)
    assert all(score.value(z) <= top + slack for z in [0.0, *ms, 2e5])


@given(margins, discounts, st.floats(0, 1), st.floats(0, 2e5))
def test_what_was_taken_makes_every_margin_smaller(ms: list[float], d: float, share: float, z: float) -> None:
    taken = share * min(ms)
    weights = [d**h for h in range(len(ms))]
    kept = Hinges(ms, weights, fill=1.0, overflow=8.0, taken=taken)
    anew = Hinges([m - taken for m in ms], weights, fill=1.0, overflow=8.0)
    assert kept.value(z) == pytest.approx(anew.value(z), rel=1e-9, abs=1e-2)
    assert kept.least_margin == pytest.approx(anew.least_margin)


def test_overflow_that_costs_nothing_is_always_worth_it() -> None:
    assert hinges([10.0, 20.0], 0.9, overflow=0.0).best_tokens == math.inf


def test_overflow_that_costs_less_than_it_fills_is_always_worth_it() -> None:
    assert hinges([10.0, 20.0], 1.0, overflow=0.5).best_tokens == math.inf


def test_without_any_margin_nothing_is_best() -> None:
    assert hinges([0.0, 0.0], 0.9).best_tokens == 0.0
    assert hinges([0.0, 0.0], 0.9).value(10) < 0


def test_representations_say_where_it_turns() -> None:
    assert repr(Hinge(8, 1_000.4)) == "<Hinge of 8 workers at 1000 tokens>"
    assert repr(hinges([5.0], 1.0)) == "<Hinges over 1 steps, best at 5 tokens>"
