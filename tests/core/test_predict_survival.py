"""Survival of output lengths, by hand and against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.predict_survival import Length, RecentLengths, SurvivalCurve

HAND = SurvivalCurve([Length(n) for n in (10, 20, 20, 50, 100)])

lengths = st.lists(st.integers(1, 3_000), min_size=1, max_size=60)


def test_by_hand_at_the_beginning() -> None:
    """Of five, three end within 30: 10, 20, 20."""
    assert HAND.forecast(0, 30)[0] == pytest.approx(3 / 5)
    assert HAND.forecast(0, 30)[1] == pytest.approx(2 / 5 * 30 + 3 / 5 * 50 / 3)


def test_by_hand_in_the_middle() -> None:
    """After 20 two are left, of which one ends within 40, in 30 more."""
    assert HAND.forecast(20, 40)[0] == pytest.approx(1 / 2)
    assert HAND.forecast(20, 40)[1] == pytest.approx(0.5 * 40 + 0.5 * 30)


def test_what_is_older_than_anything_seen_stays() -> None:
    assert HAND.forecast(100, 80)[0] == 0.0
    assert HAND.forecast(100, 80)[1] == 80.0
    assert SurvivalCurve([]).forecast(0, 80)[1] == 80.0
    assert SurvivalCurve([]).mean_length() is None


@given(lengths, st.integers(0, 3_000), st.integers(1, 250))
def test_without_cut_lengths_it_is_the_empirical_mean(seen: list[int], written: int, steps: int) -> None:
    alive = [length - written for length in seen if length > written]
    curve = SurvivalCurve([Length(n) for n in seen])
    if not alive:
        assert curve.forecast(written, steps)[1] == steps
        return
    expected = sum(min(rest, steps) for rest in alive) / len(alive)
    assert curve.forecast(written, steps)[1] == pytest.approx(expected)
    assert curve.forecast(written, steps)[0] == pytest.approx(sum(r <= steps for r in alive) / len(alive))
    assert curve.mean_length() == pytest.approx(sum(seen) / len(seen))


def test_a_cut_length_gives_its_share_to_the_longer_ones() -> None:
    """Kaplan and Meier by hand: 4 at risk at 10, 2 at 30 after one was cut at 20."""
    curve = SurvivalCurve([Length(10), Length(20, ended=False), Length(30), Length(40)])
    assert curve.forecast(0, 10)[0] == pytest.approx(1 / 4)
    assert curve.forecast(0, 30)[0] == pytest.approx(1 / 4 + 3 / 4 / 2)
    assert curve.forecast(0, 40)[0] == pytest.approx(1.0)


def test_what_was_cut_beyond_all_ends_never_ends_within_sight() -> None:
    curve = SurvivalCurve([Length(10), Length(500, ended=False)])
    assert curve.forecast(0, 250)[0] == pytest.approx(0.5)
    assert curve.forecast(0, 100)[1] == pytest.approx(0.5 * 10 + 0.5 * 100)
    assert curve.mean_length() == pytest.approx(10)


@given(
    st.lists(
        st.builds(Length, st.integers(1, 500), st.booleans(), st.floats(0.01, 1)), min_size=1, max_size=40
    ),
    st.integers(0, 600),
    st.integers(1, 250),
)
def test_estimates_stay_within_their_range(seen: list[Length], written: int, steps: int) -> None:
    curve = SurvivalCurve(seen)
    assert 0.0 <= curve.forecast(written, steps)[0] <= 1.0 + 1e-9
    assert -1e-6 <= curve.forecast(written, steps)[1] <= steps + 1e-6


@given(lengths, st.integers(0, 3_000), st.sampled_from([1, 80, 250]))
def test_the_table_says_what_the_curve_says_at_its_entries(
    seen: list[int], written: int, horizon: int
) -> None:
    curve = SurvivalCurve([Length(n) for n in seen])
    table, index = curve.table(horizon), written // 16
    if index >= len(table):
        assert 16 * index >= max(seen)
        return
    steps = curve.forecast(16 * index, horizon)[1]
    if table[index] == horizon + 1:
        assert steps > horizon - 1
    else:
        assert table[index] - 1 <= steps + 1e-9
        assert steps <= max(table[index], 1) + 1e-9


def test_a_length_counts_half_after_its_half_life() -> None:
    recent = RecentLengths(10, half_life_s=100.0)
    recent.add(10, 0.0, ended=True)
    recent.add(30, 100.0, ended=True)
    assert recent.weight(100.0) == pytest.approx(1.5)
    assert recent.weight(200.0) == pytest.approx(0.75)
    assert recent.curve().mean_length() == pytest.approx((10 * 0.5 + 30) / 1.5)
    assert recent.weight(1e9) < 1e-9


def test_only_the_last_are_remembered() -> None:
    recent = RecentLengths(3, half_life_s=1e9)
    for n in range(1, 8):
        recent.add(n, float(n), ended=n != 6)
    assert [tokens for tokens, _ in recent.lengths(10.0)] == [5, -6, 7]
    assert [age for _, age in recent.lengths(10.0)] == [5.0, 4.0, 3.0]
    assert len(recent) == 3
    assert recent.weight(7.0) == pytest.approx(3.0)


def test_the_curve_follows_what_is_new() -> None:
    recent = RecentLengths(1_000, half_life_s=1e9)
    for n in range(16):
        recent.add(10, float(n), ended=True)
    assert recent.curve().mean_length() == pytest.approx(10)
    assert recent.table(80)[0] == 10
    recent.add(1_000, 20.0, ended=True)
    assert recent.curve().mean_length() == pytest.approx(10), "one of seventeen does not pay"
    for n in range(2):
        recent.add(1_000, 21.0 + n, ended=True)
    assert recent.curve().mean_length() == pytest.approx((16 * 10 + 3 * 1_000) / 19)
    assert recent.table(80) == recent.curve().table(80)
