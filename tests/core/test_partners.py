"""Laws of what two pools share: revisions that are whole, pairs that rest, and who holds KV."""

from __future__ import annotations

from router.core.health import Sign
from router.core.lease import Outcome
from router.core.pairs import Blame
from tests.core.fleet_examples import MODEL, request
from tests.core.pair_examples import Couple, couple, join


def allowed(made: Couple, prefill: str, decode: str) -> bool:
    return made.partners.allowed(made.producer(prefill), made.consumer(decode))


def fail_all(made: Couple, *pairs: str, now: float = 1.0) -> None:
    """Sets these pairs aside; both ends by their letters."""
    made.partners.now = now
    for prefill, decode in pairs:
        made.partners.pairs.failed((prefill, 0), (decode, 0), now)


def test_a_revision_counts_only_while_both_sides_of_it_are_there() -> None:
    made = couple("p", "d")
    assert made.partners.matched(MODEL) == {"1"}
    join(made.prefill, "q", revision="2")
    assert made.partners.matched(MODEL) == {"1"}
    join(made.decode, "e", revision="2")
    assert made.partners.matched(MODEL) == {"1", "2"}
    made.decode.roster.sign("d", Sign.DRAIN, 1.0)
    assert made.partners.matched(MODEL) == {"2"}
    assert made.partners.matched("another") == frozenset()


def test_a_revision_that_is_learned_later_counts_at_once() -> None:
    made = couple("p", "d")
    made.prefill.roster.learn_revision("p", "0.21", None)
    assert made.partners.matched(MODEL) == frozenset()
    made.decode.roster.learn_revision("d", "0.21", None)
    assert made.partners.matched(MODEL) == {"0.21"}


def test_names_that_nobody_serves_are_not_remembered() -> None:
    made = couple("p", "d")
    for number in range(100):
        made.partners.matched(f"made up {number}")
    assert made.partners._matched == {}


def test_what_would_be_left_of_the_revisions_is_told_before_workers_go() -> None:
    made = couple("pq", "de")
    assert made.partners.revisions_without({"p", "d"}, MODEL) == {"1"}
    assert made.partners.revisions_without({"d", "e"}, MODEL) == frozenset()


def test_a_producer_whose_pairs_all_rest_is_not_asked_to_prefill() -> None:
    made = couple("pq", "de")
    fail_all(made, "pd")
    workers = made.prefill.roster.ready(MODEL)
    assert made.partners.producers(workers, MODEL) == list(workers), "it has another partner"
    fail_all(made, "pe")
    assert [w.name for w in made.partners.producers(workers, MODEL)] == ["q"]
    made.partners.now = 2.0
    assert made.partners.producers(workers, MODEL) == list(workers), "their time aside is over"


def test_a_decode_worker_of_another_revision_is_no_partner_for_a_producer_whose_own_rest() -> None:
    made = couple("p", "d")
    join(made.prefill, "q", revision="2")
    join(made.decode, "e", revision="2")
    fail_all(made, "pd")
    assert [w.name for w in made.partners.producers(made.prefill.roster.ready(MODEL), MODEL)] == ["q"]


def test_when_every_pair_rests_none_does() -> None:
    made = couple("p", "d")
    fail_all(made, "pd")
    assert not allowed(made, "p", "d")
    assert made.partners.all_aside(MODEL)
    assert [w.name for w in made.partners.producers(made.prefill.roster.ready(MODEL), MODEL)] == ["p"]
    assert [w.name for w in made.partners.beside([made.producer("p")], made.consumer("d"), MODEL)] == ["p"]
    join(made.decode, "e")
    assert not made.partners.all_aside(MODEL)
    assert made.partners.beside([made.producer("p")], made.consumer("d"), MODEL) == []
    assert made.partners.consumers_of(made.producer("p"), made.decode.roster.ready(MODEL), MODEL) == [
        made.consumer("e")
    ]


def test_pairs_are_of_one_revision_even_while_none_rests() -> None:
    made = couple("p", "d")
    join(made.prefill, "q", revision="2")
    both = made.prefill.roster.ready(MODEL)
    assert made.partners.beside(both, made.consumer("d"), MODEL) == [made.producer("p")]
    assert made.partners.consumers_of(made.producer("q"), made.decode.roster.ready(MODEL), MODEL) == []


def test_a_decode_worker_that_failed_with_the_producer_takes_its_kv_only_when_all_have() -> None:
    made = couple("p", "de")
    handover = made.prefilled().handover
    assert handover is not None
    workers = made.decode.roster.ready(MODEL)
    fail_all(made, "pd")
    assert made.partners.consumers(workers, handover) == [made.consumer("e")]
    fail_all(made, "pe")
    assert made.partners.consumers(workers, handover) == workers


