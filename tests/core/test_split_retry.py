"""Laws of trying a split request again: the whole table, and what becomes of its handle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamBroken, UpstreamClosed, UpstreamError
from router.core.retry import SPLIT_TRIES, Again, Failure, Leg, SplitTries, failure_of_error

GIVE_UP = (Again.GIVE_UP, 0)
NEW_PREFILL = (Again.NEW_PREFILL, 1)

_TABLE = {
    Failure.NEVER_SENT: ((Again.OTHER_WORKER, 2), (Again.OTHER_WORKER, 2)),
    Failure.NO_ANSWER: (NEW_PREFILL, NEW_PREFILL),
    Failure.SERVER_ERROR: (NEW_PREFILL, NEW_PREFILL),
    Failure.BUSY: (NEW_PREFILL, NEW_PREFILL),
    Failure.FIRST_EVENT_ERROR: (NEW_PREFILL, NEW_PREFILL),
    Failure.TIMEOUT: (NEW_PREFILL, NEW_PREFILL),
    Failure.REFUSED_BY_ENGINE: (GIVE_UP, GIVE_UP),
    Failure.KEY_REFUSED: (GIVE_UP, GIVE_UP),
    Failure.MODEL_UNKNOWN: ((Again.OTHER_WORKER, 1), NEW_PREFILL),
    Failure.RANK_UNKNOWN: ((Again.OTHER_WORKER, 2), NEW_PREFILL),
    Failure.TOO_LONG: ((Again.OTHER_WORKER, 1), NEW_PREFILL),
    Failure.NO_HANDLE: (NEW_PREFILL, NEW_PREFILL),
    Failure.HANDLE_EXPIRED: (NEW_PREFILL, NEW_PREFILL),
}
LEGS_AND_FAILURES = list(itertools.product(Leg, Failure))
any_history = st.lists(st.tuples(st.sampled_from(Leg), st.sampled_from(Failure)), max_size=20)


@pytest.mark.parametrize(("leg", "failure"), LEGS_AND_FAILURES)
def test_every_failure_of_either_leg_has_its_answer_and_its_tries(leg: Leg, failure: Failure) -> None:
    again, allowed = _TABLE[failure][leg is Leg.DECODE]
    assert SPLIT_TRIES[leg, failure] == (again, allowed)
    tries = SplitTries()
    expected = [again] * allowed + [Again.GIVE_UP] * 2
    assert [tries.after(leg, failure) for _ in expected] == expected
    assert tries.made == allowed


@pytest.mark.parametrize("failure", Failure)
def test_a_handle_that_a_decode_engine_may_have_seen_is_never_used_again(failure: Failure) -> None:
    again, _ = SPLIT_TRIES[Leg.DECODE, failure]
    assert again is not Again.OTHER_WORKER or failure is Failure.NEVER_SENT


@pytest.mark.parametrize(
    "error",
    [
        UpstreamClosed("x", sent=True),
        UpstreamBroken("x"),
        UpstreamError("x", sent=True),
        DeadlineExceeded("x", phase="decode_first_event", sent=True),
    ],
)
def test_a_decode_leg_of_which_a_byte_was_sent_keeps_no_handle(error: UpstreamError) -> None:
    assert SplitTries().after(Leg.DECODE, failure_of_error(error)) is Again.NEW_PREFILL


@pytest.mark.parametrize(
    "error",
    [
        ConnectFailed("x", refused=True),
        UpstreamClosed("x", sent=False),
        DeadlineExceeded("x", phase="connect", sent=False),
    ],
)
def test_a_decode_leg_of_which_not_a_byte_was_sent_keeps_its_handle(error: UpstreamError) -> None:
    tries = SplitTries()
    assert tries.after(Leg.DECODE, failure_of_error(error)) is Again.OTHER_WORKER
    assert tries.new_prefills == 0


@pytest.mark.parametrize("first", LEGS_AND_FAILURES, ids=str)
def test_a_request_is_prefilled_once_more_at_most_whatever_failed(first: tuple[Leg, Failure]) -> None:
    for second in LEGS_AND_FAILURES:
        tries = SplitTries()
        answers = [tries.after(*first), tries.after(*second)]
        assert answers.count(Again.NEW_PREFILL) == tries.new_prefills <= 1
        if SPLIT_TRIES[first][0] is SPLIT_TRIES[second][0] is Again.NEW_PREFILL:
            assert answers == [Again.NEW_PREFILL, Again.GIVE_UP], second


def test_tries_of_one_leg_do_not_use_up_those_of_the_other() -> None:
    tries = SplitTries()
    story = [Leg.PREFILL, Leg.PREFILL, Leg.DECODE, Leg.DECODE]
    assert [tries.after(leg, Failure.NEVER_SENT) for leg in story] == [Again.OTHER_WORKER] * 4
    assert [tries.after(leg, Failure.NEVER_SENT) for leg in Leg] == [Again.GIVE_UP] * 2
    assert tries.after(Leg.DECODE, Failure.TIMEOUT) is Again.NEW_PREFILL
    assert repr(tries) == "<SplitTries [5 made | 1 new prefills]>"


@given(any_history)
def test_the_tries_of_a_split_request_are_bounded(history: list[tuple[Leg, Failure]]) -> None:
    tries = SplitTries()
    made = sum(tries.after(*failed) is not Again.GIVE_UP for failed in history)
    assert made == tries.made
    assert made <= sum(n for again, n in SPLIT_TRIES.values() if again is Again.OTHER_WORKER) + 1


@given(allowed=st.integers(0, 5), history=any_history)
def test_a_cap_holds_over_both_legs(allowed: int, history: list[tuple[Leg, Failure]]) -> None:
    capped, free = SplitTries(allowed=allowed), SplitTries()
    for failed in history:
        capped.after(*failed)
        free.after(*failed)
    assert capped.made == min(allowed, free.made)
    assert f"{capped.made} of {allowed} made" in repr(capped)


@given(any_history)
def test_giving_up_is_for_good_for_that_failure(history: list[tuple[Leg, Failure]]) -> None:
    tries = SplitTries()
    given_up: set[tuple[Leg, Failure]] = set()
    for failed in history:
        if tries.after(*failed) is Again.GIVE_UP:
            given_up.add(failed)
        else:
            assert failed not in given_up
