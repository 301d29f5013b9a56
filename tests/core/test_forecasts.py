"""Laws of what is expected of requests that run in a pool, and of what they teach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.forecasts import Forecasts
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.predict import Grouping
from router.core.predict_error import Trust
from router.core.request import Api, Request
from router.policies import build
from tests.core.fleet_examples import FirstWorker, assert_idle, pool, request

MEAN = 50


def forecasts() -> Forecasts:
    return Forecasts(lambda request: MEAN * request.sequences)


def run(made: Forecasts, one: Request, tokens: int, outcome: Outcome = Outcome.OK, now: float = 1.0) -> int:
    """From its placement to its end; what was expected of it."""
    expected = made.placed(one, now)
    lease = Lease(one, "w", 0, now, one.prompt_tokens, expected, generated_tokens=tokens)
    made.settled(lease, outcome, now)
    return expected


def lease_ahead(lease: Lease) -> object:
    """As it is now, whatever the type checker thinks that it still is."""
    return lease.ahead


# --- what is expected ------------------------------------------------------------------------------------


def test_until_enough_is_known_it_is_the_mean() -> None:
    made = forecasts()
    assert [run(made, request(), 400) for _ in range(7)] == [MEAN] * 7


@pytest.mark.parametrize("sequences", [1, 3])
def test_then_it_is_what_was_learned_for_each_sequence(sequences: int) -> None:
    made = forecasts()
    for _ in range(40):
        run(made, request(sequences=sequences), 400 * sequences)
    assert run(made, request(sequences=sequences), 1) == 400 * sequences


def test_it_is_within_what_the_client_demands() -> None:
    made = forecasts()
    for _ in range(40):
        run(made, request(), 400)
    assert run(made, request(max_tokens=30), 30) == 30
    assert run(made, request(min_tokens=900), 900) == 900
    assert run(made, request(max_tokens=77, ignore_eos=True), 77) == 77


def test_it_is_the_mean_again_when_predictions_do_not_come_true_any_more() -> None:
    made = forecasts()
    made.look_ahead(80, Grouping.SURVIVAL)
    for number in range(400):
        run(made, request(), 300, now=float(number))
    for number in range(60):
        run(made, request(), 9_000, now=400.0 + number)
    assert made.predictor.trust is Trust.LOST
    assert run(made, request(), 300, now=500.0) == MEAN


def test_of_a_call_that_generates_nothing_nothing_is_learned() -> None:
    made = forecasts()
    for _ in range(40):
        run(made, request(), 400)
    assert run(made, request(api=Api.OTHER), 0) == MEAN
    assert len(made.predictor.lengths_of("m")) == 40


# --- what is kept ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(list(Outcome)), st.integers(0, 500)), max_size=40), st.booleans())
def test_when_all_has_ended_nothing_is_kept(ends: list[tuple[Outcome, int]], ahead: bool) -> None:
    made = forecasts()
    if ahead:
        made.look_ahead(80, Grouping.EXACT_MATCH)
    running = [request() for _ in ends]
    for one in running:
        made.placed(one, 1.0)
    assert len(made) == len(running)
    assert len(made.tables) == (len(running) if ahead else 0)
    for one, (outcome, tokens) in zip(running, ends, strict=True):
        for _ in range(2):
            made.settled(Lease(one, "w", 0, 1.0, 10, 10, generated_tokens=tokens), outcome, 2.0)
    assert (len(made), len(made.tables), made.known) == (0, 0, 0)


def test_tables_are_kept_only_while_somebody_looks_ahead() -> None:
    made = forecasts()
    for _ in range(40):
        run(made, request(), 400)
    early, late = request(), request()
    made.placed(early, 1.0)
    made.look_ahead(40, Grouping.SURVIVAL)
    made.placed(late, 1.0)
    assert list(made.tables) == [early.id, late.id]
    assert made.known == 2
    made.rest()
    assert (len(made), len(made.tables), made.known) == (2, 0, 0)


def test_who_was_there_before_is_foreseen_as_soon_as_others_end() -> None:
    made = forecasts()
    early = request()
    made.placed(early, 1.0)
    made.look_ahead(80, Grouping.SURVIVAL)
    assert made.known == 0
    for _ in range(40):
        run(made, request(), 400)
    assert made.known == 1
    assert made.tables[early.id][0][0] == 81


def test_a_lease_says_what_is_ahead_of_it_as_long_as_somebody_looks() -> None:
    made = forecasts()
    made.look_ahead(80, Grouping.SURVIVAL)
    one = request(sequences=2)
    lease = Lease(one, "w", 0, 1.0, 10, made.placed(one, 1.0))
    made.granted(lease)
    assert lease.ahead == made.tables[one.id] == (b"", 81, 2)
    for _ in range(40):
        run(made, request(), 400)
    assert lease.ahead == made.tables[one.id]
    assert lease.ahead[0][0] == 81
    made.rest()
    assert lease_ahead(lease) is None
    made.look_ahead(80, Grouping.SURVIVAL)
    assert lease_ahead(lease) is not None


def test_a_lease_of_a_request_that_is_not_followed_says_nothing() -> None:
    made = forecasts()
    made.look_ahead(80, Grouping.SURVIVAL)
    lease = Lease(request(), "w", 0, 1.0, 10, 10)
    made.granted(lease)
    assert lease.ahead is None


@pytest.mark.parametrize(("ahead", "judged"), [(False, 17), (True, 68)])
def test_fewer_are_judged_while_nobody_looks_ahead(ahead: bool, judged: int) -> None:
    made = forecasts()
    if ahead:
        made.look_ahead(80, Grouping.SURVIVAL)
    for _ in range(32 + 68):  # of the first 32 nothing is expected, but by their tenant's mean
        run(made, request(), 400)
    source = made.predictor.errors()["model"]
    assert source.samples == judged


def test_errors_of_another_horizon_begin_anew_and_lengths_stay() -> None:
    made = forecasts()
    for _ in range(80):
        run(made, request(), 400)
    judged = made.predictor.errors()["overall"].samples
    assert judged > 0
    made.look_ahead(made.predictor.settings.horizon_steps, Grouping.SURVIVAL)
    assert made.predictor.errors()["overall"].samples == judged
    made.look_ahead(20, Grouping.SURVIVAL)
    assert made.predictor.errors()["overall"].samples == 0
    assert len(made.predictor.lengths_of("m")) == 80


# --- in a pool ---------------------------------------------------------------------------------------------


def serve(made: Pool, tokens: int, count: int) -> None:
    for _ in range(count):
        one = request()
        made.submit(one, 1.0)
        (lease,) = made.assign(1.0)
        made.progress(lease, 1.0, generated_tokens=tokens)
        made.release(lease, Outcome.OK, 2.0)


def test_leases_expect_what_the_pool_has_learned_whatever_its_policy() -> None:
    made = pool("a", policy=FirstWorker())
    serve(made, 400, 40)
    lease = made.place_now(request(), 3.0)
    assert lease is not None
    assert lease.expected_tokens == 400
    assert made.roster.workers["a"].remaining_tokens == 400
    made.release(lease, Outcome.CANCELLED, 4.0)
    assert_idle(made)


def test_a_policy_that_looks_ahead_profits_from_what_was_learned_before_it_came() -> None:
    made = pool("a", policy=FirstWorker(), slots=8)
    serve(made, 400, 40)
    held = made.place_now(request(), 3.0)
    assert held is not None
    ahead = build("balance_route_h", {"horizon_steps": 60}, 0)
    made.use(ahead, "balance_route_h")
    found = made.ledger.forecasts
    assert found.predictor.settings.horizon_steps == 60
    assert found.known == 1
    assert getattr(ahead, "predictor", None) is found.predictor
    serve(made, 400, 1)
    assert len(found) == 1, "it feeds nothing a second time"
    made.use(FirstWorker(), "first")
    assert found.known == 0
    made.release(held, Outcome.OK, 5.0)
    assert len(found) == 0
