"""A policy with a bug, on either side of a pair of pools: the round is lost, and no account is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from router.core.forecasts import Forecasts
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.request import Request
from tests.core.fleet_examples import FirstPair, FirstWorker, request
from tests.core.pair_examples import Couple, couple


class Bug(Exception):
    """What a policy of somebody else may raise."""


class Breaks:
    """Fails in one of its methods at the nth call."""

    def __init__(self, where: str, *, at: int = 1) -> None:
        self._where = where
        self._left = at

    def _reach(self, method: str) -> None:
        if method == self._where:
            self._left -= 1
            if not self._left:
                raise Bug

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        self._reach("committed")

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        self._reach("settled")


class BreaksSingle(Breaks, FirstWorker):
    def pick(self, request: Request, workers: Sequence[Any], now: float) -> Choice | None:
        self._reach("choose")
        return FirstWorker.pick(self, request, workers, now)


class BreaksPair(Breaks, FirstPair):
    def pick_pair(self, request: Request, *rest: Any) -> Choice | None:
        self._reach("choose")
        return FirstPair.pick_pair(self, request, *rest)


class BreaksBatch(Breaks):
    def admit(self, waiting: Sequence[Request], workers: Sequence[Any], now: float) -> Sequence[Choice]:
        self._reach("choose")
        return [Choice(one.id, workers[0].name) for one in waiting]


SHAPES = [BreaksSingle, BreaksPair, BreaksBatch]
PLACES = ["choose", "committed", "settled"]


def tolerate(step: Callable[[], object]) -> None:
    """A bug reaches whoever caused the step; the story goes on."""
    with suppress(Bug):
        step()


def end_all(made: Couple, waiting: list[Request]) -> None:
    """As the shell does: who waits is withdrawn, and every lease that is left is given back."""
    for one in waiting:
        made.prefill.withdraw(one.id)
        made.decode.withdraw(one.id)
        if one.handover is not None:
            tolerate(lambda lease=one.handover.prefill: made.prefill.release(lease, Outcome.CANCELLED, 9.0))  # type: ignore[misc]  # a default binds it
    for pool in (made.decode, made.prefill):
        for lease in list(pool.ledger.leases):
            tolerate(lambda pool=pool, lease=lease: pool.release(lease, Outcome.CANCELLED, 9.0))  # type: ignore[misc]  # as above
    made.assert_idle()


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decode_policy_that_breaks_leaks_nothing_of_what_was_prefilled(
    shape: type, where: str, at: int
) -> None:
    made = couple("pq", "de", policy=shape(where, at=at))
    waiting = [made.pooled() for _ in range(3)]
    leases: list[Lease] = []
    tolerate(lambda: leases.extend(made.decode.assign(1.0)))
    for lease in leases:
        tolerate(lambda lease=lease: made.decode.progress(lease, 2.0, generated_tokens=1))  # type: ignore[misc]  # as above
        tolerate(lambda lease=lease: made.decode.release(lease, Outcome.OK, 3.0))  # type: ignore[misc]  # as above
    end_all(made, waiting)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decode_policy_that_breaks_leaks_nothing_of_legs_that_run_at_the_same_time(
    shape: type, where: str, at: int
) -> None:
    made = couple("pq", "de", policy=shape(where, at=at))
    waiting = [request(split=True) for _ in range(3)]
    for one in waiting:
        made.decode.submit(one, 1.0)
    tolerate(lambda: made.decode.assign(1.0))
    end_all(made, waiting)


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("where", PLACES)
def test_a_prefill_policy_that_breaks_leaks_nothing_on_either_side(where: str, concurrent: bool) -> None:
    made = couple("pq", "de", prefill_policy=BreaksSingle(where, at=2))
    waiting = [request(split=True) for _ in range(3)]
    pool = made.decode if concurrent else made.prefill
    for one in waiting:
        pool.submit(one, 1.0)
    leases: list[Lease] = []
    tolerate(lambda: leases.extend(pool.assign(1.0)))
    for lease in leases:
        tolerate(lambda lease=lease: pool.progress(lease, 2.0, generated_tokens=1))  # type: ignore[misc]  # a default binds it
        tolerate(lambda lease=lease: pool.release(lease, Outcome.OK, 3.0))  # type: ignore[misc]  # as above
    end_all(made, waiting)


@pytest.mark.parametrize("where", PLACES)
def test_placing_at_once_with_a_policy_that_breaks_leaks_nothing(where: str) -> None:
    made = couple("p", "d", policy=BreaksSingle(where), in_flight=1)
    handed = made.prefilled()
    tolerate(lambda: made.decode.place_now(handed, 1.0))
    end_all(made, [handed])
    tolerate(lambda: made.decode.place_now(request(split=True), 2.0))
    end_all(made, [])


def test_a_prediction_that_breaks_takes_no_place_in_flight() -> None:
    made = couple("p", "d", in_flight=1)

    def expect(_: Request) -> int:
        raise Bug

    made.decode.ledger.forecasts = Forecasts(expect)
    handed = made.prefilled()
    with pytest.raises(Bug):
        made.decode.place_now(handed, 1.0)
    assert handed.handover is not None
    assert handed.handover.prefill.counted
    made.prefill.release(handed.handover.prefill, Outcome.CANCELLED, 2.0)
    with pytest.raises(Bug):
        made.decode.place_now(request(), 2.0)
    made.assert_idle()


def test_a_round_that_broke_on_one_request_does_not_break_on_it_again() -> None:
    made = couple("p", "d", policy=BreaksSingle("committed"))
    first, second = made.pooled(), made.pooled()
    with pytest.raises(Bug):
        made.decode.assign(1.0)
    assert [lease.request.id for lease in made.decode.assign(1.0)] == [second.id]
    end_all(made, [first, second])
