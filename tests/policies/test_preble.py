"""Laws of preble: E2 by the example of the paper's setting, costs, rebalancing, replication, pairing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.lease import Outcome
from router.core.prompt_key import PromptKey
from router.core.request import Request
from router.core.worker import Role, StepModel
from router.policies.preble import Preble
from tests.policies.examples import NOW
from tests.policies.prefix_examples import Fleet, again, asking, tokens

A6000 = Roofline(MODELS["mistral-7b"], GPUS["a6000"])
# Affine through 2,000 and 21,000 tokens of the roofline; a decode step alone lasts 24 ms.
PER_TOKEN_S = (A6000.step_s([(21_000, 0)], []) - A6000.step_s([(2_000, 0)], [])) / 19_000
STEP = StepModel(0.0, PER_TOKEN_S, 23.6e-3, 0.0, 0.213e-6)

SYSTEM, DOCUMENT = tokens("s", 13), tokens("d", 21_000)


def question(letter: str, sequence: int, **what: object) -> Request:
    return asking(SYSTEM + DOCUMENT + tokens(letter, 1_987), sequence, **what)


def preble(fleet: Fleet) -> Preble:
    assert isinstance(fleet.policy, Preble)
    return fleet.policy


def with_document(count: int = 4, *, at: int = 2, **params: object) -> Fleet:
    """Worker `at` holds system prompt and document, all others the system prompt."""
    fleet = Fleet("preble", count, step=STEP, **params)
    for number in range(count):
        text = SYSTEM + (DOCUMENT if number == at else "") + tokens(str(number), 10)
        fleet.serve(asking(text, number, max_tokens=1), NOW - 500, to=number)
    preble(fleet).window.expire(NOW)
    return fleet


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


# --- costs -------------------------------------------------------------------------------------------------


def loads(fleet: Fleet, now: float = NOW) -> list[float]:
    """L of each worker, by picks among each alone."""
    nothing = asking("", 99, prompt_tokens=0)
    return [fleet.pick(nothing, now, among=[n]).cost for n in range(len(fleet.workers))]


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


# --- rebalancing -------------------------------------------------------------------------------------------


def heavy_fleet(ratio: float, **params: object) -> Fleet:
    """Worker 2 has `ratio` times the 29.5 s of the others."""
    fleet = with_document(**params)
    for number in range(40):
        for worker in range(4):
            text = tokens(chr(200 + number), 4_000)
            fleet.serve(asking(text, 1_000 * worker + number, max_tokens=1), to=worker)
    for number in range(round(40 * (ratio - 1))):
        fleet.serve(asking(tokens(chr(300 + number), 4_000), 9_000 + number, max_tokens=1), to=2)
    return fleet


@pytest.mark.parametrize(("ratio", "reason"), [(1.4, "exploit"), (1.75, "rebalance")])
def test_above_one_and_a_half_times_the_lightest_the_heaviest_gives_its_requests_away(
    ratio: float, reason: str
) -> None:
    fleet = heavy_fleet(ratio)
    choice = fleet.pick(question("q", 9))
    assert choice.reason == reason
    assert (choice.worker == "w2") is (reason == "exploit")


def test_the_copy_is_exploited_from_then_on_and_no_second_one_made_within_the_interval() -> None:
    fleet = heavy_fleet(2.5)
    copy_at = fleet.send(question("q", 9)).worker
    assert {fleet.send(question(chr(98 + n), 20 + n), NOW + n).worker for n in range(5)} == {copy_at}


def test_after_the_interval_another_copy_may_be_made() -> None:
    fleet = heavy_fleet(2.5, balance_abs_threshold=1_000)
    first = fleet.send(question("q", 9)).worker
    for number in range(12):  # now the copy is the heaviest
        text = tokens(chr(400 + number), 12_000)
        fleet.serve(asking(text, 500 + number, max_tokens=1), to=int(first[1:]))
    assert fleet.pick(question("r", 10), NOW + 9.9).reason == "exploit"
    assert fleet.pick(question("r", 10), NOW + 10).reason == "rebalance"


def test_nothing_is_copied_while_computing_it_anew_costs_more_than_it_relieves() -> None:
    """The window is young: the ratio is infinite, and means nothing."""
    fleet = with_document()
    fleet.serve(asking(tokens("a", 1_000), 8), to=2)
    assert fleet.pick(question("q", 9)).reason == "exploit"


def test_without_rebalancing_holders_keep_their_requests_even_beside_an_idle_worker() -> None:
    fleet = with_document(rebalancing="off")
    for number in range(40):
        fleet.serve(asking(tokens(chr(300 + number), 4_000), 9_000 + number, max_tokens=1), to=2)
    assert 0.0 in loads(fleet)
    choice = fleet.pick(question("q", 99))
    assert (choice.worker, choice.reason) == ("w2", "exploit")


def test_rebalancing_needs_no_warm_up() -> None:
    fleet = with_document(2, at=0)
    for number in range(50):
        fleet.serve(asking(tokens(chr(200 + number), 900), 10 + number, max_tokens=1), to=0)
    assert fleet.pick(question("q", 99)).reason == "rebalance"


def test_a_hot_document_ends_up_at_as_many_workers_as_it_needs() -> None:
    """40 % of the traffic asks for one tool; a worker can carry an eighth."""
    fleet = Fleet("preble", 8, step=STEP)
    tools = [tokens(chr(200 + n), 1_600) for n in range(40)]
    sent: dict[str, int] = {}
    for number in range(1_600):
        now = NOW + number / 20
        tool = tools[0] if number % 5 < 2 else tools[1 + number % 39]
        name = fleet.serve(asking(tool + tokens(chr(2_000 + number), 235), number), now, generated_tokens=43)
        sent[name] = sent.get(name, 0) + 1
    holders = fleet.prefixes.matched(asking(tools[0] + tokens("?", 235), 9_999)).tokens
    assert len([held for held in holders.values() if held > 1_500]) >= 3
    assert max(sent.values()) < 1.6 * 1_600 / 8


# --- replication -------------------------------------------------------------------------------------------


def waits(fleet: Fleet, older_s: float, newer_s: float, *, streams: bool = True) -> Fleet:
    for number in range(8):
        wait_s = older_s if number < 4 else newer_s
        at = NOW - 160 + 40 * (number // 2) * 1.05
        one = question(chr(97 + number), 300 + number, stream=streams, max_tokens=1)
        fleet.send(one, at - wait_s, to=2)
        lease = fleet.running[-1]
        fleet.start(lease, at)
        fleet.end(lease, at)
    return fleet


@pytest.mark.parametrize(
    ("older_s", "newer_s", "reason"),
    [(5.0, 5.0, "exploit"), (5.0, 9.5, "exploit"), (5.0, 10.5, "replicate"), (0.1, 2.0, "exploit")],
)
def test_a_prefix_whose_wait_doubles_gets_a_copy_if_the_wait_grew_by_more_than_that_costs(
    older_s: float, newer_s: float, reason: str
) -> None:
    fleet = waits(with_document(rebalance_threshold=1_000), older_s, newer_s)
    choice = fleet.pick(question("z", 900))
    assert choice.reason == reason
    assert (choice.worker == "w2") is (reason == "exploit")


def test_after_a_copy_the_waits_begin_anew_and_the_load_is_split() -> None:
    fleet = waits(with_document(rebalance_threshold=1_000, copy_interval_s=0), 5.0, 10.5)
    assert fleet.send(question("y", 901)).reason == "replicate"
    assert fleet.pick(question("x", 902)).reason == "exploit"


def test_answers_in_one_piece_say_nothing_of_waits() -> None:
    fleet = waits(with_document(rebalance_threshold=1_000), 5.0, 10.5, streams=False)
    assert fleet.pick(question("z", 900)).reason == "exploit"


# --- pairing -----------------------------------------------------------------------------------------------


def decoding(fleet: Fleet, worker: int, kv_tokens: int = 1_000) -> None:
    """A worker that has decoded much and prefilled little, and whose load is far above the others'."""
    fleet.workers[worker].configured_kv_tokens = 200_000
    fleet.workers[worker].mirror.kv_tokens = kv_tokens
    fleet.serve(asking(tokens("t", 40), 700), to=worker, generated_tokens=2_000)


