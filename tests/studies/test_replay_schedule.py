"""Laws of the schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.replay.schedule import Pace, Planned, plan, remaining
from router.studies.traces import Trace, TraceEntry

arrivals = st.lists(st.floats(0, 1_000), min_size=1, max_size=40).map(sorted)


def trace_of(times: list[float]) -> Trace:
    return Trace(
        format="made",
        name="made",
        digest="",
        entries=[
            TraceEntry(arrival_s=at, prompt_tokens=1, output_tokens=1, line=line)
            for line, at in enumerate(times, 1)
        ],
    )


def lines(planned: list[Planned]) -> list[int]:
    return [one.entry.line for one in planned]


@given(arrivals, st.floats(0.01, 100))
def test_speed_divides_every_arrival(times: list[float], speed: float) -> None:
    planned = plan(trace_of(times), Pace(speed=speed), seed=0)
    assert [one.due_s for one in planned] == pytest.approx([at / speed for at in times])
    assert lines(planned) == list(range(1, len(times) + 1))


@given(arrivals, st.floats(0, 10), st.integers(0, 100))
def test_jitter_moves_each_request_later_by_less_than_itself(
    times: list[float], jitter_s: float, seed: int
) -> None:
    planned = plan(trace_of(times), Pace(jitter_s=jitter_s), seed)
    assert all(0 <= one.due_s - one.entry.arrival_s <= jitter_s for one in planned)
    assert [one.due_s for one in planned] == sorted(one.due_s for one in planned)
    assert sorted(lines(planned)) == list(range(1, len(times) + 1))


@given(arrivals, st.integers(0, 100))
def test_the_same_seed_gives_the_same_schedule(times: list[float], seed: int) -> None:
    pace = Pace(speed=2.0, jitter_s=3.0)
    assert plan(trace_of(times), pace, seed) == plan(trace_of(times), pace, seed)


def test_another_seed_gives_another_jitter() -> None:
    pace, trace = Pace(jitter_s=3.0), trace_of([0.0] * 20)
    assert lines(plan(trace, pace, 1)) != lines(plan(trace, pace, 2))


def test_duration_keeps_what_is_due_within_it() -> None:
    planned = plan(trace_of([0.0, 4.0, 6.0, 9.0]), Pace(speed=2.0, duration_s=3.0), seed=0)
    assert lines(planned) == [1, 2, 3]


def test_what_remains_begins_at_once_and_keeps_its_distances() -> None:
    planned = plan(trace_of([0.0, 1.0, 5.0, 7.0]), Pace(), seed=0)
    rest = remaining(planned, frozenset({1, 3}))
    assert [(one.entry.line, one.due_s) for one in rest] == [(2, 0.0), (4, 6.0)]


def test_nothing_done_changes_nothing_and_all_done_leaves_nothing() -> None:
    planned = plan(trace_of([2.0, 3.0]), Pace(), seed=0)
    assert remaining(planned, frozenset()) == planned
    assert remaining(planned, frozenset({1, 2})) == []


@pytest.mark.parametrize(
    ("pace", "said"),
    [
        ({"speed": 0.0}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"jitter_s": -1.0}, "jitter"),
        ({"duration_s": 0.0}, "duration"),
    ],
)
def test_a_pace_that_cannot_be_is_refused(pace: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pace(**pace)
