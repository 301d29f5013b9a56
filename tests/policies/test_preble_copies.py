"""When Preble copies a hot prefix, and whom it pairs with whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router.core.worker import Role
from tests.policies.examples import NOW
from tests.policies.preble_examples import (
    STEP,
    loads,
    question,
    with_document,
)
from tests.policies.prefix_examples import Fleet, asking, tokens

# --- rebalancing -----------------------------------------------------------------------------------------


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


# --- replication -----------------------------------------------------------------------------------------


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


# --- pairing ---------------------------------------------------------------------------------------------


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
