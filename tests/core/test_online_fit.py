"""Laws of the fit: it finds what it is shown, says how sure it is, and is not moved by nonsense."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.online_fit import LinearFit
from router.core.symmetric import Matrix, Vector, dot, inverse, plus, product, quadratic

PRIOR: Vector = (15.5e-3, 0.12e-3, 0.12e-6)
WEAK: Vector = (46.5e-3, 0.36e-3, 0.36e-6)
KEEP = 2 ** (-0.25 / 600)


def _loads(source: random.Random, count: int) -> Iterator[Vector]:
    """Sequences that come and go, and contexts of many lengths."""
    sequences, kv_tokens = 20.0, 20_000.0
    for _ in range(count):
        sequences = min(max(sequences + source.choice((-3, -2, -1, 0, 1, 2, 3)), 1), 60)
        kv_tokens = 0.7 * kv_tokens + 0.3 * sequences * source.lognormvariate(6.8, 0.4)
        yield (1.0, sequences, kv_tokens)


def _truth(source: random.Random) -> Vector:
    """Coefficients up to six times those of the prior."""
    a, b, c = (3 * value * source.uniform(0.5, 2.0) for value in PRIOR)
    return (a, b, c)


def _fitted(seed: int, count: int, *, noise: float = 0.05, pauses: float = 0.02) -> tuple[LinearFit, Vector]:
    source = random.Random(seed)
    truth, fit = _truth(source), LinearFit(PRIOR, WEAK)
    for x in _loads(source, count):
        y = dot(truth, x) * max(source.gauss(1.0, noise), 0.1)
        fit.add(x, y * source.uniform(3, 20) if source.random() < pauses else y, KEEP)
    return fit, truth


# --- the algebra -----------------------------------------------------------------------------------------

scales = st.floats(1e-6, 1e6)
entries = st.floats(-1.0, 1.0)


@given(st.tuples(scales, scales, scales), st.lists(st.tuples(entries, entries, entries), max_size=4))
def test_a_matrix_times_its_inverse_gives_the_vector_back(sizes: Vector, rows: list[Vector]) -> None:
    matrix: Matrix = (sizes[0] ** 2, 0.0, 0.0, sizes[1] ** 2, 0.0, sizes[2] ** 2)
    for row in rows:
        matrix = plus(matrix, (row[0] * sizes[0], row[1] * sizes[1], row[2] * sizes[2]), 1.0)
    vector = (1.0 / sizes[0], -1.0 / sizes[1], 1.0 / sizes[2])
    back = product(inverse(matrix), product(matrix, vector))
    assert back == pytest.approx(vector, rel=1e-6)
    assert quadratic(matrix, vector) == pytest.approx(dot(vector, product(matrix, vector)))


# --- what it finds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, 400])
def test_known_coefficients_are_within_two_standard_errors_in_95_of_100_seeds(count: int) -> None:
    """5 % of noise, and one sample in 50 from a loop that was paused."""
    runs = [_fitted(seed, count) for seed in range(200)]
    for which in range(3):
        hits = sum(abs(f.coefficients[which] - t[which]) <= 2 * f.errors[which] for f, t in runs)
        assert hits >= 190, (which, hits)


def test_more_samples_make_smaller_errors() -> None:
    few, many = _fitted(3, 50)[0], _fitted(3, 2_000)[0]
    assert all(b < a / 3 for a, b in zip(few.errors, many.errors, strict=True))


def test_without_noise_a_straight_line_is_found_exactly() -> None:
    fit, truth = _fitted(1, 300, noise=0.0, pauses=0.0)
    assert fit.coefficients == pytest.approx(truth, rel=0.02)
    assert fit.noise < 0.04


def test_before_any_sample_the_prior_stands_with_its_errors() -> None:
    fit = LinearFit(PRIOR, WEAK)
    assert fit.coefficients == PRIOR
    assert fit.errors == pytest.approx(WEAK)
    assert fit.predict((1.0, 10.0, 1_000.0)) == pytest.approx(15.5e-3 + 1.2e-3 + 0.12e-3)


def test_what_always_grows_together_is_told_by_wide_errors() -> None:
    """KV in proportion to sequences: the sum is known well, its parts are not."""
    source, fit = random.Random(5), LinearFit(PRIOR, WEAK)
    truth = (0.02, 4e-4, 4e-7)
    for _ in range(500):
        sequences = source.uniform(5, 50)
        x = (1.0, sequences, 1_000 * sequences)
        fit.add(x, dot(truth, x) * source.gauss(1.0, 0.03), KEEP)
    typical = (1.0, 25.0, 25_000.0)
    assert fit.predict(typical) == pytest.approx(dot(truth, typical), rel=0.02)
    assert fit.errors[1] * 25 > 0.1 * fit.predict(typical)
    assert fit.errors[2] * 25_000 > 0.1 * fit.predict(typical)


def test_a_load_that_never_changes_leaves_the_slopes_of_the_prior_open() -> None:
    fit = LinearFit(PRIOR, WEAK)
    for _ in range(5_000):
        fit.add((1.0, 10.0, 10_000.0), 0.04, 0.999)
    assert fit.predict((1.0, 10.0, 10_000.0)) == pytest.approx(0.04, rel=1e-3)
    assert fit.errors[1:] == pytest.approx(WEAK[1:], rel=0.3)


def test_what_traffic_does_not_vary_for_long_is_not_forgotten() -> None:
    fit, truth = _fitted(2, 1_000)
    before = fit.errors
    for _ in range(20_000):
        fit.add((1.0, 10.0, 10_000.0), dot(truth, (1.0, 10.0, 10_000.0)), 0.999)
    assert all(after < 3 * error for after, error in zip(fit.errors, before, strict=True))


def test_a_slow_change_is_followed() -> None:
    fit, truth = _fitted(4, 500)
    source = random.Random(6)
    for x in _loads(source, 4_000):
        fit.add(x, 1.5 * dot(truth, x) * source.gauss(1.0, 0.05), 0.99)
    x = (1.0, 20.0, 20_000.0)
    assert fit.predict(x) == pytest.approx(1.5 * dot(truth, x), rel=0.03)


# --- what does not move it -------------------------------------------------------------------------------


def test_a_paused_loop_does_not_move_a_coefficient() -> None:
    fit, _ = _fitted(7, 500, pauses=0.0)
    before = fit.coefficients
    fit.add((1.0, 20.0, 20_000.0), 5.0, KEEP)
    assert fit.coefficients == before


def test_samples_that_agree_with_each_other_are_no_outliers() -> None:
    fit, truth = _fitted(8, 500, pauses=0.0)
    source = random.Random(9)
    for x in _loads(source, 3_000):
        fit.add(x, 4 * dot(truth, x), 0.99)
    assert fit.predict((1.0, 20.0, 20_000.0)) == pytest.approx(
        4 * dot(truth, (1.0, 20.0, 20_000.0)), rel=0.05
    )


def test_no_coefficient_is_ever_negative() -> None:
    """Samples of a step that falls with KV, which no engine has."""
    source, fit = random.Random(10), LinearFit(PRIOR, WEAK)
    for x in _loads(source, 500):
        fit.add(x, max(0.05 - 5e-7 * x[2], 0.001) * source.gauss(1.0, 0.02), KEEP)
        assert min(fit.coefficients) >= 0.0
    assert fit.coefficients[2] == 0.0


@given(
    st.lists(
        st.tuples(st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 10), st.floats(0.5, 1.0)), max_size=60
    )
)
def test_whatever_the_samples_it_stays_finite_and_not_negative(
    samples: list[tuple[float, float, float, float]],
) -> None:
    fit = LinearFit(PRIOR, WEAK)
    for sequences, kv_tokens, y, keep in samples:
        fit.add((1.0, sequences, kv_tokens), y, keep)
        assert all(math.isfinite(c) and c >= 0.0 for c in fit.coefficients)
        assert all(math.isfinite(e) and e >= 0.0 for e in fit.errors)


def test_two_coefficients_leave_the_third_alone() -> None:
    fit = LinearFit((5e-3, 2e-6, 0.0), (15e-3, 6e-6, 1.0), floor=1e-3)
    source = random.Random(11)
    for _ in range(300):
        tokens = source.uniform(100, 30_000)
        fit.add((1.0, tokens, 0.0), (0.012 + 5e-6 * tokens) * source.gauss(1.0, 0.1), 0.999)
    assert fit.coefficients == pytest.approx((0.012, 5e-6, 0.0), rel=0.2)
