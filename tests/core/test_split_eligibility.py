"""Laws of who may be offered for the legs of a split request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from router.core.binding import Mode
from router.core.engine_stats import EngineStats
from router.core.health import Sign
from router.core.request import Request
from router.core.worker import Worker
from tests.core.fleet_examples import request
from tests.core.pair_examples import OVERDUE_S, Couple, couple, join


def letters(workers: Sequence[Worker]) -> str:
    return "".join(worker.name for worker in workers)


def for_prefill(made: Couple, **fields: Any) -> str:
    return letters(made.prefill.eligible.open_to(request(**({"split": True} | fields))))


def for_decode(made: Couple, asked: Request, now: float = 1.0) -> str:
    made.partners.now = now
    return letters(made.decode.eligible.open_to(asked))


# --- prefill -------------------------------------------------------------------------------------------


def test_a_prompt_is_prefilled_where_somebody_can_take_its_kv() -> None:
    made = couple("p", "d")
    join(made.prefill, "q", revision="2")
    assert for_prefill(made) == "p"
    assert for_prefill(made, split=False) == "pq", "one that ends there needs nobody else"
    join(made.decode, "e", revision="2")
    assert for_prefill(made) == "pq"


def test_a_producer_above_its_budget_gets_nothing_until_it_is_below_the_low_mark() -> None:
    made = couple("p", "d", kv_tokens=1000)
    first, second = made.prefilled(prompt_tokens=499), made.prefilled(prompt_tokens=399)
    assert for_prefill(made) == ""
    assert made.prefill.place_now(request(split=True), 1.0) is None
    assert first.handover is not None
    assert second.handover is not None
    made.prefill.progress(first.handover.prefill, 1.0, prompt_tokens=360)
    assert for_prefill(made) == "", "760 of 1000 are between the marks"
    made.prefill.progress(first.handover.prefill, 1.0, prompt_tokens=340)
    assert for_prefill(made) == "p"


def test_kv_that_nobody_will_fetch_counts_until_its_time_is_over() -> None:
    made = couple("p", "d", kv_tokens=1000)
    made.partners.budget.strand("p", 0, 900, until=20.0)
    assert for_prefill(made) == ""
    made.partners.now = 20.0
    assert for_prefill(made) == "p"


def test_somebody_elses_kv_does_not_close_a_producer_that_holds_nothing_of_ours() -> None:
    made = couple("p", "d", kv_tokens=1000)
    for second in range(1, 6):
        made.prefill.observe("p", EngineStats(taken=float(second), kv_usage=0.95), float(second))
    assert made.producer("p").drift.unexplained_tokens == 950
    made.partners.now = 5.0
    assert for_prefill(made) == "p"


# --- decode, after the prefill -------------------------------------------------------------------------


def test_kv_goes_only_to_workers_of_its_revision() -> None:
    made = couple("p", "d")
    join(made.decode, "e", revision="2")
    assert for_decode(made, made.prefilled()) == "d"


def test_kv_of_a_revision_that_drains_goes_to_the_workers_that_drain_with_it() -> None:
    made = couple("p", "d")
    waiting = made.prefilled()
    join(made.decode, "e", revision="2")
    made.decode.roster.sign("d", Sign.DRAIN, 1.0)
    assert for_decode(made, waiting) == "d"
    join(made.decode, "f")
    assert for_decode(made, waiting) == "f"
    made.decode.roster.learn_revision("f", None, "3")
    assert for_decode(made, waiting) == "d"


def test_a_decode_worker_has_only_so_many_transfers_under_way() -> None:
    made = couple("p", "de", max_transfers=1)
    lease = made.decoding()
    assert lease.worker == "d"
    waiting = made.prefilled()
    assert for_decode(made, waiting) == "e"
    assert for_decode(made, request()) == "de", "what is served whole transfers nothing"
    made.decode.progress(lease, 2.0, generated_tokens=1)
    assert for_decode(made, waiting) == "de"


def test_late_binding_asks_for_a_slot_and_for_a_transfer() -> None:
    made = couple("p", "d", mode=Mode.LATE, slots=1, max_transfers=4)
    made.decoding()
    assert for_decode(made, made.prefilled()) == ""


def test_what_waited_a_third_of_its_lease_may_go_anywhere_when_nobody_has_room() -> None:
    made = couple("p", "de", mode=Mode.LATE, slots=1, max_transfers=1)
    made.decoding()
    waiting = made.prefilled(1.0)
    assert for_decode(made, waiting, now=1.0 + OVERDUE_S) == "e", "somebody has room"
    made.decoding()
    assert for_decode(made, waiting, now=0.9 + OVERDUE_S) == ""
    assert for_decode(made, waiting, now=1.0 + OVERDUE_S) == "de"


# --- decode, while the prefill runs --------------------------------------------------------------------


def test_a_decode_worker_is_offered_beside_a_prefill_worker_of_its_revision() -> None:
    made = couple("p", "d")
    join(made.decode, "e", revision="2")
    asked = request(split=True)
    assert for_decode(made, asked) == "d"
    join(made.prefill, "q", revision="2")
    assert for_decode(made, asked) == "de"
    assert for_decode(made, request(split=True, avoid=frozenset("q"))) == "d"
    assert letters(made.decode.eligible.producers_for(asked, made.consumer("e"))) == "q"  # type: ignore[attr-defined]  # a joined decode pool's


def test_a_saturated_producer_offers_no_partner() -> None:
    made = couple("p", "d", kv_tokens=1000)
    made.partners.budget.strand("p", 0, 900, until=20.0)
    assert for_decode(made, request(split=True)) == ""
    assert for_decode(made, request(split=True), now=20.0) == "d"


def test_pairs_that_rest_are_not_offered_together() -> None:
    made = couple("p", "de")
    made.partners.pairs.failed(("p", 0), ("d", 0), 1.0)
    assert for_decode(made, request(split=True)) == "e"
    made.partners.pairs.failed(("p", 0), ("e", 0), 1.0)
    assert for_decode(made, request(split=True)) == "de", "there is no other pair"


# --- served whole --------------------------------------------------------------------------------------


def test_a_new_revision_stays_out_until_both_of_its_sides_are_there() -> None:
    made = couple("p", "d")
    join(made.decode, "e", revision="2")
    assert for_decode(made, request()) == "d"
    made.prefill.roster.sign("p", Sign.REFUSED, 1.0)
    assert for_decode(made, request()) == "de", "no revision is whole, and this one needs one worker alone"
    assert for_decode(made, request(split=True)) == ""


def test_what_needs_both_roles_goes_to_workers_that_may_do_both() -> None:
    made = couple("p", "d")
    join(made.decode, "e", may_prefill=True)
    assert for_decode(made, request(both=True)) == "e"


# --- kinds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"pinned": "d"}, {"avoid": frozenset("d")}])
def test_a_request_with_wishes_of_its_own_is_of_no_kind(fields: dict[str, Any]) -> None:
    made = couple()
    assert made.decode.eligible.kind(request(**fields)) is None
    assert made.prefill.eligible.kind(request(**fields)) is None


def test_requests_of_one_kind_need_the_same() -> None:
    kind = couple().decode.eligible.kind
    assert kind(request(prompt_tokens=1)) == kind(request(prompt_tokens=9))
    others = [{}, {"sequences": 2}, {"split": True}, {"both": True}, {"model": "n"}]
    assert len({kind(request(**fields)) for fields in others}) == len(others)


def test_prompts_that_do_not_fit_everywhere_are_of_a_kind_by_their_length() -> None:
    made = couple("p", "d")
    made.decode.roster.learn_models("d", {"m": 1000})
    made.decode.roster.ready("m")
    kind = made.decode.eligible.kind
    assert kind(request(prompt_tokens=999)) == kind(request(prompt_tokens=1000))
    assert kind(request(prompt_tokens=1001)) != kind(request(prompt_tokens=1002))


def test_what_was_prefilled_is_of_the_kind_of_its_revision_and_of_its_producer_while_pairs_rest() -> None:
    made = couple("pq", "de")
    join(made.prefill, "r", revision="2")
    join(made.decode, "f", revision="2")
    kind = made.decode.eligible.kind
    p, q, r = (made.prefilled(avoid=frozenset("pqr") - {name}) for name in "pqr")
    p, q, r = (_without_avoid(one) for one in (p, q, r))
    assert kind(p) == kind(q) != kind(r)
    made.partners.pairs.failed(("p", 0), ("d", 0), 1.0)
    assert kind(p) != kind(q)


def test_what_is_overdue_is_of_no_kind() -> None:
    made = couple("p", "d")
    waiting = made.prefilled(1.0)
    assert made.decode.eligible.kind(waiting) is not None
    made.partners.now = 1.0 + OVERDUE_S
    assert made.decode.eligible.kind(waiting) is None


def _without_avoid(asked: Request) -> Request:
    return structs.replace(asked, avoid=frozenset())
