"""Exact examples of the policies that compare loads."""

from __future__ import annotations

from collections import Counter

import pytest

from router.core.engine_stats import EngineStats
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import StepModel
from router.policies.least_work import PRIOR
from tests.policies.examples import NOW, FrozenWorker, idle, policy, request, worker


def pick(name: str, call: Request, pool: list[FrozenWorker], **params: object) -> Choice:
    choice = policy(name, **params).pick(call, pool, NOW)
    assert choice is not None
    return choice


# --- least_requests -----------------------------------------------------------------------------------


def test_fewest_requests_wins_with_the_new_one_counted() -> None:
    choice = pick("least_requests", request(), [worker("a", in_flight=2), worker("b", in_flight=1)])
    assert (choice.worker, choice.cost, choice.reason) == ("b", 2.0, "least_requests")


def test_an_idle_fast_worker_goes_before_an_idle_slow_one() -> None:
    pool = [worker("slow"), worker("fast", capacity=1.5)]
    assert {pick("least_requests", request(n), pool).worker for n in range(20)} == {"fast"}


def test_capacity_divides_and_warmup_multiplies() -> None:
    pool = [worker("fast", in_flight=5, capacity=2.0), worker("back", in_flight=2, warmup=1.5)]
    choice = pick("least_requests", request(), pool)
    assert (choice.worker, choice.cost) == ("fast", 3.0)


def test_only_the_tied_take_part_in_a_tie() -> None:
    pool = [worker("a", in_flight=1), worker("b"), worker("c", in_flight=1), worker("d")]
    counts = Counter(pick("least_requests", request(n), pool).worker for n in range(1_000))
    assert set(counts) == {"b", "d"}
    assert 420 < counts["b"] < 580


# --- least_tokens -------------------------------------------------------------------------------------


def test_fewest_tokens_wins_whatever_the_number_of_requests() -> None:
    pool = [worker("many", in_flight=9, kv_tokens=900), worker("one", in_flight=1, kv_tokens=1_000)]
    choice = pick("least_tokens", request(prompt_tokens=99), pool)
    assert (choice.worker, choice.cost, choice.reason) == ("many", 1_000.0, "least_tokens")


def test_a_worker_without_room_is_passed_over_while_another_has_some() -> None:
    pool = [
        worker("small", kv_tokens=100, kv_capacity_tokens=500),
        worker("large", kv_tokens=9_000, kv_capacity_tokens=10_000),
    ]
    assert pick("least_tokens", request(prompt_tokens=399), pool).worker == "small"
    assert pick("least_tokens", request(prompt_tokens=400), pool).worker == "large"


def test_when_nobody_has_room_the_least_loaded_takes_it() -> None:
    pool = [
        worker("a", kv_tokens=90, kv_capacity_tokens=100),
        worker("b", kv_tokens=95, kv_capacity_tokens=100),
    ]
    choice = pick("least_tokens", request(prompt_tokens=50), pool)
    assert (choice.worker, choice.reason) == ("a", "no_room")


def test_an_unknown_kv_capacity_is_room_enough() -> None:
    pool = [worker("full", kv_tokens=90, kv_capacity_tokens=100), worker("unknown", kv_tokens=5_000)]
    assert pick("least_tokens", request(prompt_tokens=50), pool).worker == "unknown"


def test_each_sequence_is_a_token_at_least() -> None:
    assert pick("least_tokens", request(sequences=4), [worker()]).cost == 4.0


# --- power_of_two -------------------------------------------------------------------------------------


def test_the_most_loaded_of_three_is_never_the_lower_of_two() -> None:
    pool = [worker("a"), worker("b", in_flight=1), worker("c", in_flight=2)]
    counts = Counter(pick("power_of_two", request(n), pool).worker for n in range(3_000))
    assert counts["c"] == 0
    assert counts["a"] == pytest.approx(2_000, rel=0.06)  # it is in two of the three pairs
    assert counts["b"] == pytest.approx(1_000, rel=0.12)


def test_of_two_workers_both_are_always_compared() -> None:
    pool = [worker("a", in_flight=1), worker("b")]
    assert {pick("power_of_two", request(n), pool).worker for n in range(100)} == {"b"}


def test_two_choices_can_compare_tokens() -> None:
    pool = [worker("a", in_flight=9, kv_tokens=10), worker("b", kv_tokens=20)]
    choice = pick("power_of_two", request(prompt_tokens=89), pool, load="tokens")
    assert (choice.worker, choice.cost) == ("a", 100.0)


