"""Laws of what is measured of the simulation: whole runs, by what they made."""

from __future__ import annotations

from benchmarks.simulation import TOKEN_BOUND, Course, cost, task_of
from router.studies.compare import calls_of


def test_every_token_that_was_written_is_counted() -> None:
    task = task_of(Course("toolbench", "round_robin", 12))
    spent = cost(task)
    assert spent.requests == 12
    assert spent.tokens == sum(call.output_tokens for call in calls_of(task))
    assert spent.cpu_s > 0


def test_a_fleet_of_another_size_gets_a_rate_in_proportion() -> None:
    course = TOKEN_BOUND[8]
    own, other = task_of(course), task_of(course, 256)
    assert own.rate is not None
    assert other.rate == own.rate * 32
