"""Laws of failed transfers: pairs are set aside, and workers are blamed only for what others do well."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.pairs import Blame, Pairs, PairSettings

P1, P2, P3 = ("p1", 0), ("p2", 0), ("p3", 0)
D1, D2, D3 = ("d1", 0), ("d2", 0), ("d3", 0)


def test_a_pair_that_never_failed_is_allowed() -> None:
    assert Pairs().allowed(P1, D1, 0.0)


def test_a_failed_pair_is_set_aside_and_no_other() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 10.0)
    assert not pairs.allowed(P1, D1, 10.9)
    assert pairs.allowed(P1, D1, 11.0)
    assert pairs.allowed(P1, D2, 10.0)
    assert pairs.allowed(P2, D1, 10.0)
    assert list(pairs.set_aside(10.0)) == [("p1", "d1")]
    assert list(pairs.set_aside(11.0)) == []
    assert len(pairs) == 1
    assert repr(pairs) == "<Pairs [1 in trouble]>"


def test_time_aside_doubles_up_to_its_longest() -> None:
    pairs, now, seen = Pairs(), 0.0, []
    for _ in range(9):
        pairs.failed(P1, D1, now)
        aside_s = next(s for s in range(100) if pairs.allowed(P1, D1, now + s))
        seen.append(aside_s)
        now += aside_s
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_requests_that_were_under_way_do_not_double_the_time_aside() -> None:
    pairs = Pairs()
    for _ in range(20):
        pairs.failed(P1, D1, 0.5)
    assert pairs.allowed(P1, D1, 1.5)


def test_a_success_makes_a_pair_as_good_as_new() -> None:
    pairs = Pairs()
    for now in (0.0, 1.0, 3.0):
        pairs.failed(P1, D1, now)
    pairs.succeeded(P1, D1, 3.5)
    assert pairs.allowed(P1, D1, 3.5)
    assert not pairs, "nothing is in trouble any more"
    pairs.failed(P1, D1, 4.0)
    assert pairs.allowed(P1, D1, 5.0)


def test_a_new_incarnation_starts_without_the_failures_of_the_old_one() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    assert pairs.allowed(("p1", 1), D1, 0.0)
    assert pairs.allowed(P1, ("d1", 1), 0.0)


@pytest.mark.parametrize("worker", ["p1", "d1"])
def test_a_worker_is_forgotten_in_all_its_incarnations(worker: str) -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    pairs.failed((P1[0], 1), (D1[0], 1), 0.0)
    pairs.failed(P2, D2, 0.0)
    pairs.succeeded(P1, D3, 0.0)
    pairs.forget(worker)
    assert repr(pairs) == "<Pairs [1 in trouble]>"
    assert not pairs.allowed(P2, D2, 0.0)


def test_what_is_remembered_is_bounded() -> None:
    pairs = Pairs(PairSettings(max_pairs=16))
    for number in range(60):
        pairs.failed((f"p{number}", 0), D1, 0.0)
        pairs.succeeded((f"q{number}", 0), D2, 0.0)
    assert repr(pairs) == "<Pairs [16 in trouble]>"
    assert len(pairs._succeeded) <= 16
    assert pairs.allowed(("p0", 0), D1, 0.0), "the longest untouched is forgotten first"
    assert not pairs.allowed(("p59", 0), D1, 0.0)


# --- blame ---------------------------------------------------------------------------------------------


def test_one_pair_that_fails_is_nobodys_fault_however_often() -> None:
    pairs = Pairs()
    assert {pairs.failed(P1, D1, float(now)) for now in range(50)} == {Blame.NOBODY}


def test_a_decode_worker_that_fails_with_two_prefill_workers_is_to_blame() -> None:
    pairs = Pairs()
    assert pairs.failed(P1, D1, 0.0) is Blame.NOBODY
    assert pairs.failed(P2, D1, 1.0) is Blame.DECODE


def test_a_prefill_worker_that_fails_with_two_decode_workers_is_to_blame() -> None:
    pairs = Pairs()
    assert pairs.failed(P1, D1, 0.0) is Blame.NOBODY
    assert pairs.failed(P1, D2, 1.0) is Blame.PREFILL


def test_requests_that_were_under_way_are_held_against_nobody() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    assert pairs.failed(P2, D1, 0.0) is Blame.DECODE
    assert pairs.failed(P1, D1, 0.5) is Blame.NOBODY
    assert pairs.failed(P2, D1, 0.9) is Blame.NOBODY
    assert pairs.failed(P1, D1, 1.0) is Blame.DECODE


def test_failures_that_lie_far_apart_do_not_add_up() -> None:
    pairs = Pairs(PairSettings(window_s=30.0))
    pairs.failed(P1, D1, 0.0)
    assert pairs.failed(P2, D1, 30.1) is Blame.NOBODY


def test_two_incarnations_of_one_worker_are_two_partners() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    assert pairs.failed(("p1", 1), D1, 1.0) is Blame.DECODE


def test_a_network_that_fails_everywhere_is_nobodys_fault() -> None:
    pairs = Pairs()
    blames = [
        pairs.failed(p, d, float(n)) for n, (p, d) in enumerate(itertools.product((P1, P2, P3), (D1, D2, D3)))
    ]
    assert blames[4:] == [Blame.NOBODY] * 5


def test_two_broken_decode_workers_are_told_from_the_prefill_workers_that_serve_others_well() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    pairs.failed(P1, D2, 0.0)
    for prefill in (P1, P2):
        pairs.succeeded(prefill, D3, 1.0)
    assert pairs.failed(P2, D1, 2.0) is Blame.DECODE
    assert pairs.failed(P2, D2, 2.0) is Blame.DECODE


def test_two_broken_prefill_workers_are_told_from_the_decode_workers_that_serve_others_well() -> None:
    pairs = Pairs()
    pairs.failed(P1, D1, 0.0)
    pairs.failed(P2, D1, 0.0)
    for decode in (D1, D2):
        pairs.succeeded(P3, decode, 1.0)
    assert pairs.failed(P1, D2, 2.0) is Blame.PREFILL
    assert pairs.failed(P2, D2, 2.0) is Blame.PREFILL


def test_a_success_of_long_ago_clears_nobody() -> None:
    pairs = Pairs(PairSettings(window_s=30.0))
    pairs.failed(P1, D1, 0.0)
    pairs.succeeded(P1, D3, 0.0)
    pairs.succeeded(P2, D3, 0.0)
    for prefill, decode in ((P1, D2), (P2, D1), (P1, D1)):
        pairs.failed(prefill, decode, 40.0)
    assert pairs.failed(P2, D2, 40.0) is Blame.NOBODY


ends = st.sampled_from([0, 1, 2])
steps = st.lists(
    st.tuples(st.booleans(), ends, ends, st.floats(0, 10, allow_nan=False)), min_size=1, max_size=40
)


@given(steps)
def test_who_is_blamed_has_failed_with_two_others_in_the_window(
    history: list[tuple[bool, int, int, float]],
) -> None:
    pairs, now = Pairs(), 0.0
    failures: dict[tuple[int, int], float] = {}
    for good, p, d, wait_s in history:
        now += wait_s
        prefill, decode = (f"p{p}", 0), (f"d{d}", 0)
        if good:
            pairs.succeeded(prefill, decode, now)
            failures.pop((p, d), None)
            assert pairs.allowed(prefill, decode, now)
            continue
        failures[p, d] = now
        blame = pairs.failed(prefill, decode, now)
        recent = {pair for pair, when in failures.items() if now - when <= 30.0}
        if blame is Blame.PREFILL:
            assert len({decode for prefill, decode in recent if prefill == p}) >= 2
        elif blame is Blame.DECODE:
            assert len({prefill for prefill, decode in recent if decode == d}) >= 2
        else:
            assert blame is Blame.NOBODY


@given(steps)
def test_no_pair_is_aside_for_longer_than_the_longest_time(
    history: list[tuple[bool, int, int, float]],
) -> None:
    pairs, now = Pairs(), 0.0
    for good, p, d, wait_s in history:
        now += wait_s
        (pairs.succeeded if good else pairs.failed)((f"p{p}", 0), (f"d{d}", 0), now)
    assert not list(pairs.set_aside(now + 60.0))
