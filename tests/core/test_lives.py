"""Laws of incarnations: what scrapes say of the process behind a URL."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.engine_stats import EngineStats
from router.core.lives import Lives, Verdict

SAME, RESTARTED, SHARED = Verdict.SAME, Verdict.RESTARTED, Verdict.SHARED


def starts(*values: float | None) -> list[Verdict]:
    lives = Lives()
    return [lives.see(EngineStats(taken=0.0, process_start=value)) for value in values]


def counters(*values: float | None) -> list[Verdict]:
    lives = Lives()
    return [lives.see(EngineStats(taken=0.0, generation_tokens=value)) for value in values]


def test_the_first_scrape_is_no_restart() -> None:
    assert starts(100.0) == [SAME]
    assert counters(100.0) == [SAME]
    assert starts(None) == [SAME]


def test_a_new_start_time_is_a_restart() -> None:
    assert starts(100.0, 100.0, 250.0, 250.0, 300.0) == [SAME, SAME, RESTARTED, SAME, RESTARTED]


def test_a_start_time_that_comes_back_means_several_processes() -> None:
    assert starts(100.0, 200.0, 100.0) == [SAME, RESTARTED, SHARED]


def test_many_processes_in_turn_are_noticed_too() -> None:
    assert starts(1.0, 2.0, 3.0, 4.0, 1.0)[-1] is SHARED


def test_the_start_time_decides_where_there_is_one() -> None:
    lives = Lives()
    assert lives.see(EngineStats(taken=0.0, process_start=1.0, generation_tokens=500.0)) is SAME
    assert lives.see(EngineStats(taken=1.0, process_start=1.0, generation_tokens=0.0)) is SAME


def test_a_counter_that_fell_is_a_restart() -> None:
    assert counters(100.0, 150.0, 150.0, 3.0, 9.0) == [SAME, SAME, SAME, RESTARTED, SAME]


def test_a_counter_that_falls_again_and_again_means_several_processes() -> None:
    assert counters(100.0, 5.0, 110.0, 6.0, 120.0, 7.0) == [SAME, RESTARTED, SAME, RESTARTED, SAME, SHARED]


def test_restarts_that_are_far_apart_are_restarts() -> None:
    day = [float(tokens) for tokens in range(1, 40)]
    verdicts = counters(*day, *day, *day, *day)
    assert verdicts.count(RESTARTED) == 3
    assert SHARED not in verdicts


def test_a_scrape_without_the_counter_says_nothing() -> None:
    assert counters(100.0, None, 120.0, None, 10.0) == [SAME, SAME, SAME, SAME, RESTARTED]


@given(st.lists(st.floats(0, 1e9), max_size=100))
def test_counters_that_only_grow_are_one_life(values: list[float]) -> None:
    assert set(counters(*sorted(values))) <= {SAME}


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=300))
def test_memory_of_a_worker_is_bounded(values: list[float | None]) -> None:
    lives = Lives()
    for value in values:
        lives.see(EngineStats(taken=0.0, process_start=value, generation_tokens=value))
    assert len(lives.past_starts) <= 8
    assert len(lives.regressions) <= 20
