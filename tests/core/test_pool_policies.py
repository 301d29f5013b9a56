"""Laws between the Pool and its policy: what is offered, what is refused, and that a bug leaks nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from router.core.errors import InternalError, NoWorker, QueueFull
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from router.core.request import Request
from router.core.worker import Worker, WorkerView
from tests.core.fleet_examples import (
    MODEL,
    FirstPair,
    FirstWorker,
    Nobody,
    add_worker,
    assert_idle,
    joined,
    pool,
    request,
)


class Batch:
    """A batch policy that answers as it is told, and remembers what it was offered."""

    def __init__(self, decide: Callable[[Sequence[Request], Sequence[WorkerView]], list[Choice]]) -> None:
        self._decide = decide
        self.offers: list[tuple[list[str], list[str]]] = []

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        self.offers.append(([r.id for r in waiting], [w.name for w in workers]))
        return self._decide(waiting, workers)


def all_to_first(waiting: Sequence[Request], workers: Sequence[WorkerView]) -> list[Choice]:
    return [Choice(one.id, workers[0].name) for one in waiting]


def submit(made: Pool, *ids: str, **fields: Any) -> None:
    for one in ids:
        made.submit(request(one, **fields), 1.0)


def held(made: Pool) -> int:
    return made._budgets.in_flight.used


def assert_nothing_leaked(made: Pool, *ids: str) -> None:
    """As after a round that failed: the shell withdraws who waits."""
    for one in ids:
        made.withdraw(one)
    assert_idle(made)
    assert held(made) == 0


# --- batches -------------------------------------------------------------------------------------------


def test_a_batch_policy_sees_all_that_may_go_to_the_same_workers() -> None:
    policy = Batch(all_to_first)
    made = pool("a", "b", policy=policy)
    made.roster.learn_models("b", {MODEL: None, "n": None})
    submit(made, "1", "2")
    submit(made, "3", model="n")
    submit(made, "4", avoid=frozenset("a"))
    made.assign(1.0)
    assert policy.offers == [(["1", "2"], ["a", "b"]), (["3", "4"], ["b"])]


def test_a_request_is_offered_to_a_batch_policy_only_with_workers_that_it_may_have() -> None:
    policy = Batch(all_to_first)
    made = pool("a", "b", policy=policy)
    submit(made, "free")
    submit(made, "burnt", avoid=frozenset("a"))
    submit(made, "pinned", pinned="b")
    assert {lease.request.id: lease.worker for lease in made.assign(1.0)} == {
        "free": "a",
        "burnt": "b",
        "pinned": "b",
    }


def test_a_batch_that_overfills_a_worker_leaves_the_rest_queued() -> None:
    made = pool("a", policy=Batch(all_to_first), slots=2, late_binding=True)
    submit(made, "1", "2", "3")
    leases = made.assign(1.0)
    assert [lease.request.id for lease in leases] == ["1", "2"]
    assert made.queued == 1
    assert made.assign(2.0) == []
    made.release(leases[0], Outcome.OK, 3.0)
    assert [lease.request.id for lease in made.assign(3.0)] == ["3"]


def test_a_batch_stops_at_the_limit_of_requests_in_flight() -> None:
    policy = Batch(all_to_first)
    made = pool("a", policy=policy, in_flight=2)
    submit(made, "1", "2", "3")
    assert len(made.assign(1.0)) == 2
    assert made.assign(1.0) == []
    assert len(policy.offers) == 1, "there is nothing to decide while there is no room"


def test_a_batch_may_leave_everything_queued() -> None:
    made = pool("a", policy=Batch(lambda _waiting, _workers: []))
    submit(made, "1")
    assert made.assign(1.0) == []
    assert made.queued == 1


_BAD_BATCHES: dict[str, Callable[[Sequence[Request], Sequence[WorkerView]], list[Choice]]] = {
    "twice": lambda waiting, workers: [Choice(waiting[0].id, workers[0].name)] * 2,
    "unknown request": lambda waiting, workers: [
        Choice(waiting[0].id, workers[0].name),
        Choice("x", workers[0].name),
    ],
    "unknown worker": lambda waiting, workers: [
        Choice(waiting[0].id, workers[0].name),
        Choice(waiting[1].id, "x"),
    ],
    "worker that was not offered": lambda waiting, workers: [Choice(waiting[0].id, "out")],
}


@pytest.mark.parametrize("name", _BAD_BATCHES)
def test_a_batch_with_a_choice_that_was_not_offered_is_a_bug_and_leaks_nothing(name: str) -> None:
    made = pool("a", "out", policy=Batch(_BAD_BATCHES[name]))
    made.roster.sign("out", Sign.DRAIN, 1.0)
    submit(made, "1", "2")
    with pytest.raises(InternalError, match=r"policy .* of pool p"):
        made.assign(1.0)
    assert_nothing_leaked(made, "1", "2")


# --- single choices and pairs --------------------------------------------------------------------------


class Always:
    def __init__(self, choice: Callable[[Request], Choice]) -> None:
        self._choice = choice

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        return self._choice(request)


@pytest.mark.parametrize(
    "choice",
    [
        lambda r: Choice(r.id, "nobody"),
        lambda r: Choice(r.id, "out"),
        lambda r: Choice("another", "a"),
    ],
)
def test_a_choice_that_was_not_offered_is_a_bug_and_leaks_nothing(
    choice: Callable[[Request], Choice],
) -> None:
    made = pool("a", "out", policy=Always(choice))
    made.roster.sign("out", Sign.DRAIN, 1.0)
    submit(made, "1")
    with pytest.raises(InternalError, match="not offered"):
        made.assign(1.0)
    assert_nothing_leaked(made, "1")


def test_what_was_placed_before_a_policy_broke_is_given_back() -> None:
    def break_on_third(asked: Request) -> Choice:
        if asked.id == "3":
            raise ZeroDivisionError
        return Choice(asked.id, "a")

    made = pool("a", policy=Always(break_on_third))
    submit(made, "1", "2", "3", "4")
    with pytest.raises(ZeroDivisionError):
        made.assign(1.0)
    assert made.queued == 2
    assert_nothing_leaked(made, "3", "4")


class BreaksAfter(FirstWorker):
    """Fails when it is told of a charge, or of a settlement."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if self._where == "committed":
            raise ZeroDivisionError

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if self._where == "settled":
            raise ZeroDivisionError