def test_a_prefill_goes_to_the_worker_that_mostly_decodes() -> None:
    fleet = Fleet("preble", step=STEP)
    decoding(fleet, 1)
    choice = fleet.pick(asking(tokens("e", 1_800), 1))
    assert (choice.worker, choice.reason) == ("w1", "pair")


@pytest.mark.parametrize("missed", [2_049, 8_000])
def test_a_long_prefill_is_not_paired(missed: int) -> None:
    fleet = Fleet("preble", step=STEP)
    decoding(fleet, 1)
    choice = fleet.pick(asking(tokens("e", missed), 1))
    assert choice.reason == "explore"
    assert choice.worker != "w1"


@pytest.mark.parametrize(
    "change",
    [
        lambda fleet: setattr(fleet.workers[1], "role", Role.PREFILL),
        lambda fleet: setattr(fleet.workers[1].mirror, "kv_tokens", 180_000),
        lambda fleet: setattr(fleet.workers[1], "configured_kv_tokens", None),
        lambda fleet: fleet.load(1, 9),
        lambda fleet: fleet.serve(asking(tokens("w", 4_000), 701, max_tokens=1), to=1),
    ],
    ids=["only prefills", "KV is full", "KV is unknown", "too far ahead", "prefills too"],
)
def test_nobody_is_paired_with_a_worker_whose_compute_does_not_idle(
    change: Callable[[Fleet], object],
) -> None:
    fleet = Fleet("preble", step=STEP)
    decoding(fleet, 1)
    change(fleet)
    assert fleet.pick(asking(tokens("e", 1_800), 1)).reason == "explore"


def test_pairing_can_be_turned_off() -> None:
    fleet = Fleet("preble", step=STEP, pairing="off")
    decoding(fleet, 1)
    assert fleet.pick(asking(tokens("e", 1_800), 1)).reason == "explore"


# --- for all -----------------------------------------------------------------------------------------------

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
