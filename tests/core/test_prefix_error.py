"""Laws of the error of predicted cached tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.prefix_error import PrefixError


def seen(*samples: tuple[int, int]) -> PrefixError:
    error = PrefixError()
    for predicted, reported in samples:
        error.see(predicted, reported, 100)
    return error


def test_too_much_and_too_little_are_told_apart() -> None:
    assert seen((80, 20)).bias == pytest.approx(0.6)
    assert seen((20, 80)).bias == pytest.approx(-0.6)
    assert seen((80, 20), (20, 80)).error == pytest.approx(0.6)
    assert seen((80, 20), (20, 80)).bias == pytest.approx(0.0)


def test_what_was_neither_predicted_nor_reported_teaches_nothing() -> None:
    error = seen((0, 0), (50, 50), (0, 0))
    error.see(10, 10, 0)
    assert error.samples == 1
    assert error.error == 0.0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=60))
def test_the_overclaim_is_the_mean_of_what_was_predicted_and_not_there(
    samples: list[tuple[int, int]],
) -> None:
    error = seen(*samples)
    mean, count = 0.0, 0
    for predicted, reported in samples:
        if predicted or reported:
            count += 1
            mean += (max(predicted - reported, 0) / 100 - mean) * max(0.05, 1 / count)
    assert error.samples == count
    assert error.overclaim == pytest.approx(mean)
    assert -error.error - 1e-9 <= error.bias <= error.error + 1e-9


def test_old_samples_fade() -> None:
    error = seen(*[(100, 0)] * 200, *[(50, 50)] * 100)
    assert error.error < 0.01
    assert repr(error) == "<PrefixError [300 samples | bias +0.006 | error 0.006]>"
