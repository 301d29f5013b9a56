"""Laws of who may be offered to a policy for a request."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.eligibility import Eligibility
from router.core.health import Sign
from router.core.lease import Lease
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker
from tests.core.fleet_examples import MODEL, request


def fleet(**slots: int | None) -> Roster:
    made = Roster()
    for name, count in slots.items():
        made.add(Worker(name=name, slots=count, models=frozenset({MODEL})), 0.0)
        made.sign(name, Sign.GOOD, 0.0)
    return made


def occupy(made: Roster, name: str, sequences: int) -> None:
    made.workers[name].mirror.charge(Lease(request(sequences=sequences), name, 0, 0.0, 10, 10))


def offered(made: Roster, *, late: bool = True, **fields: Any) -> str:
    eligible = Eligibility(made, late_binding=late)
    return "".join(worker.name for worker in eligible.open_to(request(**fields)))


def test_every_ready_worker_is_offered_to_a_request_without_wishes() -> None:
    assert offered(fleet(a=4, b=4, c=None)) == "abc"
    assert offered(fleet(a=4), model="other") == ""


def test_workers_that_failed_it_are_not_offered_again() -> None:
    assert offered(fleet(a=4, b=4), avoid=frozenset("a")) == "b"


def test_early_binding_asks_for_no_slot() -> None:
    made = fleet(a=1)
    occupy(made, "a", 5)
    assert offered(made, late=False) == "a"
    assert offered(made, late=True) == ""


@pytest.mark.parametrize(
    ("running", "sequences", "open_"), [(2, 2, True), (3, 2, False), (0, 9, True), (1, 9, False)]
)
def test_room_is_counted_in_sequences_and_more_than_all_slots_take_an_empty_worker(
    running: int, sequences: int, open_: bool
) -> None:
    made = fleet(a=4)
    if running:
        occupy(made, "a", running)
    assert bool(offered(made, sequences=sequences)) is open_


def test_a_worker_whose_slots_nobody_stated_always_has_room() -> None:
    made = fleet(a=1, b=None)
    occupy(made, "a", 1)
    occupy(made, "b", 500)
    assert offered(made) == "b"


def test_a_prompt_is_offered_where_it_fits_and_everywhere_when_it_fits_nowhere() -> None:
    made = fleet(a=4, b=4, c=4)
    made.learn_models("a", {MODEL: 1000})
    made.learn_models("b", {MODEL: 8000})
    assert offered(made, prompt_tokens=1000) == "abc"
    assert offered(made, prompt_tokens=5000) == "bc"
    made.learn_models("c", {MODEL: 1000})
    assert offered(made, prompt_tokens=9000) == "abc"


def test_a_context_that_was_learned_later_counts_at_once() -> None:
    made = fleet(a=4, b=4)
    assert offered(made, prompt_tokens=5000) == "ab"
    made.learn_models("a", {MODEL: 1000})
    assert offered(made, prompt_tokens=5000) == "b"


@pytest.mark.parametrize("sign", [Sign.DRAIN, Sign.STALLED])
def test_what_is_stored_at_one_worker_is_asked_of_it_also_while_it_gets_nothing_new(sign: Sign) -> None:
    made = fleet(a=4, b=4)
    made.sign("a", sign, 1.0)
    assert offered(made) == "b"
    assert offered(made, pinned="a") == "a"


def test_a_pinned_request_goes_nowhere_else() -> None:
    made = fleet(a=4, b=4)
    made.sign("a", Sign.REFUSED, 1.0)
    assert offered(made, pinned="a") == ""
    assert offered(made, pinned="b", avoid=frozenset("b")) == ""


def in_vain(made: Roster, asked: Request) -> bool:
    return Eligibility(made, late_binding=False).in_vain(asked)


def test_waiting_is_in_vain_when_nobody_will_come() -> None:
    made = fleet(a=4)
    assert not in_vain(made, request())
    made.sign("a", Sign.REFUSED, 1.0)
    assert in_vain(made, request())
    made.add(Worker(name="b"), 1.0)
    assert not in_vain(made, request())


@pytest.mark.parametrize("fields", [{"attempt": 1}, {"pinned": "x"}])
def test_a_retry_and_a_pinned_request_do_not_wait_for_somebody_new(fields: dict[str, Any]) -> None:
    made = Roster()
    made.add(Worker(name="b"), 1.0)
    assert in_vain(made, request(**fields))


def test_it_says_how_it_binds() -> None:
    assert (
        repr(Eligibility(fleet(a=1), late_binding=True)) == "<Eligibility late binding, <Roster [1 workers]>>"
    )
