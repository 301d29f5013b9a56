"""Laws of the Pool: queue, placement, accounts."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.engine_stats import EngineStats
from router.core.errors import InternalError, NoWorker, QueueFull
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from tests.core.fleet_examples import (
    MODEL,
    FirstPair,
    FirstWorker,
    NewestFirst,
    Nobody,
    assert_idle,
    joined,
    pool,
    request,
)


def place(made: Pool, now: float = 1.0, **fields: Any) -> Lease:
    made.submit(request(**fields), now)
    (lease,) = made.assign(now)
    return lease


def state_of(made: Pool, name: str) -> State:
    return made.roster.workers[name].state


def test_a_placed_request_is_charged_to_its_worker() -> None:
    made = pool("a")
    lease = place(made, prompt_tokens=100, sequences=2, stream=True)
    worker = made.roster.workers["a"]
    assert (worker.in_flight, worker.sequences, worker.queued_tokens, worker.kv_tokens) == (1, 2, 100, 100)
    assert repr(made) == "<Pool p [0 queued | 1 in flight | 1 workers]>"
    made.release(lease, Outcome.OK, 2.0)
    assert_idle(made)


def test_release_is_idempotent_and_the_first_outcome_stands() -> None:
    made = pool("a")
    lease = place(made)
    made.release(lease, Outcome.CANCELLED, 2.0)
    made.release(lease, Outcome.OK, 3.0)
    assert lease.outcome is Outcome.CANCELLED
    assert_idle(made)


def test_progress_moves_the_mirror_by_absolute_counts() -> None:
    made = pool("a")
    lease = place(made, prompt_tokens=100)
    worker = made.roster.workers["a"]
    made.progress(lease, 2.0, generated_tokens=1)
    assert (worker.queued_tokens, worker.kv_tokens) == (0, 101)
    made.progress(lease, 3.0, generated_tokens=1)
    assert worker.kv_tokens == 101
    made.progress(lease, 4.0, generated_tokens=5, prompt_tokens=90)
    assert worker.kv_tokens == 95
    made.release(lease, Outcome.OK, 5.0)
    assert_idle(made)


def test_progress_of_a_settled_lease_changes_nothing() -> None:
    made = pool("a")
    lease = place(made)
    made.release(lease, Outcome.OK, 2.0)
    made.progress(lease, 3.0, generated_tokens=10)
    assert_idle(made)


def test_remaining_tokens_fall_with_progress_but_never_to_zero_while_it_runs() -> None:
    made = pool("a")
    lease = place(made)
    worker = made.roster.workers["a"]
    assert worker.remaining_tokens == 50
    made.progress(lease, 2.0, generated_tokens=10)
    assert worker.remaining_tokens == 40
    made.progress(lease, 3.0, generated_tokens=500)
    assert worker.remaining_tokens == 8


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    made = pool("a", policy=Nobody(), max_queued=2)
    for _ in range(2):
        made.submit(request(), 1.0)
    with pytest.raises(QueueFull) as refusal:
        made.submit(request(), 1.0)
    assert refusal.value.retry_after_s is not None
    assert made.queued == 2


def test_without_a_queue_only_what_starts_at_once_is_taken() -> None:
    made = pool("a", max_queued=0, in_flight=1)
    lease = place(made)
    with pytest.raises(QueueFull):
        made.submit(request(), 1.0)
    made.release(lease, Outcome.OK, 2.0)
    place(made)


def test_the_queue_is_bounded_in_bytes_too_and_gives_them_back() -> None:
    made = pool("a", policy=Nobody(), queued_bytes=100)
    first = request(body_bytes=80)
    made.submit(first, 1.0)
    with pytest.raises(QueueFull):
        made.submit(request(body_bytes=40), 1.0)
    assert made.withdraw(first.id)
    made.submit(request(body_bytes=40), 1.0)


def test_each_model_has_its_own_queue() -> None:
    made = pool("a", policy=Nobody(), max_queued=1)
    made.roster.learn_models("a", {"m": None, "n": None})
    made.submit(request(), 1.0)
    made.submit(request(model="n"), 1.0)
    assert sorted(model for model, *_ in made.waits()) == ["m", "n"]


def test_withdrawing_twice_is_harmless() -> None:
    made = pool("a", policy=Nobody())
    waiting = request()
    made.submit(waiting, 1.0)
    assert made.withdraw(waiting.id)
    assert not made.withdraw(waiting.id)
    assert_idle(made)


def test_without_any_worker_there_is_nothing_to_wait_for() -> None:
    made = pool("a")
    made.roster.sign("a", Sign.REFUSED, 1.0)
    with pytest.raises(NoWorker):
        made.submit(request(), 1.0)


def test_a_request_waits_for_a_worker_that_is_starting() -> None:
    made = pool("a", ready=False)
    made.submit(request(), 1.0)
    assert made.assign(1.0) == []
    made.roster.sign("a", Sign.GOOD, 2.0)
    assert [lease.worker for lease in made.assign(2.0)] == ["a"]


def test_the_limit_of_requests_in_flight_is_hard() -> None:
    made = pool("a", in_flight=2)
    for _ in range(3):
        made.submit(request(), 1.0)
    leases = made.assign(1.0)
    assert len(leases) == 2
    assert made.queued == 1
    made.release(leases[0], Outcome.OK, 2.0)
    assert len(made.assign(2.0)) == 1


def test_late_binding_fills_slots_and_no_more() -> None:
    made = pool("a", "b", slots=2, late_binding=True)
    for _ in range(5):
        made.submit(request(), 1.0)
    assert sorted(lease.worker for lease in made.assign(1.0)) == ["a", "a", "b", "b"]
    assert made.queued == 1


def test_a_request_with_more_sequences_than_slots_takes_an_empty_worker() -> None:
    made = pool("a", slots=2, late_binding=True)
    assert place(made, sequences=5).worker == "a"


def test_a_request_blocked_by_its_own_constraints_does_not_hold_up_the_next() -> None:
    made = pool("a", "b")
    made.roster.sign("b", Sign.STALLED, 1.0)
    blocked, free = request(avoid=frozenset({"a"})), request()
    made.submit(free, 1.0)
    made.submit(blocked, 1.0)
    assert [lease.request.id for lease in made.assign(1.0)] == [free.id]
    assert made.queued == 1


def test_a_worker_to_avoid_is_avoided() -> None:
    made = pool("a", "b")
    assert place(made, avoid=frozenset({"a"})).worker == "b"


def test_a_pinned_request_goes_to_its_worker_or_nowhere() -> None:
    made = pool("a", "b")
    assert place(made, pinned="b").worker == "b"
    made.roster.sign("b", Sign.REFUSED, 2.0)
    with pytest.raises(NoWorker):
        made.submit(request(pinned="b"), 2.0)


def test_a_prompt_goes_where_it_fits_and_to_the_engine_to_refuse_when_it_fits_nowhere() -> None:
    made = pool("a", "b")
    made.roster.learn_models("a", {MODEL: 1000})
    made.roster.learn_models("b", {MODEL: 8000})
    assert place(made, prompt_tokens=5000).worker == "b"
    assert place(made, prompt_tokens=50_000).worker == "a"


def test_a_retry_is_told_to_the_policy_as_one() -> None:
    policy = FirstWorker()
    made = pool("a", policy=policy)
    place(made, request_id="x")
    place(made, request_id="x", attempt=1)
    assert policy.committed_requests == [("x", False), ("x", True)]


def test_a_pair_is_charged_on_both_sides_and_given_back_on_both() -> None:
    decode, prefill = joined(pool("d", policy=FirstPair()), pool("p1"))
    lease = place(decode, split=True)
    assert lease.prefill is not None
    assert (lease.worker, lease.prefill.worker) == ("d", "p1")
    assert prefill.roster.workers["p1"].in_flight == 1
    decode.release(lease, Outcome.OK, 2.0)
    assert_idle(decode)
    assert_idle(prefill)


def test_a_batch_policy_decides_who_goes_first() -> None:
    made = pool("a", policy=NewestFirst())
    old, young = request(), request()
    made.submit(old, 1.0)
    made.submit(young, 1.0)
    assert [lease.request.id for lease in made.assign(1.0)] == [young.id]
    assert [lease.request.id for lease in made.assign(2.0)] == [old.id]


def test_a_policy_that_invents_a_worker_is_a_bug_and_named_as_one() -> None:
    class Inventor:
        def pick(self, request: object, workers: object, now: float) -> Choice:
            return Choice("x", "nobody")

    made = pool("a", policy=Inventor())
    made.submit(request("x"), 1.0)
    with pytest.raises(InternalError, match="nobody"):
        made.assign(1.0)


def test_a_policy_can_be_exchanged_while_requests_wait() -> None:
    made = pool("a", policy=Nobody())
    made.submit(request(), 1.0)
    assert made.assign(1.0) == []
    made.use(FirstWorker(), "first")
    assert len(made.assign(2.0)) == 1
    assert made.policy_name == "first"


def test_a_wait_ends_at_its_deadline_with_a_reason() -> None:
    made = pool("a", policy=Nobody(), max_wait_s=30.0)
    waiting = request()
    made.submit(waiting, 1.0)
    assert made.expire(30.9) == []
    ((request_id, error),) = made.expire(31.0)
    assert request_id == waiting.id
    assert isinstance(error, QueueFull)
    assert_idle(made)


def test_a_wait_ends_when_the_last_worker_is_gone() -> None:
    made = pool("a", policy=Nobody())
    made.submit(request(), 1.0)
    made.roster.sign("a", Sign.REFUSED, 2.0)
    ((_, error),) = made.expire(2.0)
    assert isinstance(error, NoWorker)


def test_a_worker_with_a_silent_stream_becomes_suspect_and_keeps_its_lease() -> None:
    made = pool("a", "b", stall_min_s=10.0)
    lease = place(made, now=1.0, stream=True)
    made.expire(11.0)
    assert state_of(made, "a") is State.READY
    made.expire(11.1)
    assert state_of(made, "a") is State.SUSPECT
    assert made.in_flight == 1
    made.progress(lease, 12.0, generated_tokens=1)
    assert state_of(made, "a") is State.READY


def test_a_long_prefill_is_given_its_time() -> None:
    made = pool("a", "b", stall_min_s=10.0, stall_max_s=120.0)
    place(made, now=1.0, stream=True, prompt_tokens=50_000)
    made.expire(40.0)
    assert state_of(made, "a") is State.READY
    made.expire(1.0 + 45.1)
    assert state_of(made, "a") is State.SUSPECT


def test_silence_says_nothing_when_nothing_could_be_heard() -> None:
    made = pool("a", "b", stall_min_s=10.0)
    place(made, now=1.0, stream=False)
    made.expire(500.0)
    assert state_of(made, "a") is State.READY


def test_a_counter_that_moves_is_progress() -> None:
    made = pool("a", "b", stall_min_s=10.0)
    place(made, now=1.0, stream=False)
    for second in range(2, 40):
        made.roster.observe("a", EngineStats(taken=second, generation_tokens=float(second)), float(second))
        made.expire(float(second))
    made.expire(60.0)
    assert state_of(made, "a") is State.READY, "nobody has looked since"
    made.roster.observe("a", EngineStats(taken=60.0, generation_tokens=39.0), 60.0)
    made.expire(60.0)
    assert state_of(made, "a") is State.SUSPECT


def test_failures_in_a_row_eject_and_a_success_in_between_forgives() -> None:
    made = pool("a", "b")
    for outcome in (Outcome.FAILED, Outcome.FAILED, Outcome.OK, Outcome.FAILED, Outcome.FAILED):
        made.release(place(made), outcome, 2.0)
    assert state_of(made, "a") is State.READY
    made.release(place(made), Outcome.FAILED, 2.0)
    assert state_of(made, "a") is State.EJECTED


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.BUSY, Outcome.CLIENT_ERROR, Outcome.EXPIRED])
def test_what_is_not_the_workers_fault_never_ejects_it(outcome: Outcome) -> None:
    made = pool("a", "b")
    for _ in range(20):
        made.release(place(made), outcome, 2.0)
    assert state_of(made, "a") is State.READY


def test_a_refused_connection_ejects_at_once_even_the_last_worker() -> None:
    made = pool("a")
    made.release(place(made), Outcome.UNREACHABLE, 2.0)
    assert state_of(made, "a") is State.EJECTED


def test_half_of_a_pool_stays_in_rotation_whatever_fails() -> None:
    made = pool("a", "b", "c", "d")
    for _ in range(50):
        made.release(place(made), Outcome.FAILED, 2.0)
    states = [worker.state for worker in made.roster]
    assert states.count(State.READY) == 2


def test_a_late_settlement_moves_no_account_of_the_next_incarnation() -> None:
    made = pool("a")
    old = place(made, now=1.0)
    for start in (100.0, 200.0):
        made.roster.observe("a", EngineStats(taken=2.0, process_start=start), 2.0)
    assert made.roster.workers["a"].incarnation == 1
    young = place(made, now=3.0)
    made.progress(old, 4.0, generated_tokens=7)
    made.release(old, Outcome.FAILED, 4.0)
    assert made.roster.workers["a"].in_flight == 1
    assert made.roster.workers["a"].kv_tokens == 100
    made.release(young, Outcome.OK, 5.0)
    assert_idle(made)


def test_a_removed_worker_is_forgotten_when_its_own_leases_have_ended() -> None:
    made = pool("a", "b")
    lease = place(made)
    made.roster.remove("a", 2.0)
    assert made.roster.forget_gone() == []
    made.release(lease, Outcome.OK, 3.0)
    assert [worker.name for worker in made.roster.forget_gone()] == ["a"]
    assert place(made).worker == "b"
