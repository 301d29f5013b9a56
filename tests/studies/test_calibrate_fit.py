"""Laws of the least squares behind a calibration."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.calibrate.fit import Fit, FitError, fit

PREFILL = [(1.0, float(p), float(p * p)) for p in (128, 256, 512, 1024, 2048, 4096, 8192)]


def loss(found: tuple[float, ...], rows: list[tuple[float, ...]], values: list[float]) -> float:
    """Sum of squared relative residuals."""
    return sum(
        (sum(c * x for c, x in zip(found, row, strict=True)) / y - 1) ** 2
        for row, y in zip(rows, values, strict=True)
    )


def test_one_term_by_hand() -> None:
    """c minimises (c − 1)² + (c / 2 − 1)²: c = 1.5 / 1.25; the loss is 0.2 with one sample to spare."""
    found = fit([(1.0,), (1.0,)], [1.0, 2.0])
    assert found.coefficients == pytest.approx((1.2,))
    assert found.errors == (pytest.approx(math.sqrt(0.2 / 1.25)),)
    assert found.mean_error == pytest.approx((0.2 + 0.4) / 2)
    assert found.r_squared == pytest.approx(1 - (0.2**2 + 0.8**2) / 0.5)
    assert found.samples == 2


def test_a_line_through_three_points_by_hand() -> None:
    found = fit([(1.0, x) for x in (1.0, 2.0, 3.0)], [5.0, 8.0, 11.0])
    assert found.coefficients == pytest.approx((2.0, 3.0))
    assert found.r_squared == pytest.approx(1.0)
    assert found.predict((1.0, 10.0)) == pytest.approx(32.0)


def test_as_many_samples_as_terms_tell_no_error() -> None:
    assert fit([(1.0, 1.0), (1.0, 2.0)], [3.0, 5.0]).errors == (None, None)


def test_a_term_that_came_out_negative_is_left_out_and_has_no_error() -> None:
    falling = fit([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [3.0, 2.0, 1.0])
    assert falling.coefficients[1] == 0.0
    assert falling.coefficients[0] == pytest.approx(fit([(1.0,)] * 3, [3.0, 2.0, 1.0]).coefficients[0])
    assert falling.errors[1] is None
    assert falling.errors[0] is not None


def test_values_that_do_not_vary_have_no_r_squared() -> None:
    assert fit([(1.0,), (1.0,)], [2.0, 2.0]).r_squared is None


@pytest.mark.parametrize(
    ("rows", "values", "said"),
    [
        ([], [], "some"),
        ([(1.0, 2.0)], [1.0], "too few"),
        ([(1.0, 2.0), (1.0, 2.0)], [1.0, 1.0], "do not vary enough"),
        ([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], [1.0, 2.0, 3.0], "do not vary enough"),
        ([(1.0,), (1.0,)], [1.0, 0.0], "not above zero"),
        ([(1.0,), (1.0,)], [1.0, math.nan], "not above zero"),
        ([(1.0,), (1.0,)], [1.0], "as many"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(
    rows: list[tuple[float, ...]], values: list[float], said: str
) -> None:
    with pytest.raises(FitError, match=said):
        fit(rows, values)


def test_sequences_and_kv_that_rise_together_are_refused() -> None:
    """One context for all batches: nobody could say which of the two a step pays for."""
    with pytest.raises(FitError, match="do not vary enough"):
        fit([(1.0, n, n * 512.0) for n in (1.0, 2.0, 4.0, 8.0)], [0.01, 0.011, 0.012, 0.014])


@given(
    base=st.floats(1e-4, 1.0),
    linear=st.floats(0.0, 1e-3),
    squared=st.floats(0.0, 1e-8),
)
def test_a_true_law_is_found_again(base: float, linear: float, squared: float) -> None:
    values = [base + linear * row[1] + squared * row[2] for row in PREFILL]
    found = fit(PREFILL, values)
    assert found.mean_error < 1e-6
    for row, value in zip(PREFILL, values, strict=True):
        assert found.predict(row) == pytest.approx(value, rel=1e-5)


values = st.lists(st.floats(1e-3, 10.0), min_size=len(PREFILL), max_size=len(PREFILL))


@given(values)
def test_no_coefficient_is_negative_and_r_squared_at_most_one(times: list[float]) -> None:
    found = fit(PREFILL, times)
    assert min(found.coefficients) >= 0
    assert found.r_squared is None or found.r_squared <= 1


@given(values, st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3))
def test_no_other_law_without_negative_terms_fits_better(times: list[float], away: list[float]) -> None:
    found = fit(PREFILL, times)
    scale = (1e-2, 1e-5, 1e-9)
    other = tuple(max(0.0, c + a * s) for c, a, s in zip(found.coefficients, away, scale, strict=True))
    assert loss(found.coefficients, PREFILL, times) <= loss(other, PREFILL, times) * (1 + 1e-6)


@given(values)
def test_a_unit_of_time_changes_nothing_else(times: list[float]) -> None:
    seconds, milliseconds = fit(PREFILL, times), fit(PREFILL, [time * 1e3 for time in times])
    assert milliseconds.mean_error == pytest.approx(seconds.mean_error, rel=1e-6)
    assert milliseconds.coefficients == pytest.approx([c * 1e3 for c in seconds.coefficients], rel=1e-4)


def test_a_fit_predicts_only_rows_of_its_own_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        Fit((1.0, 2.0), (None, None), None, 0.0, 1).predict((1.0,))
