"""Laws of preble: E2 by the example of the paper's setting, costs, rebalancing, replication, pairing."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from router.core.lease import Outcome
from router.core.prompt_key import PromptKey
from router.core.request import Request
from tests.policies.examples import NOW
from tests.policies.preble_examples import (
    A6000,
    DOCUMENT,
    PER_TOKEN_S,
    STEP,
    SYSTEM,
    loads,
    preble,
    question,
    with_document,
)
from tests.policies.prefix_examples import Fleet, again, asking, tokens

# --- exploit or explore ----------------------------------------------------------------------------------


def test_the_document_of_23_000_tokens_is_exploited_where_it_is_cached() -> None:
    fleet = with_document()
    one = question("q", 9)
    assert one.prompt_tokens == 23_000
    match = fleet.prefixes.matched(one)
    # Canonical form adds a few bytes to the text, so a token may go either way.
    assert match.on("w2") == pytest.approx(21_013, abs=3)
    assert match.on("w0") == pytest.approx(13, abs=3)
    choice = fleet.pick(one)
    assert (choice.worker, choice.reason) == ("w2", "exploit")
    assert choice.cost == pytest.approx(0.36, abs=0.02)  # the affine model; the roofline's own is below
    assert A6000.step_s([(2_000, 0)], []) == pytest.approx(0.27, abs=0.01)
    assert A6000.step_s([(21_000, 0)], []) == pytest.approx(3.77, abs=0.01)
    assert A6000.step_s([(23_000, 0)], []) == pytest.approx(4.24, abs=0.01)


def test_cached_equal_to_missed_explores() -> None:
    fleet = Fleet("preble", step=STEP)
    fleet.serve(_ids(range(160), 0, max_tokens=1), to=3)
    assert fleet.pick(_ids([*range(80), *[7] * 80], 1)).reason == "explore"
    assert fleet.pick(_ids([*range(96), *[7] * 64], 2)).reason == "exploit"


def test_exploring_takes_the_lowest_cost_of_all_and_not_the_holder_of_a_little() -> None:
    fleet = with_document()
    fleet.serve(asking(tokens("a", 3_000), 8), to=0)
    fleet.serve(asking(tokens("b", 2_000), 9), to=1)
    fleet.serve(asking(tokens("c", 4_000), 10), to=3)
    choice = fleet.pick(asking(SYSTEM + tokens("e", 9_000), 11))
    assert (choice.worker, choice.reason) == ("w2", "explore")


def test_of_several_holders_the_lowest_cost_takes_it() -> None:
    fleet = Fleet("preble", step=STEP)
    for number in range(4):
        fleet.serve(asking(DOCUMENT, number), to=number)
    for number in (0, 1, 3):
        fleet.serve(asking(tokens(str(number), 500), 9), to=number)
    assert fleet.pick(asking(DOCUMENT, 20)).worker == "w2"


def test_eight_samples_that_come_before_the_first_is_computed_stay_together() -> None:
    fleet = Fleet("preble", step=STEP)
    program = [asking(tokens("p", 4_000), n, max_tokens=50) for n in range(8)]
    assert len({fleet.send(one).worker for one in program}) == 1


def test_an_empty_window_costs_nothing_and_is_drawn_by_hash() -> None:
    fleet = Fleet("preble", 8, step=STEP)
    picks = {fleet.pick(asking(tokens("e", 100), n)).worker for n in range(60)}
    assert len(picks) == 8


def test_a_holder_far_ahead_in_requests_is_passed_over_and_another_gets_a_copy() -> None:
    fleet = with_document()
    fleet.load(2, 9)
    choice = fleet.pick(question("q", 9))
    assert choice.reason == "overflow"
    assert choice.worker != "w2"
    free = with_document(balance_abs_threshold=1_000)
    free.load(2, 9)
    assert free.pick(question("q", 9)).worker == "w2"


def test_without_a_prompt_the_lowest_load_takes_it() -> None:
    fleet = with_document()
    assert fleet.pick(structs.replace(question("q", 9), key=None)).reason == "no_prompt"


# --- costs -----------------------------------------------------------------------------------------------


def test_load_is_prefill_of_what_was_missed_and_marginal_decode() -> None:
    fleet = Fleet("preble", 2, step=STEP)
    one = asking(tokens("a", 1_000), 0)
    fleet.serve(one, to=0, generated_tokens=40)
    prefill_s = PER_TOKEN_S * 1_000
    decode_s = 40 * 23.6e-3 / 100 + 0.213e-6 * 40 * 1_020
    assert loads(fleet) == pytest.approx([prefill_s + decode_s, 0.0])
    fleet.serve(structs.replace(one, id="again"), to=0, generated_tokens=40)
    assert loads(fleet)[0] == pytest.approx(prefill_s + PER_TOKEN_S + 2 * decode_s)


def test_single_stream_decode_dwarfs_what_the_marginal_charge_makes_comparable() -> None:
    """43 tokens alone take about a second; an 85 % cached tool prompt of 1,835 tokens misses 0.05 s."""
    charges = {}
    for charge in ("single_stream", "marginal"):
        fleet = Fleet("preble", 1, step=STEP, decode_charge=charge)
        fleet.serve(asking(tokens("t", 1_560) + tokens("a", 275), 0), to=0, generated_tokens=43)
        before = loads(fleet)[0]
        fleet.serve(asking(tokens("t", 1_560) + tokens("b", 275), 1), to=0, generated_tokens=43)
        charges[charge] = loads(fleet)[0] - before
    missed_s = PER_TOKEN_S * 275
    assert charges["single_stream"] - missed_s == pytest.approx(43 * 24e-3, rel=0.05)
    assert charges["single_stream"] > 15 * missed_s
    assert charges["marginal"] < 2 * missed_s


def test_what_is_older_than_the_window_costs_nothing_whether_or_not_somebody_was_placed_since() -> None:
    fleet = Fleet("preble", 2, step=STEP)
    fleet.serve(asking(tokens("a", 1_000), 0), NOW, to=0, generated_tokens=40)
    assert loads(fleet, NOW + 179.9)[0] > 0
    assert loads(fleet, NOW + 180) == [0.0, 0.0]
    fleet.serve(asking(tokens("b", 1_000), 1), NOW + 180, to=1)
    assert loads(fleet, NOW + 180)[0] == 0.0


def test_running_requests_are_taken_for_the_mean_of_the_window_and_max_tokens_bounds_it() -> None:
    fleet = Fleet("preble", 3, step=STEP)
    fleet.send(asking(tokens("a", 100), 0), to=0)
    fleet.send(asking(tokens("b", 100), 1, max_tokens=1), to=1)
    first, bounded, _ = loads(fleet)
    # 200 tokens are assumed, against 1.
    assert first - bounded == pytest.approx(199 * 23.6e-5 + 0.213e-6 * (200 * 200 - 100))
    fleet.serve(asking(tokens("c", 100), 2), to=2, generated_tokens=20)
    first, bounded, known = loads(fleet)
    assert first == pytest.approx(known)
    assert first > bounded


def test_outputs_of_a_document_are_expected_to_be_as_long_as_its_last_ones() -> None:
    fleet = Fleet("preble", 2, step=STEP)
    fleet.serve(asking(tokens("x", 500), 8), to=0, generated_tokens=900)
    for number in range(5):  # the first does not know yet what it will share
        fleet.serve(
            asking(tokens("d", 500) + tokens(chr(101 + number), 20), number), to=0, generated_tokens=4
        )
    before = loads(fleet)[1]
    fleet.send(asking(tokens("d", 500) + tokens("z", 20), 9), to=1)
    sent_s = loads(fleet)[1] - before
    assert sent_s < PER_TOKEN_S * 521 + 6 * 23.6e-5 + 1e-3


@pytest.mark.parametrize(
    ("outcome", "prefilled", "counts"),
    [
        (Outcome.OK, True, True),
        (Outcome.OK, False, True),
        (Outcome.CANCELLED, True, True),
        (Outcome.CANCELLED, False, False),
        (Outcome.UNREACHABLE, False, False),
        (Outcome.BUSY, False, False),
        (Outcome.CLIENT_ERROR, False, False),
    ],
)
def test_what_was_never_computed_is_no_load(outcome: Outcome, prefilled: bool, counts: bool) -> None:
    fleet = Fleet("preble", 2, step=STEP)
    fleet.send(asking(tokens("a", 100), 0), to=0)
    if prefilled:
        fleet.start(fleet.running[0], NOW)
    fleet.end(fleet.running[0], outcome=outcome)
    assert (loads(fleet)[0] > 0) is counts


def test_a_retry_counts_where_it_went_once_its_first_try_does_not_count() -> None:
    fleet = Fleet("preble", 2, step=STEP)
    one = asking(tokens("a", 100), 0)
    fleet.send(one, to=0)
    before = copy.deepcopy(preble(fleet).window)
    fleet.send(again(one, "w0"), to=1)
    assert preble(fleet).window == before
    fleet.end(fleet.running[1], outcome=Outcome.CANCELLED)
    fleet.end(fleet.running[0], outcome=Outcome.UNREACHABLE)
    fleet.send(again(one, "w0"), to=1)
    first, second = loads(fleet)
    assert first == 0.0
    assert second > 0.0


def test_a_prefill_worker_is_not_charged_for_what_another_decodes() -> None:
    fleet = Fleet("preble", 1, step=STEP)
    fleet.send(asking(tokens("a", 1_000), 0, split=True), to=0)
    assert loads(fleet) == pytest.approx([PER_TOKEN_S * 1_000])


def test_evicting_what_was_used_within_the_window_costs_its_prefill_times_its_share_of_hits() -> None:
    fleet = Fleet("preble", 1, step=STEP)
    fleet.workers[0].configured_kv_tokens = 10_000
    for number in range(3):
        fleet.serve(asking(tokens("a", 4_000), number, max_tokens=1), to=0)
    fleet.serve(asking(tokens("b", 4_000), 5, max_tokens=1), to=0)
    load = loads(fleet)[0]
    # 2,000 fit beside the 8,000 used; 1,000 more evict "a", the least recently used, hit by 3 of 4.
    assert fleet.pick(asking(tokens("c", 2_000), 6)).cost == pytest.approx(load + PER_TOKEN_S * 2_000)
    evicting = fleet.pick(asking(tokens("c", 3_000), 7)).cost
    assert evicting == pytest.approx(load + PER_TOKEN_S * (3_000 + 4_000 * 3 / 4))


def test_what_is_in_use_is_evicted_last_and_what_is_asked_for_never() -> None:
    fleet = Fleet("preble", 1, step=STEP)
    fleet.workers[0].configured_kv_tokens = 10_000
    fleet.send(asking(tokens("a", 4_000), 0, max_tokens=1), to=0)
    fleet.serve(asking(tokens("b", 4_000), 1, max_tokens=1), to=0)
    load = loads(fleet)[0]
    cost = fleet.pick(asking(tokens("c", 3_000), 2)).cost
    assert cost == pytest.approx(load + PER_TOKEN_S * (3_000 + 4_000 / 2))
    more = fleet.pick(asking(tokens("b", 4_000) + tokens("e", 3_000), 3)).cost
    assert more == pytest.approx(load + PER_TOKEN_S * (3_000 + 4_000 / 2), rel=0.01)


# --- for all ---------------------------------------------------------------------------------------------

prompts = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda letters: "".join(tokens(letter, 40) for letter in letters)
)

actions = st.lists(
    st.tuples(prompts, st.sampled_from(list(Outcome)), st.integers(0, 50), st.floats(0, 60), st.booleans()),
    max_size=40,
)


@settings(max_examples=50)
@given(actions)
def test_the_window_ends_empty_and_no_account_is_ever_below_zero(
    actions: list[tuple[str, Outcome, int, float, bool]],
) -> None:
    fleet, now = Fleet("preble", 3, step=STEP), NOW
    for number, (text, outcome, generated, passed_s, ends) in enumerate(actions):
        now += passed_s
        fleet.send(asking(text, number, stream=True), now)
        if ends:
            lease = fleet.running[generated % len(fleet.running)]
            if generated % 2:
                fleet.start(lease, now)
            fleet.end(lease, now, outcome, generated_tokens=generated)
        for sums in preble(fleet).window.sums.values():
            assert min(structs.astuple(sums)) >= 0
            assert sums.requests > 0
    for lease in list(fleet.running):
        fleet.end(lease, now + 1)
    window = preble(fleet).window
    window.expire(now + 181)
    assert not any([window.sums, window.uses, window.used_tokens, window.prefixes])
    assert not any([window.dispatches, window.by_id, window.pool.finished, window.pool.output_tokens])


def test_the_window_is_bounded_in_requests() -> None:
    fleet = Fleet("preble", 2, max_window_requests=100)
    for number in range(250):
        fleet.serve(asking(tokens("a", 20) + str(number), number))
    window = preble(fleet).window
    assert len(window.dispatches) == len(window.by_id) == 100
    assert sum(sums.requests for sums in window.sums.values()) == 100


def test_an_end_that_nobody_knows_of_changes_nothing() -> None:
    fleet = Fleet("preble", 1, step=STEP)
    fleet.send(asking(tokens("a", 100), 0), NOW)
    fleet.send(asking(tokens("b", 100), 1), NOW + 400, to=0)
    before = copy.deepcopy(preble(fleet).window)
    fleet.end(fleet.running[0], NOW + 401)
    assert preble(fleet).window == before


def _ids(ids: Iterable[int], sequence: int, **what: object) -> Request:
    numbers = list(ids)
    key = PromptKey("model", lambda: {"prompt": str(numbers).encode()})
    return asking("", sequence, **{"prompt_tokens": len(numbers), "key": key} | what)
