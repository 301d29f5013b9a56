"""Laws of the line of waiting requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.budget import Budget
from router.core.errors import InternalError, QueueFull
from router.core.queue import UNKNOWN, Queue
from tests.core.fleet_examples import request


def queue(per_lane: int = 2, bytes_: int = 100) -> tuple[Queue, Budget]:
    budget = Budget("queued bytes", bytes_)
    return Queue(per_lane, budget), budget


def test_a_lane_is_full_at_its_bound_and_the_next_is_not() -> None:
    made, _ = queue()
    for _ in range(2):
        assert not made.full("m")
        made.put(request(), "m", 1.0)
    assert made.full("m")
    assert not made.full(UNKNOWN)
    assert repr(made) == "<Queue [2 waiting in 1 lanes of 2]>"


def test_requests_wait_in_the_order_in_which_they_came() -> None:
    made, _ = queue(9)
    for name in ("c", "a", "b"):
        made.put(request(name), name, 1.0)
    assert [waiting.request.id for waiting in made] == ["c", "a", "b"]


def test_too_many_bytes_are_refused_and_leave_no_trace() -> None:
    made, budget = queue()
    with pytest.raises(QueueFull):
        made.put(request(body_bytes=101), "m", 1.0)
    assert (len(made), budget.used, made._depths) == (0, 0, {})


def test_one_id_waits_once() -> None:
    made, budget = queue()
    made.put(request("x", body_bytes=7), "m", 1.0)
    with pytest.raises(InternalError, match="twice"):
        made.put(request("x", body_bytes=7), "m", 1.0)
    assert (len(made), budget.used) == (1, 7)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("mn"), st.integers(0, 60))))
def test_bytes_and_depths_are_those_of_the_waiting(moves: list[tuple[bool, int, str, int]]) -> None:
    made, budget = queue(9)
    inside: dict[str, tuple[str, int]] = {}
    for putting, number, lane, size in moves:
        name = str(number)
        if not putting:
            assert made.take(name) is (inside.pop(name, None) is not None)
        elif name not in inside:
            try:
                made.put(request(name, body_bytes=size), lane, 1.0)
            except QueueFull:
                assert budget.used + size > 100
            else:
                inside[name] = (lane, size)
        lanes = [lane for lane, _ in inside.values()]
        assert made._depths == {lane: lanes.count(lane) for lane in set(lanes)}
        assert budget.used == sum(size for _, size in inside.values())
        assert len(made) == len(inside)