def test_the_back_off_of_a_hand_over_is_that_of_the_process_that_made_it() -> None:
    made = couple("p", "de")
    handover = made.prefilled().handover
    assert handover is not None
    fail_all(made, "pd")
    made.prefill.roster._reincarnate(made.producer("p"), 1.0, "restarted")
    assert made.partners.consumers(made.decode.roster.ready(MODEL), handover) == [made.consumer("e")]
    assert made.partners.producer_of(handover) is None


def test_the_producer_of_a_hand_over_is_known_while_its_process_lives() -> None:
    made = couple("p", "d")
    handover = made.prefilled().handover
    assert handover is not None
    assert made.partners.producer_of(handover) is made.producer("p")
    made.prefill.roster.remove("p", 1.0)
    made.prefill.roster.forget_gone()
    assert made.partners.producer_of(handover) is made.producer("p"), "it is kept for what it holds"


def test_a_failed_transfer_sets_its_pair_aside_and_a_success_takes_it_back() -> None:
    made = couple("p", "d")
    made.fail(made.decoding(), 1.0)
    assert not allowed(made, "p", "d")
    lease = made.decoding(1.1)
    made.decode.progress(lease, 1.2, generated_tokens=1)
    assert allowed(made, "p", "d")


def test_an_answer_in_one_piece_proves_the_hand_over_too() -> None:
    made = couple("p", "d")
    made.fail(made.decoding(), 1.0)
    made.decode.release(made.decoding(1.1), Outcome.OK, 1.2)
    assert allowed(made, "p", "d")


def test_a_lease_without_a_producer_says_nothing_of_pairs() -> None:
    made = couple("p", "d")
    lease = made.decode.place_now(request(), 1.0)
    assert lease is not None
    assert made.partners.failed(lease) is Blame.NOBODY
    made.partners.transferred(lease)
    assert len(made.partners.pairs) == 0


def test_a_removed_worker_is_forgotten_on_both_accounts() -> None:
    made = couple("p", "d")
    made.fail(made.decoding(), 1.0)
    made.partners.budget.strand("p", 0, 100, 30.0)
    made.partners.forget("p")
    assert len(made.partners.pairs) == 0
    assert made.partners.budget.stranded() == 0
    assert repr(made.partners).startswith("<Partners <Pairs [0 in trouble]> <PrefillBudget ")


def test_a_transfer_whose_end_shows_is_the_measure_of_those_whose_end_does_not() -> None:
    partners = couple("p", "d").partners
    assert partners.presumed_s == 1.0
    partners.timed(0.5)
    assert partners.presumed_s == 1.5
    for _ in range(200):
        partners.timed(0.001)
    assert partners.presumed_s == 0.25
    for _ in range(200):
        partners.timed(60.0)
    assert partners.presumed_s == 10.0


def test_an_answer_that_shows_nothing_before_its_end_does_not_hold_up_others_transfers() -> None:
    made = couple("p", "d")
    leases = []
    for stream in (False, True):
        request_ = made.prefilled(1.0, stream=stream)
        lease = made.decode.place_now(request_, 1.0)
        assert lease is not None
        leases.append(lease)
    assert (made.consumer("d").mirror.transfers, made.producer("p").in_flight) == (2, 2)
    made.decode.expire(1.9)
    assert made.consumer("d").mirror.transfers == 2
    made.decode.expire(2.0)
    assert [lease.transferring for lease in leases] == [False, True]
    assert (made.consumer("d").mirror.transfers, made.producer("p").in_flight) == (1, 1)
    for lease in leases:
        made.decode.release(lease, Outcome.OK, 3.0)
    assert made.in_flight.used == 0


def test_a_transfer_is_not_presumed_done_before_the_prompt_beside_it_is_prefilled() -> None:
    made = couple("p", "d")
    lease = made.decode.place_now(request(split=True, stream=False), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    made.decode.expire(50.0)
    assert (lease.transferring, made.producer("p").in_flight) == (True, 1)
    made.prefill.progress(lease.prefill, 50.0, generated_tokens=1)
    made.decode.expire(50.9)
    assert lease.transferring
    made.decode.expire(51.0)
    assert (lease.transferring, made.producer("p").in_flight) == (False, 0)
    made.decode.release(lease, Outcome.OK, 52.0)
    assert made.in_flight.used == 0
