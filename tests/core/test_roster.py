"""Laws of the roster: membership, shares, incarnations, who is eligible and who may become so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.engine_stats import EngineStats
from router.core.health import Sign, State
from router.core.lives import Verdict
from router.core.roster import Roster
from router.core.worker import Role, Worker
from tests.core.fleet_examples import MODEL, pool, request
from tests.core.roster_examples import join, names, roster, states

# --- who is eligible -------------------------------------------------------------------------------------


def test_ready_workers_are_offered_in_name_order() -> None:
    assert names(roster("b", "c", "a")) == ["a", "b", "c"]


@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.BAD, Sign.STALLED, Sign.SLEEP, Sign.DRAIN, Sign.REMOVE])
def test_a_worker_that_is_not_ready_is_not_offered(sign: Sign) -> None:
    made = roster("a", "b")
    assert made.sign("a", sign, 1.0)
    assert names(made) == ["b"]


def test_a_worker_without_models_is_never_offered_but_hoped_for() -> None:
    made = roster("a", models=frozenset())
    assert names(made) == []
    assert made.hopeful("anything")
    made.learn_models("a", {MODEL: None})
    assert names(made) == ["a"]
    assert not made.hopeful("anything")


def test_models_are_still_being_learned_while_a_worker_that_may_come_has_not_told_its_own() -> None:
    made = roster("a", "b", models=frozenset())
    made.learn_models("b", {MODEL: None})
    assert made.learning
    made.sign("a", Sign.REFUSED, 1.0)
    assert not made.learning


def test_a_starting_worker_is_no_hope_for_a_model_that_it_does_not_list() -> None:
    made = roster("a", ready=False)
    assert made.hopeful(MODEL)
    assert not made.hopeful("other")


@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.SLEEP, Sign.DRAIN, Sign.REMOVE])
def test_nothing_is_hoped_of_a_worker_that_is_out(sign: Sign) -> None:
    made = roster("a")
    made.sign("a", sign, 1.0)
    assert not made.hopeful(MODEL)


def test_a_list_of_models_that_changes_is_believed_at_once() -> None:
    made = roster("a", "b")
    assert names(made) == ["a", "b"]
    made.learn_models("a", {"lora": 4096})
    assert (names(made), names(made, "lora")) == (["b"], ["a"])
    assert made.models() == {MODEL, "lora"}


def test_a_model_that_a_worker_denied_is_not_asked_of_it_until_its_list_is_read() -> None:
    made = roster("a", "b")
    made.lose_model("a", MODEL)
    assert names(made) == ["b"]
    made.learn_models("a", {MODEL: None})
    assert names(made) == ["a", "b"]


def test_names_that_nobody_serves_are_not_remembered() -> None:
    made = roster("a")
    for number in range(1000):
        assert made.ready(f"made up {number}") == ()
        assert not made.serves(f"made up {number}")
        assert made.fits_all(f"made up {number}", 10)
    assert len(made._ready) + len(made._shortest) <= 2


def test_models_of_workers_that_are_down_are_still_known() -> None:
    made = roster("a")
    made.sign("a", Sign.REFUSED, 1.0)
    assert made.models() == {MODEL}
    assert made.serves(MODEL)
    made.remove("a", 2.0)
    assert made.models() == set()
    assert not made.serves(MODEL)


def test_a_prompt_fits_all_up_to_the_shortest_context_of_those_who_said() -> None:
    made = roster("a", "b", "c")
    made.learn_models("a", {MODEL: 1000})
    made.learn_models("b", {MODEL: 8000})
    made.ready(MODEL)
    assert made.fits_all(MODEL, 1000)
    assert not made.fits_all(MODEL, 1001)


def test_a_prompt_too_long_for_one_is_too_long_for_all_that_are_no_longer() -> None:
    made = roster("a", "b", "c", "d")
    for name, length in (("a", 1000), ("b", 8000), ("c", 1000)):
        made.learn_models(name, {MODEL: length})
    assert made.no_longer_than("a", MODEL) == {"a", "c", "d"}
    assert made.no_longer_than("d", MODEL) == {"a", "b", "c", "d"}
    assert made.no_longer_than("gone", MODEL) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("sign", "reachable"),
    [
        (Sign.GOOD, True),
        (Sign.STALLED, True),
        (Sign.DRAIN, True),
        (Sign.REFUSED, False),
        (Sign.SLEEP, False),
        (Sign.REMOVE, False),
    ],
)
def test_what_only_one_worker_has_is_reachable_while_it_may_answer(sign: Sign, reachable: bool) -> None:
    made = roster("a", "b")
    made.sign("a", sign, 1.0)
    assert bool(made.reachable("a")) is reachable
    assert made.reachable("nobody") == ()


# --- shares ----------------------------------------------------------------------------------------------


@given(size=st.integers(1, 9), sign=st.sampled_from([Sign.BAD, Sign.STALLED]))
def test_at_least_half_of_a_pool_stays_in_rotation(size: int, sign: Sign) -> None:
    made = roster(*"abcdefghi"[:size])
    for name in list(made.workers):
        made.sign(name, sign, 1.0)
    assert states(made).count(State.READY) == size - size // 2


def test_who_refuses_is_out_even_as_the_last() -> None:
    made = roster("a", "b")
    for name in "ab":
        assert made.sign(name, Sign.REFUSED, 1.0)
    assert states(made) == [State.EJECTED, State.EJECTED]


def test_a_worker_that_is_still_starting_does_not_count_as_in_rotation() -> None:
    made = roster("a", "b")
    join(made, "c", "d", ready=False)
    for name in "ab":
        assert not made.sign(name, Sign.BAD, 1.0)
    assert names(made) == ["a", "b"]


def test_workers_that_serve_something_else_do_not_make_up_for_those_that_are_lost() -> None:
    made = roster("a", "b")
    join(made, "x", "y", "z", models=frozenset({"other"}))
    for name in "ab":
        made.sign(name, Sign.BAD, 1.0)
    assert len(names(made)) == 1


def test_workers_on_their_way_out_are_not_counted() -> None:
    made = roster("a", "b", "c")
    made.sign("a", Sign.DRAIN, 1.0)
    assert made.sign("b", Sign.BAD, 1.0)
    assert not made.sign("c", Sign.BAD, 1.0)


# --- probes ----------------------------------------------------------------------------------------------


def test_three_probes_in_a_row_that_time_out_take_a_worker_out_and_one_good_one_brings_it_back() -> None:
    made = roster("a", "b")
    made.probe_timed_out("a", 1.0)
    made.probe_timed_out("a", 2.0)
    made.probed("a", 3.0)
    made.probe_timed_out("a", 4.0)
    made.probe_timed_out("a", 5.0)
    assert names(made) == ["a", "b"]
    made.probe_timed_out("a", 6.0)
    assert names(made) == ["b"]
    made.probed("a", 7.0)
    assert names(made) == ["a", "b"]


def test_a_worker_that_was_spared_goes_as_soon_as_another_may_take_its_place() -> None:
    made = roster("a")
    for second in range(4):
        made.probe_timed_out("a", float(second))
    assert names(made) == ["a"]
    join(made, "b")
    made.probe_timed_out("a", 5.0)
    assert names(made) == ["b"]


def test_a_good_probe_does_not_clear_a_suspect_that_has_work() -> None:
    made = pool("a", "b")
    made.submit(request(), 1.0)
    made.assign(1.0)
    made.roster.sign("a", Sign.STALLED, 2.0)
    made.roster.probed("a", 3.0)
    assert made.roster.workers["a"].state is State.SUSPECT


def test_a_suspect_without_work_is_cleared_by_a_good_probe() -> None:
    made = roster("a", "b")
    made.sign("a", Sign.STALLED, 1.0)
    made.probed("a", 2.0)
    assert names(made) == ["a", "b"]


def test_the_extra_cost_fades_and_is_then_forgotten() -> None:
    made = roster("a", "b")
    made.sign("a", Sign.REFUSED, 1.0)
    made.probed("a", 10.0)
    worker = made.workers["a"]
    factors = []
    for second in (10.0, 30.0, 54.9, 55.0, 99.0):
        made.warm(second)
        factors.append(worker.warmup)
    assert factors[0] == 2.0
    assert 1.0 < factors[2] < factors[1] < 2.0
    assert factors[3:] == [1.0, 1.0]
    assert made._warming == []


def test_signs_of_a_worker_that_is_not_there_change_nothing() -> None:
    made = roster("a")
    assert not made.sign("x", Sign.BAD, 1.0)
    made.probed("x", 1.0)
    made.probe_timed_out("x", 1.0)
    made.learn_models("x", {"m": None})
    made.lose_model("x", "m")
    assert made.observe("x", EngineStats(taken=1.0), 1.0) is Verdict.SAME
    assert len(made) == 1


# --- shares of small pools -------------------------------------------------------------------------------


def prefill_roster(count: int) -> Roster:
    made = Roster()
    for name in "pqrs"[:count]:
        made.add(Worker(name=name, role=Role.PREFILL, models=frozenset({MODEL})), 0.0)
        made.sign(name, Sign.GOOD, 0.0)
    return made


@pytest.mark.parametrize("sign", [Sign.BAD, Sign.STALLED])
@pytest.mark.parametrize(("count", "stay"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_a_small_pool_keeps_half_of_its_workers_and_the_only_one_always(
    count: int, stay: int, sign: Sign
) -> None:
    made = prefill_roster(count)
    for worker in list(made):
        made.sign(worker.name, sign, 1.0)
    assert states(made).count(State.READY) == stay


@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_refuses_takes_even_the_only_worker_out(count: int) -> None:
    made = prefill_roster(count)
    for worker in list(made):
        made.sign(worker.name, Sign.REFUSED, 1.0)
    assert names(made) == []


def test_of_two_workers_of_which_one_drains_the_other_stays() -> None:
    made = prefill_roster(2)
    made.sign("p", Sign.DRAIN, 1.0)
    made.sign("q", Sign.BAD, 1.0)
    assert names(made) == ["q"]