def test_a_policy_that_breaks_on_a_commit_leaks_nothing() -> None:
    made = pool("a", policy=BreaksAfter("committed"))
    submit(made, "1", "2")
    with pytest.raises(ZeroDivisionError):
        made.assign(1.0)
    assert_nothing_leaked(made, "2")


def test_a_policy_that_breaks_on_a_settlement_leaks_nothing() -> None:
    made = pool("a", policy=BreaksAfter("settled"))
    submit(made, "1")
    (lease,) = made.assign(1.0)
    with pytest.raises(ZeroDivisionError):
        made.release(lease, Outcome.OK, 2.0)
    assert_nothing_leaked(made)


def pair(policy: object) -> tuple[Pool, Pool]:
    return joined(pool("d", policy=policy), pool("p1"))


@pytest.mark.parametrize("prefill_worker", [None, "nobody", "d"])
def test_a_pair_without_a_real_prefill_worker_is_a_bug_and_leaks_nothing(prefill_worker: str | None) -> None:
    class HalfPair:
        def pick_pair(self, request: Request, *_rest: object) -> Choice:
            return Choice(request.id, "d", prefill_worker=prefill_worker)

    decode, prefill = pair(HalfPair())
    submit(decode, "1", split=True)
    with pytest.raises(InternalError, match="not offered"):
        decode.assign(1.0)
    assert_nothing_leaked(decode, "1")
    assert_idle(prefill)


def test_a_pair_policy_without_a_prefill_pool_is_a_bug() -> None:
    made = pool("d", policy=FirstPair())
    submit(made, "1")
    with pytest.raises(InternalError, match="no prefill pool"):
        made.assign(1.0)


def test_a_pair_is_settled_on_both_sides_even_when_the_policy_breaks() -> None:
    class Breaks(FirstPair):
        def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
            raise ZeroDivisionError

    decode, prefill = pair(Breaks())
    submit(decode, "1", split=True)
    (lease,) = decode.assign(1.0)
    with pytest.raises(ZeroDivisionError):
        decode.release(lease, Outcome.OK, 2.0)
    assert_nothing_leaked(decode)
    assert_idle(prefill)


def test_a_pair_is_not_waited_for_when_one_side_is_gone() -> None:
    decode, prefill = pair(FirstPair())
    submit(decode, "1", split=True)
    prefill.roster.sign("p1", Sign.REFUSED, 2.0)
    ((_, error),) = decode.expire(2.0)
    assert isinstance(error, NoWorker)
    with pytest.raises(NoWorker):
        decode.submit(request("2", split=True), 2.0)


