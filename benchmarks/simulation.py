"""What a simulated token and a simulated request cost: CPU time of one process, from making the load to the
figures.

Token-bound workloads have long answers and many slots, so decode steps decide; request-bound ones have short
answers, so the way of a request through pool, policy and engine does. Other programs only ever add time, so
the quietest of several passes is shown. Run with `python -m benchmarks.simulation`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from msgspec import structs

from benchmarks.verdict import Verdict, print_verdicts
from router.policies import POLICIES
from router.studies.compare import Plan, Task, judged, run
from router.studies.setups import SETUPS

_PASSES = 3
_SEEDS, _SIZE = 3, 2_000
"""Of the comparison that the command makes by default."""
_COMPARED = "toolbench"
_TOKEN_US = {8: 1.0, 256: 1 / 0.3}
"""1,000,000 and 300,000 tokens a second of one core, by number of workers with 64 slots each."""
_REQUEST_MS = 1 / 1.5
"""1,500 requests a second of one core."""
_COMPARISON_S = 240.0
"""Two minutes on two cores."""


class Course(NamedTuple):
    """One run."""

    workload: str
    policy: str
    calls: int


class Cost(NamedTuple):
    """Of one run."""

    cpu_s: float
    requests: int
    tokens: int


TOKEN_BOUND = {
    8: Course("balanceroute_azure", "least_tokens", 1_500),
    256: Course("balanceroute_azure", "least_tokens", 5_000),
}
REQUEST_BOUND = (
    Course("toolbench", "round_robin", 1_000),
    Course("toolbench", "cache_aware", 1_000),
    Course("toolbench", "preble", 1_000),
    Course("toolbench", "joint", 1_000),
    Course("embodied_agent", "joint", 1_000),
    Course("video_qa", "joint", 500),
    Course("long_document", "joint", 400),
    Course("chat_short", "joint", 500),
    Course("long_prefill", "joint", 300),
    Course("mixed_bursty", "joint", 400),
    Course("agents", "joint", 800),
)


def task_of(course: Course, workers: int | None = None) -> Task:
    """The run, at the rate of its setup."""
    plan = Plan(
        policies=[(course.policy, {})],
        workloads=[course.workload],
        seeds=1,
        calls=course.calls,
        workers=[] if workers is None else [workers],
    )
    return plan.tasks()[0]


def cost(task: Task) -> Cost:
    """CPU time of a run as a comparison makes it."""
    began = time.process_time()
    result = run(task)
    judged(task, result, SETUPS[task.setup].targets)
    cpu_s = time.process_time() - began
    return Cost(cpu_s, len(result.calls), sum(call.tokens for call in result.calls))


def quietest(task: Task, passes: int = _PASSES) -> Cost:
    """The cheapest of several equal runs."""
    return min((cost(task) for _ in range(passes)), key=lambda each: each.cpu_s)


def tokens(*, quick: bool) -> list[Verdict]:
    """What a token costs, by size of the fleet."""
    found = []
    for workers, course in TOKEN_BOUND.items():
        if quick and workers > 8:
            continue
        spent = quietest(_short(task_of(course, workers), quick=quick), 1 if workers > 8 else _PASSES)
        name = f"token of {course.workload}, {course.policy}, {workers} workers"
        found.append(Verdict(name, spent.cpu_s / spent.tokens * 1e6, "µs", _TOKEN_US[workers]))
    return found


def requests(*, quick: bool) -> list[Verdict]:
    """What a request costs, by workload and policy."""
    found = []
    for course in REQUEST_BOUND:
        spent = quietest(_short(task_of(course), quick=quick), 1 if quick else _PASSES)
        name = f"request of {course.workload}, {course.policy}"
        found.append(Verdict(name, spent.cpu_s / spent.requests * 1e3, "ms", _REQUEST_MS))
    return found


def comparison(*, quick: bool) -> Verdict:
    """What all policies together cost on one workload: each is run once with a part of the calls, and time
    grows as their number."""
    calls = 20 if quick else _SIZE // 5
    courses = [Course(_COMPARED, policy, calls) for policy in POLICIES]
    share = calls / (_SIZE * _SEEDS)
    cpu_s = sum(cost(task_of(course)).cpu_s for course in courses) / share
    name = f"all {len(courses)} policies, {_COMPARED}, {_SEEDS} x {_SIZE} calls, on one core"
    return Verdict(name, cpu_s, "s", _COMPARISON_S)


def _short(task: Task, *, quick: bool) -> Task:
    return structs.replace(task, calls=50) if quick else task


def measure(*, quick: bool = False) -> list[Verdict]:
    return [*tokens(quick=quick), *requests(quick=quick), comparison(quick=quick)]


if __name__ == "__main__":
    print_verdicts(measure())
