"""BR-H: it sees who is about to finish, and knows when it does not know."""

from __future__ import annotations

import copy
from typing import cast

import pytest

from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.predict_error import Trust
from router.core.predict_state import export, restore
from router.core.request import Api, Request
from router.policies.balance_route_h import BalanceRouteH
from router.policies.round_watch import STAGES
from tests.policies.examples import NOW
from tests.policies.examples import request as any_request
from tests.policies.rank_examples import FrozenRank, Watch, admitted, batch, prompts, rank


def request(number: int, **what: object) -> Request:
    """One that generates."""
    return any_request(number, api=Api.CHAT, **what)


def route(**params: object) -> BalanceRouteH:
    return cast(BalanceRouteH, batch("balance_route_h", 1, **params))


def past(number: int, **what: object) -> Request:
    """One that came before everybody who waits, so it overtook nobody."""
    return request(number, arrived=NOW - 100.0, **what)


def run(made: BalanceRouteH, one: Request, tokens: int, outcome: Outcome = Outcome.OK) -> None:
    """A request from its placement to its end."""
    made.committed(one, Choice(one.id, "w"), NOW, retry=False)
    made.settled(held(one, tokens), outcome, NOW)


def held(one: Request, written: int) -> Lease:
    return Lease(one, "w", 0, NOW, one.prompt_tokens, 100, generated_tokens=written)


def taught(*tokens: int, times: int = 40, **params: object) -> BalanceRouteH:
    """A policy that has seen answers of these lengths."""
    made = route(**params)
    for n in range(times):
        for index, length in enumerate(tokens):
            run(made, past(10_000 + 10 * n + index), length)
    return made


def fleet(made: BalanceRouteH, *written: list[tuple[int, int]], free: int = 1) -> list[FrozenRank]:
    """Workers whose residents have these (prompt, written); full but for `free` slots each."""
    members: list[FrozenRank] = []
    for index, residents in enumerate(written):
        leases = []
        for n, (prompt, tokens) in enumerate(residents):
            one = past(100 * index + n + 500, prompt_tokens=prompt)
            made.committed(one, Choice(one.id, f"w{index}"), NOW, retry=False)
            leases.append(held(one, tokens))
        members.append(
            rank(
                f"w{index}",
                residents=leases,
                kv_tokens=sum(lease.kv_tokens for lease in leases),
                sequences=len(leases),
                in_flight=len(leases),
                free_slots=free,
                barrier_group="g",
                barrier_peers=members,
            )
        )
    return members


YOUNG, OLD = 10, 299
"""Tokens written by one that has just begun, and by one that is about to end at 300."""


def test_it_fills_where_somebody_is_about_to_leave() -> None:
    """a is lighter now, and stays as it is; b is empty in a step. The long prompt belongs to b."""
    made = taught(300)
    pool = fleet(made, [(3_000, YOUNG)] * 5, [(3_500, OLD)] * 5, [(5_000, YOUNG)] * 5)
    offered, waiting = pool[:2], prompts(12_000, 4_000)
    assert dict(admitted(made.present.admit(waiting, offered, NOW))) == {"r0": "w0", "r1": "w1"}
    assert dict(admitted(made.admit(waiting, offered, NOW))) == {"r0": "w1", "r1": "w0"}


def test_without_a_difference_ahead_it_decides_as_br_0() -> None:
    made = taught(100_000, overflow_weight=3.0, discount=1.0)
    pool = fleet(made, [(3_000, YOUNG)] * 5, [(3_500, YOUNG)] * 5, [(5_000, YOUNG)] * 5)
    waiting = prompts(9_000, 400, 7_000, 6_000)
    same = made.present.admit(waiting, pool, NOW)
    choices = made.admit(waiting, pool, NOW)
    assert admitted(choices) == admitted(same)
    assert [c.reason for c in choices] == [c.reason for c in same]
    assert [c.cost for c in choices] == pytest.approx([81 * c.cost for c in same])


def test_an_admitted_request_neither_grows_nor_ends() -> None:
    """Two rounds in one: the second place sees the first one's tokens at every step."""
    made = taught(300)
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(1_000, YOUNG)] * 5)
    choices = made.admit(prompts(500, 500), pool, NOW)
    assert {c.worker for c in choices} == {"w0", "w1"}
    assert [c.reason for c in choices] == ["guard", "subset"]
    assert choices[1].cost == pytest.approx(-500 * sum(0.86**h for h in range(81)))


# --- when the horizon is of no use -----------------------------------------------------------------------


