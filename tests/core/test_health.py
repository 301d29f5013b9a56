"""Laws of one worker's health: the whole table, and the counts that lead to its signs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.health import HEALTH, Health, HealthSettings, Sign, State

# Rows are states, columns are signs, in this order; a dot keeps the state.
_SIGNS = ["good", "bad", "refused", "stalled", "progress", "sleep", "wake", "drain", "resume", "remove"]
_TABLE = """
starting  ready   ejected ejected .       .     asleep .     draining .        gone
ready     .       ejected ejected suspect .     asleep .     draining .        gone
suspect   .       ejected ejected .       ready asleep .     draining .        gone
ejected   ready   .       .       .       .     asleep .     draining .        gone
asleep    .       ejected ejected .       .     .      ready draining .        gone
draining  .       .       .       .       .     .      .     .        starting gone
gone      .       .       .       .       .     .      .     .        .        .
"""
_CELLS = [
    (State(row.split()[0]), Sign(sign), State(row.split()[0] if cell == "." else cell))
    for row in _TABLE.strip().splitlines()
    for sign, cell in zip(_SIGNS, row.split()[1:], strict=True)
]


@pytest.mark.parametrize(("state", "sign", "after"), _CELLS)
def test_every_sign_leads_every_state_where_the_table_says(state: State, sign: Sign, after: State) -> None:
    assert HEALTH[state, sign] is after
    health = Health(state=state)
    assert health.take(sign, 7.0, "why") is (after is not state)
    assert health.state is after
    assert (health.since, health.reason) == ((7.0, "why") if after is not state else (0.0, "not probed yet"))


def test_the_table_is_whole() -> None:
    assert (
        {(state, sign) for state, sign, _ in _CELLS} == {(a, b) for a in State for b in Sign} == set(HEALTH)
    )


def test_a_change_without_a_reason_is_named_after_its_sign() -> None:
    health = Health()
    health.take(Sign.GOOD, 1.0)
    assert health.reason == "good"


def test_a_removed_worker_never_comes_back() -> None:
    assert {HEALTH[State.GONE, sign] for sign in Sign} == {State.GONE}


def test_a_drained_worker_only_leaves_when_somebody_says_so() -> None:
    moving = {sign for sign in Sign if HEALTH[State.DRAINING, sign] is not State.DRAINING}
    assert moving == {Sign.RESUME, Sign.REMOVE}


def test_the_third_timeout_in_a_row_is_one_too_many() -> None:
    health = Health()
    assert [health.probe_timed_out() for _ in range(4)] == [False, False, True, True]


def test_the_third_failure_in_a_row_is_one_too_many() -> None:
    health = Health()
    assert [health.request_failed(1.0) for _ in range(3)] == [False, False, True]
    health.request_succeeded()
    assert not health.request_failed(1.0)


def test_one_failure_is_enough_while_it_warms_up() -> None:
    health = Health(state=State.EJECTED)
    health.take(Sign.GOOD, 100.0)
    assert health.request_failed(144.9)
    health.request_succeeded()
    assert not health.request_failed(145.0)


def test_coming_back_forgives_what_was_counted() -> None:
    health = Health(state=State.EJECTED, timeouts=3, failures=5)
    health.take(Sign.GOOD, 1.0)
    assert (health.timeouts, health.failures) == (0, 0)


@pytest.mark.parametrize(("before", "sign"), [(State.STARTING, Sign.GOOD), (State.SUSPECT, Sign.PROGRESS)])
def test_a_worker_that_was_not_out_does_not_warm_up(before: State, sign: Sign) -> None:
    health = Health(state=before)
    health.take(sign, 5.0)
    assert health.warmup(5.0) == 1.0


@pytest.mark.parametrize(("before", "sign"), [(State.EJECTED, Sign.GOOD), (State.ASLEEP, Sign.WAKE)])
def test_a_worker_that_came_back_has_half_its_share_at_once_and_all_of_it_in_45_seconds(
    before: State, sign: Sign
) -> None:
    health = Health(state=before)
    health.take(sign, 100.0)
    assert health.warmup(100.0) == 2.0
    assert 1.0 / health.warmup(122.5) == pytest.approx(0.75)
    assert health.warmup(145.0) == 1.0
    assert health.warmup(1e6) == 1.0


@given(returned=st.floats(0, 1e6), ages=st.lists(st.floats(0, 100), min_size=2), warmup_s=st.floats(0.1, 600))
def test_the_extra_cost_only_fades(returned: float, ages: list[float], warmup_s: float) -> None:
    health = Health(HealthSettings(warmup_s=warmup_s), returned=returned)
    factors = [health.warmup(returned + age) for age in sorted(ages)]
    assert factors == sorted(factors, reverse=True)
    assert all(1.0 <= factor <= 2.0 for factor in factors)


def test_falling_asleep_is_remembered_on_whatever_way_back() -> None:
    health = Health(state=State.READY)
    for sign in (Sign.SLEEP, Sign.DRAIN, Sign.RESUME, Sign.GOOD):
        health.take(sign, 1.0)
    assert health.state is State.READY
    assert health.slept
