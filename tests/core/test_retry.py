"""Laws of trying again: the whole table, and what counts as which failure."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamBroken, UpstreamClosed, UpstreamError
from router.core.lease import Outcome
from router.core.retry import OUTCOMES, TRIES, Failure, Tries, failure_of_error, failure_of_status

_TABLE = {
    Failure.NEVER_SENT: (2, Outcome.UNREACHABLE),
    Failure.NO_ANSWER: (1, Outcome.FAILED),
    Failure.SERVER_ERROR: (1, Outcome.FAILED),
    Failure.BUSY: (1, Outcome.BUSY),
    Failure.FIRST_EVENT_ERROR: (1, Outcome.FAILED),
    Failure.TIMEOUT: (0, Outcome.TIMEOUT),
    Failure.REFUSED_BY_ENGINE: (0, Outcome.CLIENT_ERROR),
    Failure.KEY_REFUSED: (0, Outcome.CLIENT_ERROR),
    Failure.MODEL_UNKNOWN: (1, Outcome.CLIENT_ERROR),
    Failure.RANK_UNKNOWN: (2, Outcome.FAILED),
    Failure.TOO_LONG: (1, Outcome.CLIENT_ERROR),
    Failure.NO_HANDLE: (0, Outcome.CANCELLED),
    Failure.HANDLE_EXPIRED: (0, Outcome.CANCELLED),
}
SENT = (Failure.NO_ANSWER, Failure.SERVER_ERROR, Failure.BUSY)


@pytest.mark.parametrize("failure", Failure)
def test_every_failure_has_its_tries_and_its_verdict(failure: Failure) -> None:
    tries, outcome = _TABLE[failure]
    assert (TRIES[failure], OUTCOMES[failure]) == (tries, outcome)
    made = Tries()
    assert [made.another(failure) for _ in range(tries + 2)] == [True] * tries + [False] * 2
    assert made.made == tries


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SENT, SENT)))
def test_a_request_that_was_sent_in_vain_is_sent_once_more_however_it_failed(
    first: Failure, second: Failure
) -> None:
    tries = Tries()
    assert tries.another(first)
    assert not tries.another(second)


def test_what_was_never_sent_does_not_use_up_the_try_of_what_was() -> None:
    tries = Tries()
    assert tries.another(Failure.NEVER_SENT)
    assert tries.another(Failure.NO_ANSWER)
    assert tries.another(Failure.NEVER_SENT)
    assert not tries.another(Failure.NEVER_SENT)
    assert repr(tries) == "<Tries [3 made]>"


@given(allowed=st.integers(0, 5), failures=st.lists(st.sampled_from(Failure)))
def test_a_cap_holds_over_all_kinds(allowed: int, failures: list[Failure]) -> None:
    capped, free = Tries(allowed=allowed), Tries()
    for failure in failures:
        capped.another(failure)
        free.another(failure)
    assert capped.made == min(allowed, free.made)
    assert repr(capped) == f"<Tries [{capped.made} of {allowed} made]>"


@given(st.lists(st.sampled_from(Failure)))
def test_no_request_is_worked_on_by_more_than_a_few_workers(failures: list[Failure]) -> None:
    tries = Tries()
    sent = sum(
        tries.another(failure) for failure in failures if failure in (*SENT, Failure.FIRST_EVENT_ERROR)
    )
    assert sent <= 2


_ERRORS = [
    (ConnectFailed("x", refused=True), Failure.NEVER_SENT),
    (ConnectFailed("x"), Failure.NEVER_SENT),
    (UpstreamClosed("x", sent=False), Failure.NEVER_SENT),
    (UpstreamClosed("x", sent=True), Failure.NO_ANSWER),
    (UpstreamBroken("x"), Failure.NO_ANSWER),
    (UpstreamError("x", sent=True), Failure.NO_ANSWER),
    (DeadlineExceeded("x", phase="first_event", sent=True), Failure.TIMEOUT),
    (DeadlineExceeded("x", phase="connect", sent=False), Failure.NEVER_SENT),
]


@pytest.mark.parametrize(("error", "failure"), _ERRORS)
def test_an_error_is_the_failure_that_it_amounts_to(error: UpstreamError, failure: Failure) -> None:
    assert failure_of_error(error) is failure


def _kind(status: int) -> Failure | None:
    if status < 400:
        return None
    special = {429: Failure.BUSY, 503: Failure.BUSY, 504: Failure.TIMEOUT}
    return special.get(status, Failure.SERVER_ERROR if status >= 500 else Failure.REFUSED_BY_ENGINE)


@pytest.mark.parametrize("status", range(100, 600))
def test_every_status_is_the_failure_that_it_amounts_to(status: int) -> None:
    assert failure_of_status(status) is _kind(status)
