"""Laws of cache_aware: when a prefix is followed, whose, and what happens on a miss."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from router.core.prompt_key import PromptKey
from router.core.request import Request
from router.core.worker import StepModel
from router.policies import POLICIES
from tests.policies.examples import NOW
from tests.policies.prefix_examples import Fleet, again, asking, tokens

SYSTEM, DOCUMENT = tokens("s", 13), tokens("d", 21_000)
# Mistral-7B on an A6000: 2,000 tokens in 0.27 s, 21,000 in 3.77 s.
STEP = StepModel(0.0, 0.18e-3, 24e-3, 0.4e-3, 0.2e-6)


# --- threshold -----------------------------------------------------------------------------------------


def test_a_document_is_followed_and_a_shared_system_prompt_is_not() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(SYSTEM + tokens("x", 500)), to=0)
    fleet.serve(asking(SYSTEM + DOCUMENT + tokens("q", 1_987)), to=2)
    choice = fleet.pick(asking(SYSTEM + DOCUMENT + tokens("r", 1_987), 1))
    assert (choice.worker, choice.reason, choice.cost) == ("w2", "prefix", 1.0)
    assert fleet.pick(asking(SYSTEM + tokens("e", 9_000), 2)).reason == "least_load"


@pytest.mark.parametrize(("threshold", "followed"), [(0.1, True), (0.5, True), (0.9, True), (0.92, False)])
def test_of_23_000_tokens_21_013_are_held_which_is_a_share_of_0_91(threshold: float, followed: bool) -> None:
    fleet = Fleet("cache_aware", cache_threshold=threshold)
    fleet.serve(asking(SYSTEM + DOCUMENT + tokens("q", 1_987)), to=2)
    one = asking(SYSTEM + DOCUMENT + tokens("r", 1_987), 1)
    assert one.prompt_tokens == 23_000
    assert (fleet.pick(one).reason == "prefix") is followed


def test_the_threshold_is_strict() -> None:
    fleet = Fleet("cache_aware", cache_threshold=0.5)
    ids = tuple(range(160))
    fleet.serve(_ids(ids, 0), to=3)
    assert fleet.pick(_ids(ids[:80] + (7,) * 80, 1)).reason == "least_load"
    assert fleet.pick(_ids(ids[:96] + (7,) * 64, 2)).worker == "w3"


def test_a_low_threshold_lets_a_system_prompt_draw_everything_to_one_worker() -> None:
    """The failure that the default avoids: 13 tokens of 120, and no guard."""

    def spread(threshold: float) -> Counter[str]:
        fleet = Fleet("cache_aware", cache_threshold=threshold, balance_abs_threshold=1e6)
        return Counter(fleet.send(asking(SYSTEM + tokens(chr(97 + n), 107), n)).worker for n in range(24))

    assert spread(0.1) == {spread(0.1).most_common(1)[0][0]: 24}
    assert set(spread(0.5).values()) == {6}


# --- guard ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holder", "others", "followed"),
    [(8, 0, True), (9, 0, False), (22, 14, True), (23, 14, False), (30, 20, True), (32, 20, False)],
)
def test_a_holder_is_followed_within_8_requests_or_one_and_a_half_times_the_least_loaded(
    holder: int, others: int, followed: bool
) -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT), to=1)
    for number in range(4):
        fleet.load(number, holder if number == 1 else others)
    choice = fleet.pick(asking(DOCUMENT, 1))
    assert choice.reason == ("prefix" if followed else "overflow")
    assert (choice.worker == "w1") is followed


def test_one_hot_worker_does_not_switch_affinity_off_for_the_others() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT), to=1)
    fleet.load(0, 500)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w1"


def test_a_load_is_judged_by_the_speed_of_its_worker() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT), to=1)
    fleet.load(1, 12)
    assert fleet.pick(asking(DOCUMENT, 1)).reason == "overflow"
    fleet.workers[1].capacity = 2.0
    assert fleet.pick(asking(DOCUMENT, 1)).reason == "prefix"


def test_whoever_takes_the_overflow_holds_the_prefix_from_then_on() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT), to=1)
    fleet.load(1, 20)
    second = fleet.serve(asking(DOCUMENT, 1))
    assert second != "w1"
    assert {fleet.pick(asking(DOCUMENT, n)).worker for n in range(2, 40)} == {second}


def test_pure_affinity_is_a_setting() -> None:
    fleet = Fleet(
        "cache_aware", cache_threshold=0, balance_abs_threshold=1_000_000, balance_rel_threshold=1_000_000
    )
    fleet.serve(asking(SYSTEM + tokens("x", 500)), to=3)
    fleet.load(3, 400_000)
    assert fleet.pick(asking(SYSTEM + tokens("y", 9_000), 1)).worker == "w3"


# --- which holder ----------------------------------------------------------------------------------------


def test_of_all_holders_the_least_loaded_takes_it() -> None:
    fleet = Fleet("cache_aware")
    for number in (0, 1, 2):
        fleet.serve(asking(DOCUMENT), to=number)
    fleet.load(0, 5)
    fleet.load(2, 2)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w1"
    fleet.load(1, 6)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w2"


def test_the_longest_prefix_wins_even_at_a_little_more_load() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT[: 4 * 15_000]), to=0)
    fleet.serve(asking(DOCUMENT), to=1)
    fleet.load(1, 4)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w1"
    fleet.load(1, 5)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w0"


def test_less_than_a_block_more_is_no_reason_to_go_to_a_busier_worker() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT + "What about"), to=0)
    fleet.serve(asking(DOCUMENT + "Who"), to=1)
    fleet.load(0, 2)
    assert fleet.pick(asking(DOCUMENT + "What now?", 1)).worker == "w1"


def test_the_last_turn_of_a_conversation_draws_the_next_one() -> None:
    fleet = Fleet("cache_aware")
    talks = [tokens("s", 1_100) + tokens(chr(97 + n), 40) for n in range(8)]
    homes = [fleet.serve(asking(talk, n), to=n % 4) for n, talk in enumerate(talks)]
    following = [fleet.pick(asking(talk + tokens("z", 30), 50 + n)).worker for n, talk in enumerate(talks)]
    assert following == homes


def test_a_short_question_after_a_long_answer_goes_where_the_answer_was_given() -> None:
    """The prompt before is a tenth of this one; the rest is what the worker said itself."""
    fleet = Fleet("cache_aware")
    first = [("user", tokens("q", 60))]
    fleet.serve(_talking(first), to=2)
    later = [*first, ("assistant", tokens("a", 500)), ("user", tokens("r", 40))]
    assert {fleet.pick(_talking(later, n)).worker for n in range(20)} == {"w2"}
    others = [("user", tokens("x", 60)), *later[1:]]
    assert fleet.pick(_talking(others, 30)).reason == "least_load"


# --- misses ----------------------------------------------------------------------------------------------


def test_a_miss_goes_by_load_and_not_to_the_worker_that_holds_the_least() -> None:
    fleet = Fleet("cache_aware")
    for number in (0, 1, 2):
        fleet.serve(asking(tokens(str(number), 3_000)), to=number)
    for number in (0, 2, 3):
        fleet.load(number, 5)
    assert fleet.pick(asking(tokens("e", 100), 1)).worker == "w1"


def test_of_equally_loaded_workers_the_one_that_holds_the_least_takes_a_miss() -> None:
    fleet = Fleet("cache_aware")
    for number, length in enumerate([3_000, 2_000, 4_000, 2_500]):
        fleet.serve(asking(tokens(str(number), length)), to=number)
    assert {fleet.pick(asking(tokens("e", 100), n)).worker for n in range(20)} == {"w1"}


@pytest.mark.parametrize(("load", "chosen"), [(8, "w1"), (9, "w0")])
def test_of_workers_about_as_loaded_too_the_one_that_holds_the_least_takes_a_miss(
    load: int, chosen: str
) -> None:
    fleet = Fleet("cache_aware", 2)
    fleet.serve(asking(tokens("a", 3_000)), to=0)
    fleet.serve(asking(tokens("b", 2_000)), to=1)
    fleet.load(0, 7)
    fleet.load(1, load)
    assert {fleet.pick(asking(tokens("e", 100), n)).worker for n in range(9)} == {chosen}
    assert fleet.pick(asking(tokens("e", 100))).cost == 8.0


def test_among_holders_one_and_a_half_times_the_load_is_about_as_loaded() -> None:
    fleet = Fleet("cache_aware", 2)
    for number in (0, 1):
        fleet.serve(asking(DOCUMENT), to=number)
    fleet.serve(asking(tokens("a", 3_000)), to=0)
    fleet.load(0, 3)
    fleet.load(1, 5)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w1"
    fleet.load(1, 1)
    assert fleet.pick(asking(DOCUMENT, 1)).worker == "w0"


def test_a_worker_that_came_lately_is_not_preferred_for_the_little_that_it_holds() -> None:
    fleet = Fleet("cache_aware")
    for number in range(3):
        fleet.serve(asking(tokens(str(number), 3_000)), to=number)
    fleet.serve(asking(tokens("3", 100)), to=3)
    fleet.serve(asking(tokens("more", 400)), to=1)
    picks = Counter(fleet.pick(asking(tokens("e", 100), n)).worker for n in range(60))
    assert set(picks) == {"w0", "w2"}
    fleet.serve(asking(tokens("x", 1_600)), to=3)
    assert fleet.pick(asking(tokens("e", 100))).worker == "w3"


def test_an_idle_worker_is_never_about_as_loaded_as_a_busy_one() -> None:
    fleet = Fleet("cache_aware", 2)
    fleet.serve(asking(tokens("a", 3_000)), to=0)
    fleet.load(1, 1)
    assert fleet.pick(asking(tokens("e", 100), 1)).worker == "w0"


def test_without_a_prompt_or_an_index_it_is_least_requests() -> None:
    fleet = Fleet("cache_aware")
    fleet.load(0, 1)
    choice = fleet.pick(structs.replace(asking("text"), key=None))
    assert choice.reason == "no_prompt"
    assert choice.worker != "w0"


def test_a_retry_goes_to_the_next_holder_or_by_load() -> None:
    fleet = Fleet("cache_aware")
    fleet.serve(asking(DOCUMENT), to=1)
    one = again(asking(DOCUMENT, 1), "w1")
    assert fleet.pick(one, among=[0, 2, 3]).reason == "least_load"


# --- the guard in seconds ----------------------------------------------------------------------------------


def test_calibrated_a_prefix_is_followed_while_it_saves_more_than_the_extra_wait() -> None:
    fleet = Fleet("cache_aware", step=STEP)
    fleet.serve(asking(DOCUMENT), to=1)
    mirror = fleet.workers[1].mirror
    # The prefix saves 20,999 × 0.18 ms = 3.78 s; each of these prompts is a wait of 0.36 s.
    mirror.queued_tokens = 10 * 2_000
    choice = fleet.pick(asking(DOCUMENT, 1))
    assert (choice.worker, choice.reason) == ("w1", "prefix")
    mirror.queued_tokens = 11 * 2_000
    choice = fleet.pick(asking(DOCUMENT, 1))
    assert (choice.worker == "w1", choice.reason) == (False, "overflow")


def test_thresholds_can_be_kept_when_calibrated_and_seconds_used_before() -> None:
    by_requests = Fleet("cache_aware", step=STEP, guard="requests")
    by_seconds = Fleet("cache_aware", guard="seconds")
    for fleet in (by_requests, by_seconds):
        fleet.serve(asking(DOCUMENT), to=1)
        fleet.load(1, 9)
    assert by_requests.pick(asking(DOCUMENT, 1)).reason == "overflow"
    assert by_seconds.pick(asking(DOCUMENT, 1)).reason == "prefix"


def test_in_seconds_too_a_prefix_below_the_threshold_counts_nothing() -> None:
    fleet = Fleet("cache_aware", step=STEP)
    fleet.serve(asking(SYSTEM + tokens("x", 500)), to=0)
    assert fleet.pick(asking(SYSTEM + tokens("e", 9_000), 1)).reason == "least_load"


def test_hits_that_wait_are_no_wait() -> None:
    fleet = Fleet("cache_aware", step=STEP)
    fleet.serve(asking(DOCUMENT), to=1)
    # Twelve prompts of 21,000 tokens stand before it, but all that they need is there.
    waiting = [fleet.send(asking(DOCUMENT, n), to=1) for n in range(1, 13)]
    assert fleet.workers[1].queued_tokens == 12 * 21_000
    assert fleet.pick(asking(DOCUMENT, 20)).reason == "prefix"
    assert len(waiting) == len(fleet.policy.queued_hits)  # type: ignore[attr-defined]  # it is CacheAware
    for lease in list(fleet.running):
        fleet.start(lease, NOW)
        fleet.end(lease)
    assert len(fleet.policy.queued_hits) == 0  # type: ignore[attr-defined]  # as above


def test_whoever_sets_a_threshold_means_it_calibrated_or_not() -> None:
    spec = POLICIES["cache_aware"]
    assert spec.check({}).guard == "auto"
    assert spec.check({"cache_threshold": 0.3}).guard == "auto"
    assert spec.check({"balance_abs_threshold": 8}).guard == "requests"
    assert spec.check({"balance_rel_threshold": 2, "guard": "seconds"}).guard == "seconds"


# --- the size of the tree --------------------------------------------------------------------------------


def test_a_worker_is_believed_to_hold_no_more_text_than_the_tree_may_have() -> None:
    fleet = Fleet("cache_aware", max_tree_size=10_000, eviction_interval_s=30)
    for number in range(8):
        fleet.serve(asking(tokens(str(number), 1_000), number), NOW + number, to=1)
    held = fleet.prefixes.index.holder("w1")
    assert held is not None
    assert held.text.held_bytes > 30_000
    fleet.prefixes.sweep(fleet.workers, NOW + 29)
    assert held.text.held_bytes > 30_000, "the interval began with the first sweep"
    fleet.prefixes.sweep(fleet.workers, NOW + 30)
    assert 0 < held.text.held_bytes <= 10_000
    assert fleet.pick(asking(tokens("7", 1_000), 20)).reason == "prefix"
    assert fleet.pick(asking(tokens("0", 1_000), 21)).reason == "least_load"


# --- for all ---------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    loads=st.lists(st.integers(0, 60), min_size=4, max_size=4),
    held=st.lists(st.integers(0, 100), min_size=4, max_size=4),
    params=st.fixed_dictionaries(
        {
            "cache_threshold": st.floats(0, 1),
            "balance_abs_threshold": st.integers(0, 40),
            "balance_rel_threshold": st.floats(1, 3),
        }
    ),
)
def test_nobody_outside_the_guard_is_ever_chosen_and_a_prefix_is_followed_only_above_the_threshold(
    loads: list[int], held: list[int], params: dict[str, float]
) -> None:
    fleet = Fleet("cache_aware", **params)
    text = tokens("d", 100)
    for number, share in enumerate(held):
        if share:
            fleet.serve(asking(text[: 4 * share]), to=number)
        fleet.load(number, loads[number])
    one = asking(text, 1)
    match = fleet.prefixes.matched(one)
    choice = fleet.pick(one)
    load, least = loads[int(choice.worker[1:])] + 1, min(loads) + 1
    highest = max(least + params["balance_abs_threshold"], least * params["balance_rel_threshold"])
    assert load <= highest
    if choice.reason == "prefix":
        assert match.on(choice.worker) > params["cache_threshold"] * 100
    else:
        assert load <= least * 1.125
        within = [f"w{n}" for n in range(4) if loads[n] + 1 <= highest]
        assert all(match.on(name) <= params["cache_threshold"] * 100 for name in within)


def _talking(messages: list[tuple[str, str]], sequence: int = 0) -> Request:
    said = [{"role": role, "content": text} for role, text in messages]
    key = PromptKey("model", lambda: {"messages": json.dumps(said).encode()})
    return asking("", sequence, prompt_tokens=sum(len(text) for _, text in messages) // 4, key=key)


def _ids(ids: tuple[int, ...], sequence: int) -> Request:
    key = PromptKey("model", lambda: {"prompt": str(list(ids)).encode()})
    return asking("", sequence, prompt_tokens=len(ids), key=key)