def reasons(made: BalanceRouteH, pool: list[FrozenRank]) -> set[str]:
    return {c.reason for c in made.admit(prompts(100, 100), pool, NOW)}


def test_few_slots_in_use_are_br_0() -> None:
    made = taught(300)
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(2_000, YOUNG)] * 5, free=20)
    assert reasons(made, pool) == {"fallback:low_use"}
    eager = taught(300, min_slot_use=0.0)
    pool = fleet(eager, [(1_000, YOUNG)] * 5, [(2_000, YOUNG)] * 5, free=20)
    assert reasons(eager, pool) == {"greedy"}


def test_unknown_lengths_are_br_0() -> None:
    made = route()
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(2_000, YOUNG)] * 5)
    assert "fallback:unknown" in reasons(made, pool)
    strangers = taught(300)
    assert "fallback:unknown" in reasons(strangers, pool), "it has not placed who is there"


def test_predictions_that_went_astray_are_br_0() -> None:
    made = taught(300, times=400)
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(2_000, YOUNG)] * 5)
    assert "fallback:drifted" not in reasons(made, pool)
    for n in range(60):
        run(made, past(90_000 + n), 5_000)
    assert made.predictor.trust is Trust.LOST
    assert "fallback:drifted" in reasons(made, pool)


def test_a_guard_is_called_a_guard_whatever_decides() -> None:
    made = route()
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(1_000, YOUNG)] * 5)
    assert reasons(made, pool) == {"guard", "fallback:unknown"}


# --- what it learns --------------------------------------------------------------------------------------


def test_it_learns_from_ends_and_from_cuts_and_not_from_faults() -> None:
    made = route()
    for outcome in Outcome:
        run(made, request(1), 50, outcome)
    assert [tokens for tokens, _ in made.predictor.models["model"].lengths(NOW)] == [50, -50]
    run(made, request(2, max_tokens=50), 50)
    run(made, request(3, sequences=2), 61)
    run(made, request(4), 0)
    run(made, request(5, ignore_eos=True, max_tokens=7), 7)
    assert [tokens for tokens, _ in made.predictor.models["model"].lengths(NOW)] == [50, -50, -50, 30]


def test_when_all_has_ended_nothing_is_kept() -> None:
    made = taught(300)
    many = [request(n) for n in range(50)]
    for one in many:
        made.committed(one, Choice(one.id, "w"), NOW, retry=False)
    assert len(made.forecasts.tables) == len(made.forecasts) == made.forecasts.known == 50
    for one in many:
        made.settled(held(one, 9), Outcome.FAILED, NOW)
        made.settled(held(one, 9), Outcome.FAILED, NOW)
    assert len(made.forecasts.tables) == len(made.forecasts) == made.forecasts.known == 0


def test_a_retry_is_followed_anew_and_overtakes_nobody() -> None:
    made = route()
    for attempt in range(3):
        one = request(1, attempt=attempt)
        made.committed(one, Choice(one.id, "w"), NOW, retry=attempt > 0)
    assert len(made.forecasts) == 1
    assert len(made.present.overtakings.placed) == 1


def test_long_answers_profit_from_what_was_learned_meanwhile() -> None:
    made = route()
    early = request(1)
    made.committed(early, Choice(early.id, "w"), NOW, retry=False)
    assert made.forecasts.known == 0
    for n in range(40):
        run(made, request(100 + n), 300)
    assert made.forecasts.known == 1
    assert made.forecasts.tables[early.id][0][0] == 81


def test_what_it_learned_outlives_it() -> None:
    made, again = taught(300), route()
    restore(again.predictor, export(made.predictor, NOW), 5.0)
    traits = made.predictor.traits(request(1))
    assert again.predictor.outlook(traits, 5.0).table == made.predictor.outlook(traits, NOW).table


def test_two_are_equal_by_what_they_decide_and_copies_share_nothing() -> None:
    made = taught(300)
    other = copy.deepcopy(made)
    run(other, request(1), 7)
    assert len(made.predictor.models["model"]) + 1 == len(other.predictor.models["model"])


def test_the_end_of_each_stage_is_told_whatever_decides() -> None:
    told = Watch()
    made = taught(300)
    made.watch = told
    pool = fleet(made, [(1_000, YOUNG)] * 5, [(2_000, YOUNG)] * 5)
    made.admit(prompts(1, 2), pool, NOW)
    route_without = route()
    route_without.watch = told
    route_without.admit(prompts(1, 2), pool, NOW)
    assert tuple(told.stages) == ("began", *STAGES) * 2
    assert [result.fallback for result in told.results] == [None, "unknown"]
