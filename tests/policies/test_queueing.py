"""The policies as queueing disciplines: 16 first-come-first-served servers at 0.9 load, unit mean service.

The means to reproduce are those of 120,000 jobs: random 10.9, round robin 5.55, two choices 2.81, fewest
requests 1.58, least work 1.41; with 5 % of jobs 21 times as long, fewest requests 2.4 against least work 2.0;
with counts 4 service times old, fewest requests 13.2 and two choices 4.0. The bands allow for fewer jobs.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable

import pytest

from router.core.request import Request
from router.core.worker import StepModel
from tests.policies.examples import Server, place, policy, request

SERVERS, LOAD, JOBS, WARM_UP = 16, 0.9, 16_000, 2_000
TOKENS_PER_SERVICE = 10_000
STEP = StepModel(0.0, 1 / TOKENS_PER_SERVICE, 0.0, 0.0, 0.0)

Size = Callable[[random.Random], float]


def exponential(source: random.Random) -> float:
    return source.expovariate(1.0)


def heavy_tailed(source: random.Random) -> float:
    return 10.5 if source.random() < 0.05 else 0.5


class Queue:
    """One server, and what the router believes of it."""

    def __init__(self, index: int) -> None:
        self.view = Server(name=f"server-{index}", step=STEP)
        self.free_at = 0.0
        self.ends: deque[float] = deque()

    def observe(self, now: float) -> None:
        ends, view = self.ends, self.view
        while ends and ends[0] <= now:
            ends.popleft()
        view.in_flight = len(ends)
        view.queued_tokens = round((self.free_at - now) * TOKENS_PER_SERVICE) if ends else 0

    def serve(self, now: float, size: float) -> float:
        self.free_at = max(self.free_at, now) + size
        self.ends.append(self.free_at)
        return self.free_at - now


@functools.cache
def jobs(size: Size) -> list[tuple[float, float, Request]]:
    """Arrival, service time and request of each job: the same for every policy."""
    source, now, made = random.Random(20), 0.0, []
    for sequence in range(JOBS):
        now += source.expovariate(LOAD * SERVERS)
        length = size(source)
        made.append((now, length, request(sequence, prompt_tokens=round(length * TOKENS_PER_SERVICE))))
    return made


@functools.cache
def responses(name: str, size: Size = exponential, age: float = 0.0) -> tuple[float, float]:
    """Mean and 99th percentile of the response; beliefs are refreshed every `age` service times."""
    chooser = policy(name, 3)
    queues = [Queue(index) for index in range(SERVERS)]
    by_name = {q.view.name: q for q in queues}
    views = [q.view for q in queues]
    observed, times = -age, []
    for now, length, call in jobs(size):
        if now - observed >= age:
            observed = now
            for queue in queues:
                queue.observe(now)
        times.append(by_name[place(chooser, call, views)].serve(now, length))
    kept = sorted(times[WARM_UP:])
    return sum(kept) / len(kept), kept[len(kept) * 99 // 100]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("random", 7.5, 15.0),
        ("round_robin", 4.0, 7.5),
        ("power_of_two", 2.5, 3.2),
        ("least_requests", 1.45, 1.75),
        ("least_work", 1.3, 1.55),
    ],
)
def test_the_mean_response_is_within_its_band(name: str, low: float, high: float) -> None:
    assert low < responses(name)[0] < high


def test_the_more_a_policy_knows_the_shorter_the_wait() -> None:
    order = ["random", "round_robin", "power_of_two", "least_requests", "least_work"]
    means = [responses(name)[0] for name in order]
    assert means == sorted(means, reverse=True)


def test_knowing_the_work_pays_when_sizes_are_heavy_tailed() -> None:
    (by_count, count_p99), (by_work, work_p99) = (
        responses(name, heavy_tailed) for name in ("least_requests", "least_work")
    )
    assert by_work < 0.9 * by_count
    assert work_p99 < count_p99


def test_old_counts_make_the_shortest_queue_worse_than_chance() -> None:
    assert responses("least_requests", age=4.0)[0] > responses("random")[0]


def test_old_counts_hardly_hurt_two_choices() -> None:
    assert responses("power_of_two", age=4.0)[0] < 1.6 * responses("power_of_two")[0]