# --- random -------------------------------------------------------------------------------------------


def test_a_draw_is_in_proportion_to_capacity_over_warmup() -> None:
    pool = [worker("a", capacity=3.0), worker("b"), worker("c", capacity=2.0, warmup=2.0)]
    counts = Counter(pick("random", request(n), pool).worker for n in range(5_000))
    assert counts["a"] == pytest.approx(3_000, rel=0.05)
    assert counts["b"] == pytest.approx(1_000, rel=0.1)
    assert counts["c"] == pytest.approx(1_000, rel=0.1)


# --- least_work ---------------------------------------------------------------------------------------

STEP = StepModel(0.01, 0.001, 0.1, 0.002, 0.00001)


def test_seconds_are_queued_prefill_and_marginal_decode_and_the_request_itself() -> None:
    view = worker(
        "w", step=STEP, queued_tokens=500, remaining_tokens=300, kv_tokens=4_000, sequences=4, in_flight=4
    )
    token_s = 0.1 / 50 + 0.002 + 0.00001 * 1_000
    expected = 0.001 * 500 + token_s * 300 + (0.01 + 0.001 * 100) + token_s * 2 * 80
    call = request(prompt_tokens=100, max_tokens=80, sequences=2)
    choice = pick("least_work", call, [view], operating_concurrency=50)
    assert choice.cost == pytest.approx(expected)
    assert choice.reason == "least_work"


def test_output_is_expected_to_be_no_more_than_max_tokens() -> None:
    view = worker(step=StepModel(0.0, 0.0, 1.0, 0.0, 0.0))

    def cost(max_tokens: int | None) -> float:
        call = request(max_tokens=max_tokens)
        return pick("least_work", call, [view], operating_concurrency=1, expected_output_tokens=50).cost

    assert (cost(None), cost(20), cost(90)) == (50.0, 20.0, 50.0)


def test_one_long_prompt_outweighs_several_short_ones() -> None:
    pool = [
        worker("one long", in_flight=1, sequences=1, queued_tokens=30_000),
        worker("four short", in_flight=4, sequences=4, queued_tokens=800),
    ]
    assert pick("least_work", request(), pool).worker == "four short"
    assert pick("least_requests", request(), pool).worker == "one long"


def test_tokens_that_are_speculated_cost_no_step_of_their_own() -> None:
    once = StepModel(0.0, 0.0, 0.02, 1e-3, 0.0)
    twice = StepModel(0.0, 0.0, 0.02, 1e-3, 0.0, tokens_per_step=2.0)
    call = request(max_tokens=100)
    costs = [
        pick("least_work", call, [worker(step=step, remaining_tokens=300)]).cost for step in (once, twice)
    ]
    assert costs[0] == pytest.approx(2 * costs[1])


def test_calibrated_seconds_hold_the_speed_already() -> None:
    slow = StepModel(0.0, 0.002, 0.0, 0.0, 0.0)
    fast = StepModel(0.0, 0.001, 0.0, 0.0, 0.0)
    pool = [worker("slow", step=slow, capacity=0.5), worker("fast", step=fast, capacity=2.0)]
    choice = pick("least_work", request(prompt_tokens=1_000), pool)
    assert choice.worker == "fast"
    assert choice.cost == pytest.approx(1.0)


def test_one_worker_without_calibration_puts_all_on_the_prior() -> None:
    absurd = StepModel(9.0, 9.0, 9.0, 9.0, 9.0)
    pool = [worker("calibrated", step=absurd), worker("new", in_flight=1, queued_tokens=1_000)]
    choice = pick("least_work", request(prompt_tokens=100, max_tokens=1), pool)
    assert choice.worker == "calibrated"
    token_s = PRIOR.step_base_s / 100 + PRIOR.step_per_sequence_s
    assert choice.cost == pytest.approx(PRIOR.prefill_s(100) + token_s)


def test_requests_that_others_made_wait_are_counted_when_the_scrape_is_fresh() -> None:
    def chosen(stats: EngineStats | None) -> str:
        pool = [worker("crowded", in_flight=2, stats=stats), worker("ours", in_flight=3, queued_tokens=400)]
        return pick("least_work", request(prompt_tokens=100), pool).worker

    assert chosen(EngineStats(taken=NOW - 3.0, waiting=20)) == "ours"
    assert chosen(EngineStats(taken=NOW - 3.1, waiting=20)) == "crowded"  # too old
    assert chosen(EngineStats(taken=NOW, waiting=2)) == "crowded"  # these are our own
    assert chosen(EngineStats(taken=NOW)) == "crowded"
    assert chosen(None) == "crowded"


