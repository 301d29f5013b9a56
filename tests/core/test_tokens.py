"""Laws of the learned lengths: they follow the engines, keep their bounds, hardly move for an outlier."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.body_text import PromptSize
from router.core.tokens import (
    BYTES_PER_TOKEN,
    MEDIA_PART_TOKENS,
    OUTPUT_TOKENS,
    MeanTable,
    OutputTokens,
    PromptTokens,
    StreamTokens,
)

SAMPLES = st.lists(st.floats(0.01, 1e6), max_size=60)


def table(prior: float = 4.0, outlier: float = 2.0, capacity: int = 8) -> MeanTable[str]:
    return MeanTable(prior, outlier=outlier, capacity=capacity)


@given(SAMPLES, st.floats(0, 3))
def test_a_mean_stays_between_the_prior_and_its_samples(samples: list[float], weight: float) -> None:
    means = table()
    for sample in samples:
        means.learn("m", sample, weight)
    slack = 1e-9 * max([4.0, *samples])
    assert min([4.0, *samples]) - slack <= means.mean("m") <= max([4.0, *samples]) + slack


@given(st.floats(0.5, 50))
def test_a_steady_truth_is_learned(truth: float) -> None:
    means = table()
    for _ in range(400):
        means.learn("m", truth)
    assert means.mean("m") == pytest.approx(truth, rel=0.02)


@given(st.floats(1e3, 1e12) | st.floats(1e-12, 1e-3))
def test_one_outlier_moves_a_settled_mean_by_a_twentieth_of_its_bound(outlier: float) -> None:
    means = table()
    for _ in range(100):
        means.learn("m", 4.0)
    means.learn("m", outlier)
    assert -2.0 / 20 - 1e-9 <= means.mean("m") - 4.0 <= 4.0 / 20 + 1e-9


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_length_teaches_nothing(sample: float) -> None:
    means = table()
    means.learn("m", sample)
    assert means.mean("m") == 4.0
    assert len(means) == 0


@given(st.lists(st.sampled_from("abcdefghij"), max_size=60))
def test_memory_is_bounded_and_the_latest_keys_stay(keys: list[str]) -> None:
    means = table(capacity=3)
    for key in keys:
        means.learn(key, 8.0)
        assert len(means) <= 3
        assert means.mean(key) > 4.0


def test_asking_changes_nothing() -> None:
    means = table()
    assert means.mean("unknown") == means.mean("unknown") == 4.0
    assert len(means) == 0
    assert repr(means) == "<MeanTable [0 of 8 keys | prior 4]>"


# --- prompts ---------------------------------------------------------------------------------------------


def test_an_unknown_model_has_four_bytes_to_a_token() -> None:
    assert BYTES_PER_TOKEN == 4.0
    assert PromptTokens().estimate("m", PromptSize(4000)) == 1000


def test_token_ids_are_exact_and_teach_nothing() -> None:
    tokens = PromptTokens()
    size = PromptSize(tokens=77, first_tokens=77)
    assert tokens.estimate("m", size) == 77
    tokens.learn("m", size, 9999)
    assert tokens.bytes_per_token("m") == 4.0


@given(st.integers(0, 10**9), st.integers(0, 50))
def test_an_estimate_is_never_below_one_token(text_bytes: int, media_parts: int) -> None:
    assert PromptTokens().estimate("m", PromptSize(text_bytes, media_parts=media_parts)) >= 1


@given(st.floats(1.5, 8), st.lists(st.integers(200, 20_000), min_size=200, max_size=200))
def test_the_ratio_of_a_model_is_learned_from_its_usage(ratio: float, sizes: list[int]) -> None:
    tokens = PromptTokens()
    for text_bytes in sizes:
        tokens.learn("m", PromptSize(text_bytes), max(round(text_bytes / ratio), 1))
    assert tokens.estimate("m", PromptSize(10_000)) == pytest.approx(10_000 / ratio, rel=0.15)
    assert tokens.estimate("other", PromptSize(4_000)) == 1000


def test_a_short_prompt_says_less_than_a_long_one() -> None:
    short, long = PromptTokens(), PromptTokens()
    short.learn("m", PromptSize(24), 12)
    long.learn("m", PromptSize(2400), 1200)
    assert 4.0 > short.bytes_per_token("m") > long.bytes_per_token("m") > 2.0


def test_media_parts_are_learned_apart_from_text() -> None:
    tokens = PromptTokens()
    size = PromptSize(400, media_parts=2)
    assert tokens.estimate("m", size) == 100 + 2 * MEDIA_PART_TOKENS
    for _ in range(200):
        tokens.learn("m", size, 100 + 2 * 1500)
    assert tokens.estimate("m", size) == pytest.approx(3100, rel=0.02)
    assert tokens.bytes_per_token("m") == 4.0


@pytest.mark.parametrize(
    ("size", "reported"), [(PromptSize(0), 5), (PromptSize(400), 0), (PromptSize(400), -1)]
)
def test_usage_that_fits_no_prompt_teaches_nothing(size: PromptSize, reported: int) -> None:
    tokens = PromptTokens()
    tokens.learn("m", size, reported)
    assert tokens.bytes_per_token("m") == 4.0
    assert repr(tokens) == "<PromptTokens [0 models]>"


# --- streams ---------------------------------------------------------------------------------------------


def test_an_unknown_worker_sends_one_token_an_event() -> None:
    assert StreamTokens().estimate("m", "w", 17) == 17


def test_the_ratio_belongs_to_model_and_worker() -> None:
    tokens = StreamTokens()
    for _ in range(200):
        tokens.learn("m", "spec", 100, 320)
    assert tokens.estimate("m", "spec", 10) == pytest.approx(32, abs=1)
    assert tokens.estimate("m", "plain", 10) == 10
    assert tokens.estimate("other", "spec", 10) == 10
    tokens.forget("spec")
    assert tokens.estimate("m", "spec", 10) == 10


@given(st.lists(st.tuples(st.integers(-5, 1000), st.integers(-5, 5000)), max_size=50), st.integers(0, 10**6))
def test_an_estimate_of_a_stream_is_never_negative(streams: list[tuple[int, int]], events: int) -> None:
    tokens = StreamTokens()
    for content_events, generated in streams:
        tokens.learn("m", "w", content_events, generated)
    assert tokens.estimate("m", "w", events) >= 0
    assert tokens.estimate("m", "w", 0) == 0


# --- outputs ---------------------------------------------------------------------------------------------


@given(st.none() | st.integers(1, 10**6), st.none() | st.integers(1, 10**6), st.booleans(), SAMPLES)
def test_an_expectation_keeps_the_bounds_of_the_request(
    max_tokens: int | None, min_tokens: int | None, ignore_eos: bool, seen: list[float]
) -> None:
    outputs = OutputTokens()
    for length in seen:
        outputs.learn("m", round(length))
    expected = outputs.expected("m", max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=ignore_eos)
    assert expected >= 1
    assert max_tokens is None or expected <= max_tokens
    assert min_tokens is None or expected >= min(min_tokens, max_tokens or min_tokens)


def test_the_length_is_known_when_the_end_of_text_is_ignored() -> None:
    assert OutputTokens().expected("m", max_tokens=900, ignore_eos=True) == 900
    assert OutputTokens().expected("m", max_tokens=None, ignore_eos=True) == OUTPUT_TOKENS


def test_lengths_of_a_model_are_learned() -> None:
    outputs = OutputTokens()
    for _ in range(200):
        outputs.learn("m", 1500)
    assert outputs.expected("m", max_tokens=None) == pytest.approx(1500, rel=0.02)
    assert outputs.expected("m", max_tokens=64) == 64
    assert outputs.expected("other", max_tokens=None) == OUTPUT_TOKENS
    assert repr(outputs) == "<OutputTokens [1 models]>"
