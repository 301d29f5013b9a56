"""Laws of the terms that placements are priced by, with the arithmetic done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cost import (
    Demand,
    decode_own_s,
    kv_wait_s,
    prefill_backlog_s,
    prefill_own_s,
    prefill_wait_s,
    slot_wait_s,
    slowdown_bound_s,
    slowdown_s,
    step_after_s,
    step_growth_s,
)
from router.core.lease import Lease
from router.core.step_model import StepModel
from tests.core.fleet_examples import request

A40 = StepModel(
    prefill_base_s=4e-3,
    prefill_per_token_s=60e-6,
    prefill_per_token_squared_s=1e-9,
    step_base_s=15.5e-3,
    step_per_sequence_s=0.12e-3,
    step_per_kv_token_s=0.12e-6,
)


def _lease(prompt: int = 500, generated: int = 0, expected: int = 200, **what: object) -> Lease:
    fields: dict[str, object] = {"granted": 0.0, "prefilled": True, "generated_tokens": generated} | what
    sequences = fields.pop("sequences", 1)
    return Lease(
        request=request(prompt_tokens=prompt, sequences=sequences),
        worker="w",
        incarnation=0,
        prompt_tokens=prompt,
        expected_tokens=expected,
        **fields,  # type: ignore[arg-type]  # an example names only what it is about
    )


# --- prefill ---------------------------------------------------------------------------------------------


def test_a_cached_prefix_costs_attention_only() -> None:
    whole = prefill_own_s(A40, 2_000)
    assert whole == pytest.approx(0.004 + 0.12 + 1e-9 * 2_000**2)
    half = prefill_own_s(A40, 2_000, 1_000)
    assert half == pytest.approx(0.004 + 0.06 + 1e-9 * 1_000 * 3_000)
    first_half = prefill_own_s(A40, 1_000)
    assert first_half + half - A40.prefill_base_s == pytest.approx(whole)


def test_a_prompt_waits_for_those_before_it_and_not_for_those_that_decode() -> None:
    before = [_lease(1_000, prefilled=False, granted=10.0), _lease(3_000, prefilled=False, granted=10.01)]
    wait_s = prefill_wait_s(A40, [_lease(9_000), *before], 10.02)
    assert wait_s == pytest.approx(prefill_own_s(A40, 1_000) + prefill_own_s(A40, 3_000) - 0.02)
    assert prefill_wait_s(A40, [_lease(9_000)], 10.0) == 0.0


def test_a_prefill_that_takes_too_long_leaves_those_behind_it_to_wait_for() -> None:
    before = [_lease(1_000, prefilled=False), _lease(3_000, prefilled=False)]
    assert prefill_wait_s(A40, before, 60.0) == pytest.approx(prefill_own_s(A40, 3_000))


def test_prompts_of_one_length_cost_the_same_by_sum_as_one_by_one() -> None:
    waiting = [_lease(700, prefilled=False, granted=5.0) for _ in range(4)]
    assert prefill_backlog_s(A40, 4, 2_800) == pytest.approx(prefill_wait_s(A40, waiting, 5.0))
    assert prefill_backlog_s(A40, 0, 0) == 0.0


@given(lengths=st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_the_sum_never_overstates_what_waits(lengths: list[int]) -> None:
    waiting = [_lease(length, prefilled=False, granted=5.0) for length in lengths]
    one_by_one = prefill_wait_s(A40, waiting, 5.0)
    assert prefill_backlog_s(A40, len(lengths), sum(lengths)) <= one_by_one * (1 + 1e-9)


# --- decode ----------------------------------------------------------------------------------------------


def test_a_decode_takes_as_many_steps_as_it_has_tokens_at_the_load_that_it_joins() -> None:
    demand = Demand(prompt_tokens=1_000, output_tokens=200)
    growth_s = 0.12e-3 + 0.12e-6 * 1_100
    assert step_growth_s(A40, demand) == pytest.approx(growth_s)
    after_s = 15.5e-3 + 0.12e-3 * 10 + 0.12e-6 * 8_000 + growth_s
    assert step_after_s(A40, 10, 8_000, demand) == pytest.approx(after_s)
    assert decode_own_s(A40, 10, 8_000, demand) == pytest.approx(200 * after_s)


def test_speculation_saves_steps() -> None:
    twice = StepModel(0, 0, 0.02, 0, 0, tokens_per_step=2.0)
    assert decode_own_s(twice, 0, 0, Demand(0, 100)) == pytest.approx(50 * 0.02)


def test_residents_are_slowed_for_as_long_as_both_decode() -> None:
    demand = Demand(prompt_tokens=900, output_tokens=200)
    there = [_lease(generated=150, expected=200), _lease(expected=1_000)]
    assert slowdown_s(A40, demand, there) == pytest.approx((0.12e-3 + 0.12e-6 * 1_000) * (50 + 200))
    assert slowdown_s(A40, demand, []) == 0.0


def test_each_sequence_of_a_request_is_slowed() -> None:
    demand = Demand(prompt_tokens=0, output_tokens=100)
    four = _lease(expected=800, sequences=4)
    assert slowdown_s(A40, demand, [four]) == pytest.approx(step_growth_s(A40, demand) * 4 * 100)


@given(
    left=st.lists(st.integers(8, 5_000), min_size=1, max_size=20),
    output=st.floats(1, 5_000),
)
def test_the_bound_is_never_below_the_slowdown(left: list[int], output: float) -> None:
    demand = Demand(500, output)
    there = [_lease(expected=tokens) for tokens in left]
    exact = slowdown_s(A40, demand, there)
    remaining = sum(lease.remaining_tokens for lease in there)
    bound = slowdown_bound_s(A40, demand, len(there), remaining)
    assert bound >= exact * (1 - 1e-9)
    if len(set(left)) == 1:
        assert bound == pytest.approx(exact)


def test_kv_is_waited_for_until_enough_of_those_there_have_ended() -> None:
    there = [_lease(1_000, 100, 400), _lease(2_000, 100, 150), _lease(500, 0, 1_000)]
    # What is left of each: 300, 50 and 1,000; they end holding 1,400, 2,150 and 1,500.
    assert kv_wait_s(A40, there, 0, 0.02) == 0.0
    assert kv_wait_s(A40, there, 2_000, 0.02) == pytest.approx(50 * 0.02)
    assert kv_wait_s(A40, there, 2_151, 0.02) == pytest.approx(300 * 0.02)
    assert kv_wait_s(A40, there, 3_600, 0.02) == pytest.approx(1_000 * 0.02)
    assert kv_wait_s(A40, there, 10**6, 0.02) == pytest.approx(1_000 * 0.02)


def test_a_slot_is_waited_for_until_enough_sequences_have_ended() -> None:
    there = [_lease(expected=300), _lease(expected=100, sequences=2), _lease(expected=1_000)]
    assert slot_wait_s(A40, there, 0, 0.02) == 0.0
    assert slot_wait_s(A40, there, 2, 0.02) == pytest.approx(50 * 0.02)
    assert slot_wait_s(A40, there, 3, 0.02) == pytest.approx(300 * 0.02)
    assert slot_wait_s(A40, there, 9, 0.02) == pytest.approx(1_000 * 0.02)


@given(
    sequences=st.integers(0, 500),
    kv=st.integers(0, 10**6),
    prompt=st.integers(0, 10**5),
    output=st.floats(1, 10**4),
)
def test_more_load_or_a_longer_request_never_costs_less(
    sequences: int, kv: int, prompt: int, output: float
) -> None:
    demand = Demand(prompt, output)
    here = decode_own_s(A40, sequences, kv, demand)
    assert here > 0
    assert decode_own_s(A40, sequences + 1, kv, demand) >= here
    assert decode_own_s(A40, sequences, kv + 1_000, demand) >= here
    assert decode_own_s(A40, sequences, kv, Demand(prompt + 100, output)) >= here
    assert decode_own_s(A40, sequences, kv, Demand(prompt, output + 1)) >= here
    assert demand.final_kv_tokens >= demand.mean_kv_tokens >= prompt
