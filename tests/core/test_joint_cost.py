"""Terms that look beyond one worker, by the worked example of a barrier group of eight."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.cost import prefill_own_s
from router.core.joint_cost import (
    Pace,
    crowding_wait_s,
    eviction_s,
    overflow_s,
    overrun_share,
    postponed_copy_s,
)
from router.core.step_model import StepModel
from router.studies.simulation.known import measured

# Mistral-7B on an A6000, eight workers that step together with 16 sequences each.
A6000 = measured(Roofline(MODELS["mistral-7b"], GPUS["a6000"]))
PER_KV_TOKEN_S = 0.213e-6
LOAD_TOKENS = 60_000
GROUP = Pace.of(
    [StepModel(0.0, 0.0, 24e-3, 0.0, PER_KV_TOKEN_S)] * 8,
    [16] * 8,
    [LOAD_TOKENS] * 7 + [LOAD_TOKENS - 18_000],
)
PROMPT, CACHED = 23_000, 21_000


def step_with(kv_tokens: int) -> float:
    return 24e-3 + PER_KV_TOKEN_S * (kv_tokens + PROMPT)


def saved_s() -> float:
    return prefill_own_s(A6000, PROMPT) - prefill_own_s(A6000, PROMPT, CACHED)


def test_a_cached_document_saves_nearly_all_of_its_prefill() -> None:
    assert prefill_own_s(A6000, PROMPT) == pytest.approx(4.24, abs=0.02)
    assert prefill_own_s(A6000, PROMPT, CACHED) == pytest.approx(0.47, abs=0.02)
    assert saved_s() == pytest.approx(3.8, abs=0.05)


def test_a_group_waits_27_seconds_for_43_tokens_beyond_its_slowest_step() -> None:
    assert GROUP.sequences == 128
    assert overflow_s(GROUP, step_with(LOAD_TOKENS), 43) == pytest.approx(27.0, abs=0.1)
    # With room for 18,000 of the 23,000 tokens below the slowest step, and for answers of 4 tokens:
    assert overflow_s(GROUP, step_with(LOAD_TOKENS - 18_000), 43) == pytest.approx(5.9, abs=0.1)
    assert overflow_s(GROUP, step_with(LOAD_TOKENS), 4) == pytest.approx(2.5, abs=0.05)


def test_the_cache_is_worth_more_than_the_gap_once_enough_prompts_wait_behind() -> None:
    """Each prompt behind saves the same again: six or seven, one, and none."""
    assert 6.0 < overflow_s(GROUP, step_with(LOAD_TOKENS), 43) / saved_s() - 1 < 6.5
    assert 0.0 < overflow_s(GROUP, step_with(LOAD_TOKENS - 18_000), 43) / saved_s() - 1 < 1.0
    assert overflow_s(GROUP, step_with(LOAD_TOKENS), 4) < saved_s()


def test_a_gap_below_the_slowest_step_costs_nothing() -> None:
    assert overflow_s(GROUP, GROUP.step_s, 80) == 0.0
    assert overflow_s(GROUP, GROUP.step_s - 1e-3, 80) == 0.0


@given(share=st.floats(0, 3), rest=st.floats(0, 1e4), step_s=st.floats(0, 1))
def test_nobody_waits_longer_than_twice_the_mean_rest(share: float, rest: float, step_s: float) -> None:
    wait_s = crowding_wait_s(share, rest, step_s)
    assert 0.0 <= wait_s <= 2 * rest * step_s
    assert crowding_wait_s(0.0, rest, step_s) == 0.0
    assert crowding_wait_s(0.5, rest, step_s) == pytest.approx(rest * step_s)


@given(
    kv=st.integers(1, 1_000_000),
    n=st.integers(1, 500),
    own=st.floats(0, 100_000),
    capacity=st.integers(1, 2_000_000),
)
def test_an_overrun_is_at_least_what_does_not_fit_and_never_less_for_more(
    kv: int, n: int, own: float, capacity: int
) -> None:
    share = overrun_share(kv, n, own, capacity)
    assert share >= max(kv + own - capacity, 0.0) / kv - 1e-9
    assert overrun_share(kv, n, own + 1_000, capacity) >= share - 1e-9
    assert overrun_share(kv, n, own, capacity + 1_000) <= share + 1e-9


def test_many_small_residents_vary_less_than_few_large_ones() -> None:
    """At the capacity itself the expected overrun is the spread over the root of 2 pi."""
    assert overrun_share(10_000, 100, 0.0, 10_000) == pytest.approx(0.1 / math.sqrt(2 * math.pi))
    assert overrun_share(10_000, 4, 0.0, 10_000) == pytest.approx(0.5 / math.sqrt(2 * math.pi))
    assert overrun_share(10_000, 100, 0.0, 20_000) < 1e-9


def test_what_is_evicted_costs_its_prefill_as_often_as_it_is_used() -> None:
    step = StepModel(0.0, 1e-4, 0.0, 0.0, 0.0)
    assert eviction_s(step, 5_000, 1.0) == pytest.approx(0.5)
    assert eviction_s(step, 5_000, 0.25) == pytest.approx(0.125)
    assert eviction_s(step, -5_000, 1.0) == 0.0


def test_a_copy_is_worth_half_the_excess_for_each_who_comes_meanwhile() -> None:
    assert postponed_copy_s(6.0, 0.5, 0.2) == pytest.approx(0.3)
    assert postponed_copy_s(6.0, 0.5, -0.2) == 0.0
    assert postponed_copy_s(0.0, 0.5, 0.2) == 0.0
