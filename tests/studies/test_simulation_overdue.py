"""Deadlines that are equally long: each is met at its time, and those that are through cost nothing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from router.studies.simulation.overdue import Overdue
from router.studies.simulation.timeline import Timeline


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_whoever_is_not_through_is_late_at_its_time_and_nobody_else_is(
    arrivals: list[tuple[float, bool]],
) -> None:
    timeline, late = Timeline(), list[tuple[float, int]]()
    through = {number for number, (_, soon) in enumerate(arrivals) if soon}
    overdue = Overdue[int](
        timeline, 5.0, lambda one: one in through, lambda one: late.append((timeline.now, one))
    )
    for number, (at, _) in enumerate(arrivals):
        timeline.at(at, lambda number=number: overdue.add(number))  # type: ignore[misc]  # bound at once
    while timeline.step():
        pass
    expected = sorted((at + 5.0, number) for number, (at, _) in enumerate(arrivals) if number not in through)
    assert sorted(late) == expected


def test_an_infinite_time_is_not_watched() -> None:
    timeline = Timeline()
    overdue = Overdue[int](timeline, math.inf, lambda one: False, lambda one: None)
    overdue.add(1)
    assert timeline.next_at is None


def test_those_that_are_through_are_forgotten() -> None:
    timeline = Timeline()
    overdue = Overdue[int](timeline, 600.0, lambda one: True, lambda one: None)
    for one in range(1_000):
        overdue.add(one)
    assert repr(overdue) == "<Overdue after 600 s [1 due]>"
