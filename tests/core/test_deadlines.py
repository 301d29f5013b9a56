"""Laws of the deadlines of a split request: the earliest binds, and says its name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.deadlines import Due, HandoverTimes, SplitDeadlines, Wait

NOW = 100.0
LATE = 10_000.0


def test_each_phase_has_a_deadline_of_its_own() -> None:
    limits = SplitDeadlines()
    assert limits.prefill_by(NOW, LATE) == Due(400.0, Wait.PREFILL)
    assert limits.transfer_by(limits.handover(NOW), LATE) == Due(125.0, Wait.TRANSFER)
    assert limits.answer_by(NOW, LATE, streamed=True) == Due(160.0, Wait.DECODE_FIRST_EVENT)


@pytest.mark.parametrize(("streamed", "name"), [(True, "first_event"), (False, "total")])
def test_the_requests_own_deadline_binds_in_every_phase(streamed: bool, name: str) -> None:
    limits = SplitDeadlines()
    own = (NOW + 0.5, name)
    assert limits.prefill_by(NOW, NOW + 0.5, streamed=streamed) == own
    assert limits.transfer_by(limits.handover(NOW), NOW + 0.5, streamed=streamed) == own
    assert limits.answer_by(NOW, NOW + 0.5, streamed=streamed) == own


def test_an_answer_that_is_not_streamed_has_no_first_event_to_wait_for() -> None:
    assert SplitDeadlines().answer_by(NOW, LATE, streamed=False) == Due(LATE, Wait.TOTAL)


def test_of_two_deadlines_at_the_same_time_the_phase_is_named() -> None:
    assert SplitDeadlines(prefill_s=1.0).prefill_by(NOW, NOW + 1.0).wait is Wait.PREFILL


def test_a_hand_over_begins_before_the_lease_ends_by_a_margin_and_waits_a_third_of_it() -> None:
    assert SplitDeadlines().handover(NOW) == pytest.approx((110.0, 125.0, 130.0))


@pytest.mark.parametrize(("lease_s", "usable_s"), [(30.0, 25.0), (12.0, 7.0), (10.0, 5.0), (4.0, 2.0)])
def test_the_margin_takes_at_most_half_of_a_lease(lease_s: float, usable_s: float) -> None:
    assert SplitDeadlines(lease_s=lease_s).handover(NOW).dispatch_by == NOW + usable_s


def test_storage_that_keeps_kv_for_everybody_has_no_lease() -> None:
    limits = SplitDeadlines(lease_s=None)
    times = limits.handover(NOW)
    assert times == HandoverTimes(math.inf, math.inf, math.inf)
    assert limits.transfer_by(times, LATE) == Due(LATE, Wait.FIRST_EVENT)


@pytest.mark.parametrize("wait", Wait)
def test_a_name_is_the_text_that_errors_and_metrics_show(wait: Wait) -> None:
    assert f"{wait}" == wait.value == wait.name.lower()


moments = st.floats(0, 1000, allow_nan=False)
lengths = st.floats(0.1, 700, allow_nan=False)
any_limits = st.builds(SplitDeadlines, lengths, lengths, lengths, lengths, st.just(1 / 3))


@given(limits=any_limits, now=moments, answer_by=moments, streamed=st.booleans())
def test_no_phase_lasts_longer_than_the_request_or_than_itself(
    limits: SplitDeadlines, now: float, answer_by: float, streamed: bool
) -> None:
    times = limits.handover(now)
    assert limits.prefill_by(now, answer_by, streamed=streamed).at == min(now + limits.prefill_s, answer_by)
    assert limits.transfer_by(times, answer_by, streamed=streamed).at == min(times.dispatch_by, answer_by)
    first_by = now + limits.decode_first_event_s if streamed else math.inf
    assert limits.answer_by(now, answer_by, streamed=streamed).at == min(first_by, answer_by)


@given(limits=any_limits, prefilled=moments)
def test_a_request_stops_waiting_while_its_handle_is_good_and_the_handle_ends_before_the_kv(
    limits: SplitDeadlines, prefilled: float
) -> None:
    times = limits.handover(prefilled)
    assert prefilled < times.overdue < times.dispatch_by < times.held_until
