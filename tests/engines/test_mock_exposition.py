"""Families of several ranks, printed as one."""

from __future__ import annotations

import pytest

from engines.mock.account import Histogram
from engines.mock.exposition import Counter, Gauge, HistogramFamily, Joined, Series


def counter(rank: str, value: float) -> Counter:
    return Counter("m", "Text.", [Series({"rank": rank}, lambda: value)], 7.0)


def test_a_header_is_printed_once_and_the_samples_of_all_below_it() -> None:
    assert list(Joined([counter("0", 3.0), counter("1", 4.0)]).lines()) == [
        "# HELP m_total Text.",
        "# TYPE m_total counter",
        'm_total{rank="0"} 3.0',
        'm_total{rank="1"} 4.0',
        "# HELP m_created Text.",
        "# TYPE m_created gauge",
        'm_created{rank="0"} 7.0',
        'm_created{rank="1"} 7.0',
    ]


def test_what_all_say_alike_is_said_once() -> None:
    gauge = Gauge("m", "Text.", [Series({"of": "all"}, lambda: 2.0)])
    assert list(Joined([gauge, gauge]).lines()) == list(gauge.lines())


def test_histograms_keep_their_buckets_together() -> None:
    ranks = [HistogramFamily("h", "Text.", {"rank": rank}, Histogram((1.0,)), 7.0) for rank in ("0", "1")]
    lines = list(Joined(ranks).lines())
    assert lines[2:10] == [*ranks[0].samples(), *ranks[1].samples()]
    assert [line for line in lines if line.startswith("#")] == [
        line for line in ranks[0].lines() if line.startswith("#")
    ]


def test_one_family_joined_is_itself() -> None:
    assert list(Joined([counter("0", 3.0)]).lines()) == list(counter("0", 3.0).lines())


def test_families_that_differ_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(Joined([counter("0", 1.0), Gauge("m", "Text.", [])]).lines())
