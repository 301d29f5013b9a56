"""Laws of the drift between a ledger and its engine: what counts, what is smoothed, what is foreign."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.drift import Balance, Drift
from router.core.engine_stats import EngineStats
from tests.core.fleet_examples import pool
from tests.core.pair_examples import couple

CAPACITY = 10_000


def scrape(taken: float, used: int | None, *, block_size: int | None = 16) -> EngineStats:
    usage = None if used is None else used / CAPACITY
    return EngineStats(taken=taken, kv_usage=usage, block_size=block_size)


def balance(
    tokens: int, *, sequences: int = 0, capacity: int | None = CAPACITY, stranded: int = 0
) -> Balance:
    return Balance(tokens, stranded, sequences, capacity)


def compared(*scrapes: tuple[int, int], sequences: int = 0) -> Drift:
    """A drift after scrapes (used, ledger), one a second."""
    drift = Drift()
    for second, (used, ledger) in enumerate(scrapes):
        drift.observe(scrape(float(second), used), balance(ledger, sequences=sequences))
    return drift


def test_drift_is_what_the_engine_holds_more_than_the_ledger() -> None:
    assert compared((1200, 1000), (1200, 1000)).last_tokens == 200
    assert compared((900, 1000), (900, 1000)).last_tokens == -100


def test_nothing_is_known_before_two_scrapes_could_be_compared() -> None:
    drift = Drift()
    assert not drift.observe(scrape(1.0, 500), balance(100))
    assert (drift.last_tokens, drift.smoothed_tokens, drift.unexplained_tokens) == (None, None, 0)
    assert repr(drift) == "<Drift [not compared yet]>"
    assert drift.observe(scrape(2.0, 500), balance(100))
    assert repr(drift) == "<Drift [+400 tokens | +400 smoothed | 0 unexplained]>"


def test_kv_held_for_hand_overs_is_part_of_the_ledger() -> None:
    drift = Drift()
    for second in (1.0, 2.0):
        drift.observe(scrape(second, 1000), balance(600, stranded=400))
    assert drift.last_tokens == 0


@pytest.mark.parametrize(("moved_tokens", "counts"), [(500, True), (501, False), (-501, False)])
def test_a_scrape_after_a_large_change_of_the_ledger_is_left_out(moved_tokens: int, counts: bool) -> None:
    drift = compared((2000, 2000), (2000, 2000))
    assert drift.observe(scrape(2.0, 2000), balance(2000 + moved_tokens)) is counts
    assert drift.last_tokens == (-moved_tokens if counts else 0)
    assert drift.observe(scrape(3.0, 2000 + moved_tokens), balance(2000 + moved_tokens))
    assert drift.last_tokens == 0


@pytest.mark.parametrize(
    ("stats", "ledger"),
    [
        (scrape(5.0, None), balance(100)),
        (scrape(5.0, 100), balance(100, capacity=None)),
        (scrape(1.0, 100), balance(100)),
        (scrape(0.5, 100), balance(100)),
    ],
)
def test_a_scrape_that_says_nothing_new_of_kv_moves_nothing(stats: EngineStats, ledger: Balance) -> None:
    drift = compared((150, 100), (150, 100))
    before = repr(drift)
    assert not drift.observe(stats, ledger)
    assert repr(drift) == before


def test_a_smoothed_drift_follows_with_a_time_constant_of_ten_seconds_whatever_the_period() -> None:
    smoothed = []
    for period_s in (0.25, 1.0):
        drift = compared((1000, 1000), (1000, 1000))
        for step in range(1, int(10 / period_s) + 1):
            drift.observe(scrape(1.0 + step * period_s, 1100), balance(1000))
        smoothed.append(drift.smoothed_tokens)
    assert smoothed == [pytest.approx(100 * (1 - math.exp(-1)))] * 2


def test_foreign_load_is_what_three_scrapes_in_a_row_cannot_explain() -> None:
    assert compared((3000, 1000), (3000, 1000), (3000, 1000)).unexplained_tokens == 0
    assert compared(*[(3000, 1000)] * 4).unexplained_tokens == 2000
    assert compared(*[(3000, 1000)] * 3, (1700, 1000)).unexplained_tokens == 700, "the least of the three"
    assert compared(*[(3000, 1000)] * 4, (900, 1000)).unexplained_tokens == 0


def test_a_block_per_sequence_that_is_not_full_explains_itself() -> None:
    assert compared(*[(1160, 1000)] * 4, sequences=10).unexplained_tokens == 0
    assert compared(*[(1161, 1000)] * 4, sequences=10).unexplained_tokens == 1


def test_an_engine_that_tells_its_block_size_is_believed() -> None:
    drift = Drift()
    for second in range(4):
        drift.observe(scrape(float(second), 1320, block_size=32), balance(1000, sequences=10))
    assert drift.unexplained_tokens == 0


def test_idle_and_without_foreign_load_everything_is_exactly_zero_at_once() -> None:
    drift = compared(*[(3000, 1000)] * 5)
    assert drift.observe(scrape(5.0, 0), balance(0))
    assert (drift.last_tokens, drift.smoothed_tokens, drift.unexplained_tokens) == (0, 0.0, 0)


def test_foreign_load_at_an_idle_worker_is_seen() -> None:
    assert compared(*[(400, 0)] * 4).unexplained_tokens == 400


@given(
    st.lists(st.tuples(st.integers(0, CAPACITY), st.integers(0, CAPACITY), st.integers(0, 50)), max_size=30)
)
def test_what_is_unexplained_is_never_below_zero_nor_more_than_the_engine_holds(
    scrapes: list[tuple[int, int, int]],
) -> None:
    drift = Drift()
    for second, (used, ledger, sequences) in enumerate(scrapes):
        counted = drift.observe(scrape(float(second), used), balance(ledger, sequences=sequences))
        assert drift.unexplained_tokens >= 0
        if counted:
            assert drift.last_tokens == used - ledger
            assert drift.unexplained_tokens <= used
    for second in range(100, 102):
        drift.observe(scrape(float(second), 0), balance(0))
    assert (drift.last_tokens, drift.smoothed_tokens, drift.unexplained_tokens) == (0, 0.0, 0)


@given(st.lists(st.integers(1000, 1100), min_size=3, max_size=40))
def test_a_smoothed_drift_stays_between_the_drifts_that_were_seen(used: list[int]) -> None:
    drift, seen = Drift(), []
    for second, tokens in enumerate(used):
        if drift.observe(scrape(float(second), tokens), balance(1000)):
            seen.append(tokens - 1000)
            assert drift.smoothed_tokens is not None
            assert min(seen) - 1e-9 <= drift.smoothed_tokens <= max(seen) + 1e-9


def test_somebody_elses_load_is_forgotten_when_nobody_speaks_of_it_any_more() -> None:
    made = pool("a")
    worker = made.roster.workers["a"]
    worker.configured_kv_tokens = 1000
    for second in range(4):
        made.observe("a", EngineStats(taken=float(second), kv_usage=0.5), float(second))
    made.expire(18.0)
    assert worker.kv_tokens == 500
    made.expire(18.1)
    assert worker.kv_tokens == 0
    made.observe("a", EngineStats(taken=19.0, kv_usage=0.5), 19.0)
    assert worker.kv_tokens == 0, "one scrape is not enough to believe it again"


def test_kv_that_nobody_will_fetch_is_no_drift_of_its_producer() -> None:
    made = couple("p", "d", kv_tokens=1000)
    made.partners.budget.strand("p", 0, 300, until=60.0)
    made.prefilled(0.0, prompt_tokens=199)
    for second in range(1, 6):
        made.prefill.observe("p", EngineStats(taken=float(second), kv_usage=0.5), float(second))
    drift = made.producer("p").drift
    assert (drift.last_tokens, drift.unexplained_tokens) == (0, 0)
    assert made.partners.budget.held_tokens(made.producer("p"), 5.0) == 500