def test_each_foreign_request_is_taken_for_one_like_this() -> None:
    stats = EngineStats(taken=NOW, waiting=5)
    view = worker(step=StepModel(0.0, 0.001, 0.0, 0.0, 0.0), in_flight=2, queued_tokens=1_000, stats=stats)
    assert pick("least_work", request(prompt_tokens=100), [view]).cost == pytest.approx(1.0 + 0.1 * (1 + 3))


# --- length_threshold ---------------------------------------------------------------------------------


def sides(pool: list[FrozenWorker], **params: object) -> tuple[set[str], set[str]]:
    """Names that short and that long requests reach."""
    short, long = (
        {
            pick("length_threshold", request(n, prompt_tokens=tokens), pool, **params).worker
            for n in range(300)
        }
        for tokens in (2_048, 2_049)
    )
    return short, long


def test_the_two_sides_share_no_worker_and_leave_none_out() -> None:
    short, long = sides(idle(7))
    assert not short & long
    assert short | long == {w.name for w in idle(7)}
    assert len(long) == 4


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (0.3, 2), (0.9, 5), (1.0, 5)])
def test_each_side_has_a_worker_whatever_the_share(share: float, count: int) -> None:
    assert len(sides(idle(6), long_share=share)[1]) == count


def test_long_requests_get_the_workers_with_the_most_kv() -> None:
    pool = [worker(f"w{n}", kv_capacity_tokens=[100, None, 300, 200][n]) for n in range(4)]
    assert sides(pool)[1] == {"w2", "w3"}


def test_a_worker_that_joins_moves_at_most_one_other() -> None:
    for count in range(2, 12):
        before, after = sides(idle(count))[1], sides([*idle(count), worker("new")])[1]
        assert len((before ^ after) - {"new"}) <= 1


def test_the_least_loaded_of_the_side_is_chosen() -> None:
    _, long = sides(idle(6))
    light = min(long)
    pool = [worker(w.name, in_flight=0 if w.name == light or w.name not in long else 3) for w in idle(6)]
    choice = pick("length_threshold", request(prompt_tokens=9_000), pool)
    assert (choice.worker, choice.reason, choice.cost) == (light, "long", 1.0)


@pytest.mark.parametrize(("in_flight", "reason"), [(7, "short"), (8, "spill")])
def test_a_full_side_spills_to_the_other(in_flight: int, reason: str) -> None:
    short, long = sides(idle(4))
    pool = [worker(w.name, in_flight=in_flight if w.name in short else 2) for w in idle(4)]
    choice = pick("length_threshold", request(prompt_tokens=10), pool)
    assert choice.reason == reason
    assert choice.worker in (short if reason == "short" else long)


def test_a_full_side_keeps_what_the_other_side_could_not_take_sooner() -> None:
    short, _ = sides(idle(4))
    pool = [worker(w.name, in_flight=9 if w.name in short else 12) for w in idle(4)]
    assert pick("length_threshold", request(prompt_tokens=10), pool).worker in short


def test_the_length_can_include_the_output_asked_for() -> None:
    call = request(prompt_tokens=1_000, max_tokens=600, sequences=2)
    assert pick("length_threshold", call, idle(4)).reason == "short"
    assert pick("length_threshold", call, idle(4), length="total").reason == "long"
    assert pick("length_threshold", request(prompt_tokens=1_000), idle(4), length="total").reason == "short"


def test_a_retry_is_spread_over_the_other_workers_of_its_side() -> None:
    pool = idle(9)
    bad = min(sides(pool)[1])
    rest = [w for w in pool if w.name != bad]
    calls = [request(n, prompt_tokens=9_000) for n in range(2_000)]
    failed = [n for n, call in enumerate(calls) if pick("length_threshold", call, pool).worker == bad]
    again = (request(n, prompt_tokens=9_000, attempt=1, avoid=frozenset({bad})) for n in failed)
    counts = Counter(pick("length_threshold", call, rest).worker for call in again)
    assert set(counts) == sides(rest)[1]
    assert min(counts.values()) > 0.6 * len(failed) / len(counts)
