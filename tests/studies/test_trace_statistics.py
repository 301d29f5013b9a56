"""Laws of the figures that describe a trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.traces import Trace, TraceEntry, statistics
from router.studies.traces.trace import distribution, percentile

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


def naive_percentile(numbers: list[float], share: float) -> float:
    """By the textbook: where the share falls on the line of ranks, weigh the two neighbours."""
    ordered = sorted(numbers)
    rank = share * (len(ordered) - 1)
    lower, upper = math.floor(rank), math.ceil(rank)
    weight = rank - lower
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


@given(values, st.floats(0, 1))
def test_percentiles_agree_with_a_naive_count(numbers: list[float], share: float) -> None:
    found = percentile(sorted(numbers), share)
    assert found == pytest.approx(naive_percentile(numbers, share), rel=1e-9, abs=1e-6)


@given(values)
def test_a_distribution_is_ordered_and_within_its_values(numbers: list[float]) -> None:
    found = distribution(numbers)
    assert found is not None
    assert min(numbers) <= found.p50 + 1e-6
    assert found.p50 <= found.p90 + 1e-6
    assert found.p90 <= found.p99 + 1e-6
    assert found.p99 <= found.max + 1e-6
    assert found.mean == pytest.approx(sum(numbers) / len(numbers), rel=1e-9, abs=1e-6)
    assert found.count == len(numbers)


def test_nothing_has_no_distribution_and_no_percentile() -> None:
    assert distribution([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def trace_of(*entries: tuple[float, int, tuple[str, ...]], block_tokens: int = 0) -> Trace:
    return Trace(
        format="made",
        name="made",
        digest="",
        entries=[
            TraceEntry(arrival_s=at, prompt_tokens=tokens, output_tokens=1, blocks=blocks, line=line)
            for line, (at, tokens, blocks) in enumerate(entries, 1)
        ],
        block_tokens=block_tokens,
    )


def test_reuse_counts_the_leading_blocks_that_came_before() -> None:
    trace = trace_of(
        (0, 20, ("a", "b")),
        (1, 20, ("a", "c")),  # 10 of 20
        (2, 15, ("a", "b")),  # all 15: the second block is half full
        (3, 20, ("x", "a")),  # "a" is known, but not at the start
        block_tokens=10,
    )
    assert statistics(trace).reuse_share == pytest.approx(25 / 75)


def test_reuse_is_unknown_without_blocks() -> None:
    assert statistics(trace_of((0, 5, ()))).reuse_share is None


def test_even_gaps_have_no_variation_and_a_batch_has_much() -> None:
    even = statistics(trace_of(*[(float(at), 5, ()) for at in range(10)]))
    assert even.gap_cv == 0
    assert even.rate_per_s == pytest.approx(10 / 9)
    batched = statistics(trace_of(*[(3.0 * (at // 5), 5, ()) for at in range(20)]))
    assert batched.gap_cv is not None
    assert batched.gap_cv > 1


def test_one_moment_has_no_rate_and_no_variation() -> None:
    figures = statistics(trace_of((0, 5, ()), (0, 5, ()), (0, 5, ())))
    assert (figures.rate_per_s, figures.gap_cv, figures.duration_s) == (None, None, 0.0)
