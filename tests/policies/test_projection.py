"""Loads ahead, one resident at a time and all together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.forecasts import Steps
from router.core.lease import Lease
from router.policies.barrier import Unit
from router.policies.projection import project
from tests.policies.examples import request, worker
from tests.policies.rank_examples import FrozenRank, rank

H = 10
TOKENS = Unit(1.0)


def lease(number: int, prompt: int, written: int, width: int = 1) -> Lease:
    one = request(number, prompt_tokens=prompt, sequences=width)
    return Lease(one, "w", 0, 0.0, prompt, 100, generated_tokens=written)


def holding(*leases: Lease) -> FrozenRank:
    return rank(
        residents=leases,
        kv_tokens=sum(one.kv_tokens for one in leases),
        sequences=sum(one.request.sequences for one in leases),
        in_flight=len(leases),
    )


def test_a_resident_grows_until_it_goes() -> None:
    tables: dict[str, Steps] = {"r1": (b"", 3, 1)}
    assert project(holding(lease(1, 100, 5)), tables, H + 1, TOKENS) == [105, 106, 107, *[0] * 8]


def test_who_stays_grows_to_the_end() -> None:
    tables: dict[str, Steps] = {"r1": (b"", H + 1, 1)}
    expected = [105 + h for h in range(H + 1)]
    assert project(holding(lease(1, 100, 5)), tables, H + 1, TOKENS) == expected
    assert project(holding(lease(2, 100, 5)), tables, H + 1, TOKENS) == expected, "nothing is known of it"


def test_a_worker_that_names_nobody_keeps_all() -> None:
    view = worker("w", kv_tokens=500, sequences=3, in_flight=2)
    assert project(view, {}, 4, TOKENS) == [500, 503, 506, 509]


def test_each_sequence_grows_by_itself_and_is_looked_up_by_its_own_length() -> None:
    tables: dict[str, Steps] = {"r1": (bytes([9, 2]), 1, 3)}
    loads = project(holding(lease(1, 100, 60, width=3)), tables, 4, TOKENS)  # 20 each: the second entry
    assert loads == [160, 163, 0, 0]


def test_seconds_count_the_sequences_that_are_left() -> None:
    tables: dict[str, Steps] = {"r1": (b"", 1, 1), "r2": (b"", 9, 1)}
    unit = Unit(0.5, tokens_per_sequence=10, base=7.0)
    loads = project(holding(lease(1, 100, 0), lease(2, 40, 0)), tables, 3, unit)
    assert loads == [7 + 0.5 * (140 + 20), 7 + 0.5 * (41 + 10), 7 + 0.5 * (42 + 10)]


@given(
    st.lists(
        st.tuples(st.integers(0, 9_000), st.integers(0, 400), st.integers(1, 3), st.integers(1, H + 1)),
        max_size=20,
    ),
    st.integers(1, H + 1),
)
def test_all_together_are_the_sum_of_each(people: list[tuple[int, int, int, int]], count: int) -> None:
    leases = [lease(n, prompt, written, width) for n, (prompt, written, width, _) in enumerate(people)]
    tables: dict[str, Steps] = {f"r{n}": (b"", steps, width) for n, (_, _, width, steps) in enumerate(people)}
    expected = [
        sum(prompt + written + h * width for prompt, written, width, steps in people if h < steps)
        for h in range(count)
    ]
    assert project(holding(*leases), tables, count, TOKENS) == pytest.approx(expected)


def test_a_lease_that_says_itself_what_is_ahead_needs_no_table() -> None:
    told = lease(1, 100, 5)
    told.ahead = (b"", 3, 1)
    assert project(holding(told), {}, 5, TOKENS) == [105, 106, 107, 0, 0]
