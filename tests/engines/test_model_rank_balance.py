"""Who takes a request that names no rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engines.model.rank_balance import SNAPSHOT_S, LeastLoaded, RoundRobin


@dataclass
class Load:
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


def test_idle_ranks_take_turns() -> None:
    balance = LeastLoaded([Load(), Load(), Load()])
    in_flight = [0, 0, 0]
    order = []
    for _ in range(6):
        rank = balance.pick(in_flight, 0.0)
        in_flight[rank] += 1
        order.append(rank)
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_tie_favours_nobody() -> None:
    balance = LeastLoaded([Load(), Load(), Load()])
    # Requests that end at once: every pick is a tie, but for what the snapshot does not know yet.
    assert Counter(balance.pick([0, 0, 0], SNAPSHOT_S * turn) for turn in range(30)) == {0: 10, 1: 10, 2: 10}


def test_the_least_loaded_takes_it() -> None:
    assert LeastLoaded([Load(running=5), Load(running=2), Load(running=9)]).pick([0, 0, 0], 0.0) == 1


def test_what_was_given_counts_before_the_rank_shows_it() -> None:
    assert LeastLoaded([Load(running=3), Load()]).pick([3, 4], 0.0) == 0


def test_a_waiting_request_weighs_more_the_fuller_the_cache() -> None:
    full, busy = Load(running=4, waiting=4, kv_usage=1.0), Load(running=19)
    assert LeastLoaded([full, busy]).pick([0, 0], 0.0) == 1  # 8 + 4 · 3 = 20 against 19
    roomy = Load(running=4, waiting=4, kv_usage=0.5)
    assert LeastLoaded([roomy, busy]).pick([0, 0], 0.0) == 0  # 8 against 19


def test_ranks_are_seen_as_they_were_a_tenth_of_a_second_ago() -> None:
    first, second = Load(), Load(running=1)
    balance = LeastLoaded([first, second])
    assert balance.pick([0, 0], 0.0) == 0
    first.running = 50
    assert balance.pick([0, 0], SNAPSHOT_S / 2) == 1  # a tie of 1 and 1, and the scan begins at 1
    assert balance.pick([0, 0], SNAPSHOT_S / 2) == 0  # 1 against 2: the 50 are not seen yet
    assert balance.pick([0, 0], SNAPSHOT_S) == 1


@given(st.integers(1, 8), st.integers(0, 50))
def test_round_robin_asks_nobody(ranks: int, requests: int) -> None:
    balance = RoundRobin([Load(running=index * 100) for index in range(ranks)])
    picks = [balance.pick([0] * ranks, 0.0) for _ in range(requests)]
    assert picks == [turn % ranks for turn in range(requests)]
