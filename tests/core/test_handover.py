"""Laws of a hand-over on its way from its producer to a decode worker."""

from __future__ import annotations

from msgspec import structs

from router.core.errors import DeadlineExceeded
from router.core.lease import Outcome
from tests.core.fleet_examples import Nobody, request
from tests.core.pair_examples import DISPATCH_S, couple


def test_kv_is_charged_to_its_producer_until_a_first_event_proves_that_it_went_over() -> None:
    made = couple("p", "d")
    lease = made.decoding(prompt_tokens=100)
    assert lease.prefill is not None
    assert (made.producer("p").kv_tokens, made.producer("p").queued_tokens) == (101, 0)
    assert (made.consumer("d").kv_tokens, made.consumer("d").queued_tokens) == (100, 0)
    assert made.consumer("d").mirror.transfers == 1
    made.decode.progress(lease, 2.0, generated_tokens=1)
    assert lease.prefill.outcome is Outcome.OK
    assert (made.producer("p").kv_tokens, made.consumer("d").kv_tokens) == (0, 101)
    assert made.consumer("d").mirror.transfers == 0
    made.decode.release(lease, Outcome.OK, 3.0)
    made.assert_idle()


def test_a_request_with_two_leases_counts_once() -> None:
    made = couple("p", "d", in_flight=1)
    waiting = made.pooled()
    assert made.in_flight.used == 1
    (lease,) = made.decode.assign(1.0)
    assert made.in_flight.used == 1
    assert waiting.handover is not None
    made.prefill.release(waiting.handover.prefill, Outcome.OK, 2.0)
    assert made.in_flight.used == 1, "the decode lease stands for it now"
    made.decode.release(lease, Outcome.OK, 3.0)
    made.assert_idle()


def test_a_request_that_was_prefilled_passes_the_full_house() -> None:
    made = couple("p", "d", in_flight=1)
    assert made.decoding().counted


def test_a_request_whose_producer_was_given_back_is_counted_anew() -> None:
    made = couple("p", "d", in_flight=1)
    waiting = made.prefilled()
    assert waiting.handover is not None
    made.prefill.release(waiting.handover.prefill, Outcome.CANCELLED, 2.0)
    assert made.in_flight.used == 0
    lease = made.decode.place_now(waiting, 2.0)
    assert lease is not None
    assert made.in_flight.used == 1
    assert made.decode.place_now(structs.replace(waiting, id="again"), 2.0) is None, "the house is full"
    made.decode.release(lease, Outcome.OK, 3.0)
    made.assert_idle()


def test_what_a_worker_never_saw_is_handed_back_and_waits_for_another() -> None:
    made = couple("p", "de")
    lease = made.decoding()
    made.decode.hand_back(lease, Outcome.UNREACHABLE, 2.0)
    prefill = lease.request.handover.prefill if lease.request.handover else None
    assert prefill is not None
    assert (prefill.outcome, prefill.counted, made.in_flight.used) == (None, True, 1)
    assert made.producer("p").kv_tokens == 101
    again = structs.replace(lease.request, avoid=frozenset({lease.worker}), attempt=1)
    made.decode.submit(again, 2.0)
    (other,) = made.decode.assign(2.0)
    assert other.worker != lease.worker
    made.decode.release(other, Outcome.OK, 3.0)
    made.assert_idle()


def test_handing_back_what_was_settled_or_proven_counts_nothing_twice() -> None:
    made = couple("p", "d")
    lease = made.decoding()
    made.decode.progress(lease, 2.0, generated_tokens=1)
    made.decode.hand_back(lease, Outcome.FAILED, 3.0)
    made.decode.hand_back(lease, Outcome.FAILED, 3.0)
    made.assert_idle()


def test_legs_that_run_at_the_same_time_are_not_handed_back_but_given_back() -> None:
    made = couple("p", "d")
    lease = made.decode.place_now(request(split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    made.decode.hand_back(lease, Outcome.UNREACHABLE, 2.0)
    assert lease.prefill.settled
    made.assert_idle()


def test_a_producer_is_not_blamed_for_what_became_of_the_decode_leg() -> None:
    made = couple("p", "d")
    for _ in range(5):
        lease = made.decoding()
        made.decode.release(lease, Outcome.FAILED, 2.0)
        assert lease.prefill is not None
        assert lease.prefill.outcome is Outcome.OK


def test_a_prefill_that_was_not_finished_is_cancelled_with_its_decode_leg() -> None:
    made = couple("p", "d")
    lease = made.decode.place_now(request(split=True), 1.0)
    assert lease is not None
    made.decode.release(lease, Outcome.CANCELLED, 2.0)
    assert lease.prefill is not None
    assert lease.prefill.outcome is Outcome.CANCELLED
    made.assert_idle()


def test_a_hand_over_waits_no_longer_than_its_producer_keeps_it() -> None:
    made = couple("p", "d", policy=Nobody())
    waiting = made.pooled(1.0)
    assert made.decode.expire(1.0 + DISPATCH_S - 0.1) == []
    ((request_id, error),) = made.decode.expire(1.0 + DISPATCH_S)
    assert request_id == waiting.id
    assert isinstance(error, DeadlineExceeded)
    assert error.phase == "transfer"


def test_it_says_where_the_kv_is() -> None:
    handover = couple("p", "d").prefilled(prompt_tokens=70).handover
    assert handover is not None
    assert handover.producer == "p"
    assert repr(handover) == "<Handover from p#0 [70 tokens]>"
