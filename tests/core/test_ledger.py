"""Laws of the accounts of two pools: what a leg is charged with, and who hears of its end."""

from __future__ import annotations

import pytest

from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.patience import Patience
from tests.core.fleet_examples import FirstWorker, request
from tests.core.pair_examples import Couple, couple


class Listens(FirstWorker):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Outcome]] = []

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        self.heard.append((lease.worker, outcome))


def states(made: Couple) -> dict[str, State]:
    workers = [*made.prefill.roster, *made.decode.roster]
    return {worker.name: worker.state for worker in workers}


def test_a_leg_that_only_prefills_is_expected_to_write_one_token() -> None:
    made = couple("p", "d")
    lease = made.prefill.place_now(request(split=True), 1.0)
    assert lease is not None
    assert (lease.expected_tokens, lease.prefill_only, lease.prefilled) == (1, True, False)


def test_a_request_that_ends_at_a_prefill_worker_is_no_hand_over() -> None:
    lease = couple("p", "d").prefill.place_now(request(stream=True), 1.0)
    assert lease is not None
    assert (lease.prefill_only, lease.streamed) == (False, True)


def test_a_decode_leg_waits_for_no_prefill_of_its_own() -> None:
    lease = couple("p", "d").decoding()
    assert (lease.prefilled, lease.transferring, lease.expected_tokens) == (True, True, 50)


def test_each_policy_hears_of_the_legs_at_its_own_workers_once() -> None:
    for_prefill, for_decode = Listens(), Listens()
    made = couple("p", "d", policy=for_decode, prefill_policy=for_prefill)
    lease = made.decoding()
    made.decode.progress(lease, 2.0, generated_tokens=1)
    made.decode.progress(lease, 2.1, generated_tokens=2)
    made.decode.release(lease, Outcome.CANCELLED, 3.0)
    assert for_prefill.heard == [("p", Outcome.OK)]
    assert for_decode.heard == [("d", Outcome.CANCELLED)]


def test_an_event_of_a_decode_worker_that_restarted_proves_nothing() -> None:
    made = couple("p", "d")
    lease = made.decoding()
    made.decode.roster._reincarnate(made.consumer("d"), 2.0, "restarted")
    made.decode.progress(lease, 2.1, generated_tokens=1)
    assert lease.prefill is not None
    assert not lease.prefill.settled
    made.decode.release(lease, Outcome.FAILED, 3.0)
    made.assert_idle()


def test_a_leg_at_a_producer_that_restarted_moves_no_account_of_the_new_one() -> None:
    made = couple("p", "d")
    old = made.decoding()
    made.prefill.roster._reincarnate(made.producer("p"), 2.0, "restarted")
    young = made.decoding(2.0)
    made.decode.release(old, Outcome.OK, 3.0)
    assert made.producer("p").in_flight == 1
    made.decode.release(young, Outcome.OK, 3.0)
    made.assert_idle()


def test_one_failed_transfer_is_held_against_no_worker() -> None:
    made = couple("pq", "de")
    for second in range(10):
        made.fail(made.decoding(100.0 * second), 100.0 * second)
    assert set(states(made).values()) == {State.READY}


@pytest.mark.parametrize("guilty", ["p", "d"])
def test_a_worker_whose_transfers_fail_with_everybody_is_taken_out(guilty: str) -> None:
    made = couple("pqr", "def")
    others = "def" if guilty == "p" else "pqr"
    for round_ in range(3):
        for other in others:
            now = 200.0 + 10.0 * round_
            prefill, decode = (guilty, other) if guilty == "p" else (other, guilty)
            _fail_between(made, prefill, decode, now)
    assert states(made)[guilty] is State.EJECTED
    assert [name for name, state in states(made).items() if state is not State.READY] == [guilty]
    made.assert_idle()


def _fail_between(made: Couple, prefill: str, decode: str, now: float) -> None:
    legs = {made.prefill: prefill, made.decode: decode}
    for pool, name in legs.items():
        if pool.roster.workers[name].state is not State.READY:
            return
    waiting = made.prefilled(now, avoid=frozenset("pqr") - {prefill} | (frozenset("def") - {decode}))
    lease = made.decode.place_now(waiting, now)
    if lease is None:  # the pair rests
        assert waiting.handover is not None
        made.prefill.release(waiting.handover.prefill, Outcome.OK, now)
        return
    made.fail(lease, now)


# --- silence -------------------------------------------------------------------------------------------


def test_a_producer_that_only_keeps_kv_is_not_taken_for_stalled() -> None:
    made = couple("pq", "d")
    made.prefilled(1.0, stream=True)
    made.prefill.expire(1.0 + 24.0)
    assert states(made)["p"] is State.READY


def test_nothing_is_heard_of_a_prefill_before_its_end() -> None:
    made = couple("pq", "d")
    assert made.prefill.place_now(request(split=True, stream=True), 1.0) is not None
    made.prefill.expire(500.0)
    assert states(made)["p"] is State.READY


def test_silence_while_a_producer_kept_kv_is_not_held_against_its_next_prefill() -> None:
    made = couple("p", "d")
    made.prefilled(1.0, stream=True)
    lease = made.prefill.place_now(request(split=True, stream=True), 20.0)
    assert lease is not None
    assert made.producer("p").last_sign == 20.0
    assert not Patience().exhausted(made.producer("p"), 25.0)


def test_a_suspect_that_only_keeps_kv_is_believed_when_a_probe_is_answered() -> None:
    made = couple("pq", "d")
    made.prefilled(1.0)
    made.prefill.roster.sign("p", Sign.STALLED, 2.0)
    made.prefill.roster.probed("p", 3.0)
    assert states(made)["p"] is State.READY


def test_it_says_what_it_holds() -> None:
    made = couple("p", "d")
    made.decoding()
    assert repr(made.decode.ledger) == "<Ledger of decode workers [1 leases]>"
