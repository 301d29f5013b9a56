"""Laws of a mirror: sums over leases, whatever the order of what happens to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import InternalError
from router.core.lease import Lease
from router.core.mirror import Mirror
from tests.core.fleet_examples import request


def lease(prompt: int = 100, expected: int = 50, **fields: Any) -> Lease:
    return Lease(request(prompt_tokens=prompt, **fields), "a", 0, 1.0, prompt, expected)


def sums(mirror: Mirror) -> tuple[int, ...]:
    return (
        mirror.in_flight,
        mirror.sequences,
        mirror.queued_tokens,
        mirror.kv_tokens,
        mirror.remaining_tokens,
        mirror.streams,
        mirror.transfers,
        mirror.keeping,
    )


def test_a_charge_counts_everything() -> None:
    mirror = Mirror()
    mirror.charge(lease(stream=True, sequences=3))
    assert sums(mirror) == (1, 3, 100, 100, 50, 1, 0, 0)
    assert not mirror.idle
    assert repr(mirror) == "<Mirror [1 in flight | 100 KV tokens | 100 queued]>"


def test_a_prompt_that_was_prefilled_no_longer_waits_and_still_holds_kv() -> None:
    mirror, held = Mirror(), lease()
    mirror.charge(held)
    mirror.prefilled(held)
    assert (mirror.queued_tokens, mirror.kv_tokens) == (0, 100)


@pytest.mark.parametrize("first", ["correct", "prefill"])
def test_a_true_prompt_length_may_come_before_or_after_the_first_output(first: str) -> None:
    mirror, held = Mirror(), lease()
    mirror.charge(held)
    if first == "prefill":
        mirror.prefilled(held)
    mirror.correct_prompt(held, 130)
    assert (mirror.queued_tokens, mirror.kv_tokens) == ((0 if first == "prefill" else 130), 130)
    mirror.settle(held)
    assert sums(mirror) == (0,) * 8


def test_a_count_of_output_that_is_corrected_downwards_moves_the_accounts_back() -> None:
    mirror, held = Mirror(), lease()
    mirror.charge(held)
    mirror.generated(held, 30)
    mirror.generated(held, 20)
    assert (mirror.kv_tokens, mirror.remaining_tokens) == (120, 30)


def test_a_transfer_is_under_way_until_its_kv_has_come() -> None:
    mirror, held = Mirror(), lease()
    held.transferring = held.prefilled = True
    mirror.charge(held)
    assert (mirror.transfers, mirror.queued_tokens) == (1, 0)
    mirror.transferred(held)
    assert mirror.transfers == 0
    mirror.settle(held)
    assert sums(mirror) == (0,) * 8


def test_a_worker_that_only_keeps_kv_for_another_has_nothing_to_do() -> None:
    mirror, held = Mirror(), lease(stream=True)
    held.prefill_only = True
    mirror.charge(held)
    assert (mirror.working, mirror.streams) == (True, 0), "its answer comes in one piece"
    mirror.prefilled(held)
    assert not mirror.working
    assert not mirror.idle
    other = lease()
    mirror.charge(other)
    assert mirror.working
    for one in (held, other):
        mirror.settle(one)
    assert sums(mirror) == (0,) * 8


def test_settling_what_was_never_charged_is_a_bug_and_named_as_one() -> None:
    with pytest.raises(InternalError, match="below zero"):
        Mirror().settle(lease())


@given(
    leases=st.lists(
        st.tuples(
            st.integers(0, 10_000),  # prompt
            st.integers(1, 3000),  # expected
            st.integers(1, 8),  # sequences
            st.booleans(),  # stream
            st.booleans(),  # prefilled
            st.booleans(),  # for another worker
            st.one_of(st.none(), st.integers(0, 10_000)),  # true prompt
            st.lists(st.integers(0, 5000), max_size=4),  # counts of output
        ),
        max_size=12,
    ),
    order=st.randoms(use_true_random=False),
)
def test_after_the_last_settlement_every_account_is_zero(leases: list[tuple], order: object) -> None:  # type: ignore[type-arg]
    mirror = Mirror()
    held: list[Lease] = []
    for prompt, expected, sequences, stream, prefilled, for_other, true_prompt, counts in leases:
        one = lease(prompt, expected, sequences=sequences, stream=stream)
        one.prefill_only = for_other
        mirror.charge(one)
        held.append(one)
        if true_prompt is not None:
            mirror.correct_prompt(one, true_prompt)
        if prefilled:
            mirror.prefilled(one)
        for count in counts:
            mirror.generated(one, count)
        assert mirror.kv_tokens == sum(h.kv_tokens for h in held)
        assert mirror.remaining_tokens == sum(h.remaining_tokens for h in held)
        assert mirror.queued_tokens == sum(h.prompt_tokens for h in held if not h.prefilled)
        assert mirror.keeping == sum(h.keeps for h in held)
        assert mirror.working is any(not h.keeps for h in held)
    order.shuffle(held)  # type: ignore[attr-defined]
    for one in held:
        mirror.settle(one)
    assert sums(mirror) == (0,) * 8
    assert mirror.idle
