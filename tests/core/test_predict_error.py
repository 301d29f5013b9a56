"""Errors are measured, and a verdict follows when they grow."""

from __future__ import annotations

import pytest

from router.core.predict_error import BASELINE_S, HOLD_S, MIN_JUDGED, ErrorRecord, Trust


def fed(count: int, squared: float = 0.1, length: int | None = 50, start: float = 0.0) -> ErrorRecord:
    record = ErrorRecord()
    feed(record, count, squared, length, start)
    return record


def feed(
    record: ErrorRecord, count: int, squared: float, length: int | None = 50, start: float = 0.0
) -> None:
    for n in range(count):
        record.add(squared, 1.0, None if length is None else (100.0, length), start + n)


def test_nothing_is_known_before_the_first() -> None:
    errors = ErrorRecord().errors()
    assert errors.samples == 0
    assert (errors.brier, errors.bias_steps, errors.mae_tokens, errors.baseline_brier) == (None,) * 4
    assert ErrorRecord().trust is Trust.FULL


def test_steady_errors_are_reported_and_trusted() -> None:
    record = fed(2 * MIN_JUDGED)
    errors = record.errors()
    assert errors.brier == pytest.approx(0.1)
    assert errors.baseline_brier == pytest.approx(0.1)
    assert errors.mae_tokens == pytest.approx(50.0)
    assert errors.length_error == errors.baseline_length_error == pytest.approx(0.5)
    assert errors.bias_steps == pytest.approx(1.0)
    assert record.trust is Trust.FULL


def test_the_worse_it_gets_the_less_it_is_trusted() -> None:
    record = fed(MIN_JUDGED)
    seen = []
    for n in range(200):
        feed(record, 1, 0.5, start=MIN_JUDGED + n / 10)
        if record.trust not in seen:
            seen.append(record.trust)
    assert seen == [Trust.FULL, Trust.LOW, Trust.LOST]


def test_lengths_that_go_astray_count_as_much() -> None:
    record = fed(MIN_JUDGED, length=90)
    feed(record, 200, 0.1, 500, start=MIN_JUDGED)
    assert record.trust is Trust.LOST


def test_there_is_no_verdict_on_few() -> None:
    record = fed(MIN_JUDGED - 100)
    feed(record, 99, 0.9)
    assert record.trust is Trust.FULL


def test_tiny_errors_are_no_drift() -> None:
    record = fed(MIN_JUDGED, squared=0.001, length=None)
    feed(record, 200, 0.01, None, start=MIN_JUDGED)
    assert record.trust is Trust.FULL
    assert record.errors().mae_tokens is None


def test_trust_comes_back_but_not_at_once() -> None:
    record = fed(MIN_JUDGED)
    feed(record, 300, 0.6, start=MIN_JUDGED)
    assert record.trust is Trust.LOST
    lost_at = MIN_JUDGED + 300
    for n in range(200):
        record.add(0.1, 1.0, (100.0, 50), lost_at + n / 1_000)
    assert record.trust is Trust.LOST, "less than the hold has passed"
    feed(record, 300, 0.1, start=lost_at + HOLD_S)
    assert record.trust is Trust.FULL


def test_what_lasts_becomes_the_new_measure() -> None:
    record = fed(MIN_JUDGED)
    for n in range(400):
        record.add(0.6, 1.0, (100.0, 50), MIN_JUDGED + n * BASELINE_S / 50)
    assert record.trust is Trust.FULL
    assert record.errors().baseline_brier == pytest.approx(0.6, rel=0.05)


def test_errors_go_on_where_they_were_saved() -> None:
    record, again = fed(2 * MIN_JUDGED, 0.2), ErrorRecord()
    again.restore(record.errors(), 5_000.0)
    assert again.errors() == record.errors()
    feed(again, 1, 0.2, start=5_001.0)
    assert again.errors().brier == pytest.approx(0.2)
    assert "full [513 requests]" in repr(again)
