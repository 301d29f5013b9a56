"""Laws of asking a policy, and of the choice that is made without one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.chooser import Chooser
from router.core.errors import InternalError
from router.core.policy import Choice
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker, WorkerView
from tests.core.fleet_examples import MODEL, FirstPair, FirstWorker, NewestFirst, Nobody, request


def chooser(policy: object, *names: str) -> tuple[Chooser, list[Worker]]:
    roster = Roster()
    for name in names or ("a", "b"):
        roster.add(Worker(name=name, models=frozenset({MODEL})), 0.0)
    return Chooser("p", roster, policy, "some"), list(roster)  # type: ignore[arg-type]  # of any shape


@pytest.mark.parametrize(
    ("policy", "batch", "pairs"),
    [(FirstWorker(), False, False), (NewestFirst(), True, False), (FirstPair(), False, True)],
)
def test_the_shape_of_a_policy_is_known(policy: object, batch: bool, pairs: bool) -> None:
    made, _ = chooser(policy)
    assert (made.by_batch, made.by_pairs(request())) == (batch, pairs)


def test_a_policy_of_both_shapes_chooses_one_worker_at_a_time() -> None:
    class Both(FirstWorker, FirstPair):
        pass

    made, workers = chooser(Both())
    assert not made.by_pairs(request())
    assert made.one(request(), workers, 0.0) is not None


def test_each_question_needs_a_policy_of_its_shape() -> None:
    single, workers = chooser(FirstWorker())
    with pytest.raises(InternalError, match="does not choose pairs"):
        single.pair(request(), workers, workers, 0.0)
    with pytest.raises(InternalError, match="many at once"):
        list(single.batch([request()], workers, 0.0))
    with pytest.raises(InternalError, match="no prefill pool"):
        chooser(FirstPair())[0].one(request(), workers, 0.0)


def test_a_pair_must_be_offered_on_both_sides() -> None:
    made, workers = chooser(FirstPair(), "a", "b", "c")
    asked = request()
    assert made.pair(asked, workers[:1], workers[1:], 0.0) == Choice(
        asked.id, "b", prefill_worker="a", reason="pair"
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 1000))
def test_without_its_policy_a_request_goes_where_least_is_running(loads: list[int], number: int) -> None:
    made, workers = chooser(FirstWorker(), *[f"w{index}" for index in range(len(loads))])
    for worker, load in zip(workers, loads, strict=True):
        worker.mirror.in_flight = load
    asked = request(sequence=number)
    choice = made.bypass(asked, workers, 0.0)
    chosen = next(worker for worker in workers if worker.name == choice.worker)
    assert chosen.in_flight == min(loads)
    assert (choice.cost, choice.reason) == (min(loads) + 1, "bypass")
    assert made.bypass(asked, workers, 0.0) == choice


def test_without_its_policy_a_faster_worker_carries_more() -> None:
    made, (slow, fast) = chooser(FirstWorker())
    slow.mirror.in_flight, fast.mirror.in_flight = 2, 3
    fast.capacity = 2.0
    assert made.bypass(request(), [slow, fast], 0.0).worker == fast.name
    fast.warmup = 2.0
    assert made.bypass(request(), [slow, fast], 0.0).worker == slow.name


class Bypassing(NewestFirst):
    """A policy of batches that can also choose for one request, but not when somebody is full."""

    def __init__(self, full: str = "") -> None:
        self.full = full

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        names = [worker.name for worker in workers]
        return None if self.full in names else Choice(request.id, names[-1], reason="virtual_load")


def test_a_policy_of_batches_may_choose_for_what_must_go_now() -> None:
    made, workers = chooser(Bypassing())
    assert made.bypass(request(), workers, 0.0).reason == "virtual_load"


def test_what_must_go_now_goes_also_where_the_policy_finds_no_room() -> None:
    made, (a, b) = chooser(Bypassing(full="b"))
    b.mirror.in_flight = 1
    assert made.bypass(request(), [a, b], 0.0).worker == "a"
    a.mirror.in_flight = 2
    assert made.bypass(request(), [a, b], 0.0).worker == "b"


def test_a_policy_that_has_declined_once_is_not_asked_again() -> None:
    made, workers = chooser(Nobody())
    assert made.bypass(request(), workers, 0.0).reason == "bypass"