def test_what_has_no_shape_of_a_policy_is_refused_when_it_is_set() -> None:
    with pytest.raises(InternalError, match="none of the methods of a policy"):
        pool("a", policy=object())


# --- queues --------------------------------------------------------------------------------------------


def test_one_id_cannot_wait_twice() -> None:
    made = pool("a", policy=Nobody())
    submit(made, "x", body_bytes=10)
    with pytest.raises(InternalError, match="twice"):
        submit(made, "x", body_bytes=10)
    assert_nothing_leaked(made, "x")
    assert made._budgets.queued_bytes.used == 0


def test_names_that_nobody_serves_yet_share_one_bound() -> None:
    made = pool("a", policy=Nobody(), max_queued=3)
    made.roster.add(Worker(name="new"), 0.0)
    for number in range(3):
        submit(made, f"u{number}", model=f"made up {number}")
    with pytest.raises(QueueFull):
        submit(made, "u3", model="made up 3")
    submit(made, "known")
    assert_nothing_leaked(made, "u0", "u1", "u2", "known")


def test_a_model_that_nobody_serves_any_more_is_not_waited_for() -> None:
    made = pool("a", policy=Nobody())
    submit(made, "1")
    made.roster.learn_models("a", {"other": None})
    ((request_id, error),) = made.expire(1.1)
    assert request_id == "1"
    assert isinstance(error, NoWorker)
    assert_nothing_leaked(made)


def test_a_request_goes_to_a_worker_that_learned_its_model_while_it_waited() -> None:
    made = pool("a")
    made.roster.add(Worker(name="new"), 0.0)
    submit(made, "1", model="n")
    assert made.assign(1.0) == []
    made.roster.sign("new", Sign.GOOD, 2.0)
    made.roster.learn_models("new", {"n": None})
    assert [lease.worker for lease in made.assign(2.0)] == ["new"]


def test_a_full_pool_asks_its_policy_nothing() -> None:
    class Counts(FirstWorker):
        asked = 0

        def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
            self.asked += 1
            return super().pick(request, workers, now)

    policy = Counts()
    made = pool("a", policy=policy, slots=1, late_binding=True)
    submit(made, *"123456")
    assert len(made.assign(1.0)) == 1
    assert policy.asked == 1
    assert made.assign(2.0) == []
    assert policy.asked == 1


def test_a_queue_that_is_full_of_one_model_does_not_hold_up_another() -> None:
    made = pool("a", slots=1, late_binding=True)
    add_worker(made, "b", slots=1)
    made.roster.learn_models("b", {"n": None})
    submit(made, "1", "2", "3")
    submit(made, "4", model="n")
    assert [lease.request.id for lease in made.assign(1.0)] == ["1", "4"]


# --- verdicts ------------------------------------------------------------------------------------------


def place(made: Pool, now: float, **fields: Any) -> Lease:
    made.submit(request(**fields), now)
    (lease,) = made.assign(now)
    return lease


def state_of(made: Pool, name: str) -> State:
    return made.roster.workers[name].state


def test_clients_that_will_not_wait_do_not_eject_a_worker() -> None:
    made = pool("a", "b")
    for _ in range(20):
        made.release(place(made, 100.0, stream=True), Outcome.TIMEOUT, 100.5)
    assert state_of(made, "a") is State.READY


def test_a_deadline_is_not_held_against_a_worker_that_serves_others() -> None:
    made = pool("a", "b")
    for start in (100.0, 200.0, 300.0):
        slow, busy = place(made, start, stream=True), place(made, start, stream=True)
        made.progress(busy, start + 59.0, generated_tokens=9)
        made.release(slow, Outcome.TIMEOUT, start + 60.0)
        made.release(busy, Outcome.CANCELLED, start + 60.0)
    assert state_of(made, "a") is State.READY


def test_deadlines_in_a_row_of_a_silent_worker_eject_it() -> None:
    made = pool("a", "b")
    for start in (100.0, 200.0, 300.0):
        made.release(place(made, start), Outcome.TIMEOUT, start + 60.0)
    assert state_of(made, "a") is State.EJECTED


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.CLIENT_ERROR])
def test_an_answer_is_a_sign_of_life_of_a_suspect(outcome: Outcome) -> None:
    made = pool("a", "b")
    lease = place(made, 1.0)
    place(made, 1.0)
    made.roster.sign("a", Sign.STALLED, 20.0)
    made.release(lease, outcome, 21.0)
    assert state_of(made, "a") is State.READY
