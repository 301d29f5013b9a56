"""Laws of the deadlines of a split request: the earliest binds, and says its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.deadlines import Due, RequestDeadlines, SplitDeadlines, Wait
from router.core.errors import DeadlineExceeded, InternalError

NOW = 100.0


def deadlines(
    answer_by: float = 10_000.0,
    *,
    stream: bool = True,
    prefilled: float | None = None,
    **limits: float | None,
) -> RequestDeadlines:
    made = RequestDeadlines(SplitDeadlines(**limits), answer_by, stream=stream)  # type: ignore[arg-type]
    if prefilled is not None:
        made.has_prefilled(prefilled)
    return made


def test_each_phase_has_a_deadline_of_its_own() -> None:
    made = deadlines()
    assert made.connect_by(NOW) == Due(101.0, Wait.CONNECT)
    assert made.prefill_by(NOW) == Due(400.0, Wait.PREFILL)
    assert made.decode_first_event_by(NOW) == Due(160.0, Wait.DECODE_FIRST_EVENT)
    assert made.idle_by(NOW) == Due(700.0, Wait.IDLE)
    assert made.idle_by(NOW, lost=True) == Due(110.0, Wait.IDLE)


@pytest.mark.parametrize(("stream", "name"), [(True, Wait.FIRST_EVENT), (False, Wait.TOTAL)])
def test_the_requests_own_deadline_binds_in_every_phase_before_the_answer(stream: bool, name: Wait) -> None:
    made = deadlines(NOW + 0.5, stream=stream, prefilled=NOW)
    own = Due(100.5, name)
    assert made.own == own
    assert made.connect_by(NOW) == own
    assert made.prefill_by(NOW) == own
    assert made.dispatch_by() == own
    assert made.decode_first_event_by(NOW) == own


def test_a_running_stream_has_no_total() -> None:
    assert deadlines(NOW + 1).idle_by(NOW) == Due(700.0, Wait.IDLE)


def test_an_answer_that_is_not_streamed_has_one_deadline_for_all_of_it() -> None:
    made = deadlines(stream=False)
    assert made.decode_first_event_by(NOW) == made.idle_by(NOW) == Due(10_000.0, Wait.TOTAL)
    assert made.idle_by(NOW, lost=True) == Due(110.0, Wait.IDLE)


def test_a_hand_over_begins_before_the_lease_ends_by_a_margin() -> None:
    made = deadlines(prefilled=NOW)
    assert made.dispatch_by() == Due(125.0, Wait.TRANSFER)
    assert made.lease_ends == 130.0
    assert made.connect_by(124.5) == Due(125.0, Wait.TRANSFER)
    assert made.connect_by(110.0) == Due(111.0, Wait.CONNECT)


@pytest.mark.parametrize(("lease_s", "usable_s"), [(30.0, 25.0), (12.0, 7.0), (10.0, 5.0), (4.0, 2.0)])
def test_the_margin_takes_at_most_half_of_a_lease(lease_s: float, usable_s: float) -> None:
    assert deadlines(prefilled=NOW, lease_s=lease_s).dispatch_by().at == NOW + usable_s


def test_a_request_that_waited_a_third_of_its_lease_is_bypassed() -> None:
    made = deadlines(prefilled=NOW)
    assert made.bypass_at() == pytest.approx(110.0)
    assert not made.to_be_bypassed(109.9)
    assert made.to_be_bypassed(110.1)


def test_storage_that_keeps_kv_for_everybody_has_no_lease() -> None:
    made = deadlines(prefilled=NOW, lease_s=None)
    assert made.dispatch_by() == Due(10_000.0, Wait.FIRST_EVENT)
    assert made.lease_ends is None
    assert made.bypass_at() is None
    assert not made.to_be_bypassed(1e9)


def test_a_dropped_handle_binds_nothing_and_a_new_one_has_its_own_lease() -> None:
    made = deadlines(prefilled=NOW)
    made.drop_handle()
    assert made.connect_by(124.5) == Due(125.5, Wait.CONNECT)
    assert made.lease_ends is None
    assert made.bypass_at() is None
    made.has_prefilled(200.0)
    assert made.dispatch_by() == Due(225.0, Wait.TRANSFER)


def test_nothing_can_be_handed_over_before_it_is_prefilled() -> None:
    with pytest.raises(InternalError, match="not prefilled"):
        deadlines().dispatch_by()


def test_of_two_deadlines_at_the_same_time_the_narrower_one_is_named() -> None:
    assert deadlines(NOW + 1.0).connect_by(NOW).wait is Wait.CONNECT


@pytest.mark.parametrize("wait", Wait)
def test_every_deadline_has_an_error_that_names_it(wait: Wait) -> None:
    error = Due(1.0, wait).error(sent=True)
    assert isinstance(error, DeadlineExceeded)
    assert (error.phase, error.sent, error.status) == (wait.value, True, 504)
    assert error.message.endswith(".")
    assert Due(1.0, wait).over(1.0)
    assert not Due(1.0, wait).over(0.99)


@pytest.mark.parametrize("wait", Wait)
def test_a_name_is_the_text_that_errors_and_metrics_show(wait: Wait) -> None:
    assert f"{wait}" == wait.value == wait.name.lower()


def test_the_state_is_visible() -> None:
    assert repr(deadlines(prefilled=NOW)) == (
        "<RequestDeadlines [first_event by 10000.000 | prefilled at 100.000]>"
    )


moments = st.floats(0, 1000, allow_nan=False)
lengths = st.floats(0.1, 700, allow_nan=False)


@given(answer_by=moments, stream=st.booleans(), now=moments, prefill_s=lengths, first_s=lengths)
def test_no_phase_lasts_longer_than_the_request_or_than_itself(
    answer_by: float, stream: bool, now: float, prefill_s: float, first_s: float
) -> None:
    made = deadlines(answer_by, stream=stream, prefill_s=prefill_s, decode_first_event_s=first_s)
    assert made.prefill_by(now).at == min(now + prefill_s, answer_by)
    assert made.connect_by(now).at == min(now + 1.0, answer_by)
    expected = min(now + first_s, answer_by) if stream else answer_by
    assert made.decode_first_event_by(now).at == expected


@given(answer_by=moments, prefilled=moments, now=moments, lease_s=lengths, margin_s=lengths)
def test_a_request_stops_waiting_while_its_handle_is_good_and_the_handle_ends_before_the_kv(
    answer_by: float, prefilled: float, now: float, lease_s: float, margin_s: float
) -> None:
    made = deadlines(answer_by, prefilled=prefilled, lease_s=lease_s, lease_margin_s=margin_s)
    due, bypass_at, ends = made.dispatch_by(), made.bypass_at(), made.lease_ends
    assert bypass_at is not None
    assert ends is not None
    assert due.at < ends
    assert due.at <= answer_by
    assert bypass_at < due.at or due == made.own
    assert made.connect_by(now).at <= due.at
