"""Loads, rounds and samples: every target under every load, interleaved, so that all see the same machine.

Within a round a load goes to all targets one after another, and every other round in reverse order. The first
round warms up and is thrown away. A ratio is taken inside one round and the median of rounds is reported,
because other programs slow down a whole round rather than one target.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.client import Load, Outcome
from benchmarks.engine_bytes import Leg
from benchmarks.peers.targets import DIRECT, PLAIN, Target
from benchmarks.processes import EngineProcess, drive

_PLAIN_SHARE = 8
"""The plain proxy gets one in so many requests: it needs that many times longer for each."""


@dataclass(frozen=True, slots=True)
class Course:
    """One kind of load.

    Attributes:
        requests, quick_requests: in one measurement of a target.
        pace_ms: between the events of a stream.
        prompt_bytes, prompts: length of the messages, and how many different ones there are.
        split: of requests with two legs. Then a request is the unit, of streams too, and engines alone are
            asked for single legs.
    """

    name: str
    concurrency: int
    requests: int
    quick_requests: int
    events: int = 0
    pace_ms: float = 0.0
    prompt_bytes: int = 60
    prompts: int = 1
    split: bool = False

    def includes(self, target: Target) -> bool:
        """Whether it is run against this target: single legs are only good for one at a time."""
        return target.leg is Leg.WHOLE or self.concurrency == 1

    def units(self, outcome: Outcome) -> int:
        """What CPU is divided by."""
        return outcome.requests if self.split or not self.events else outcome.events

    def load(self, target: Target, *, quick: bool) -> Load:
        requests = self.quick_requests if quick else self.requests
        if target.name == PLAIN and not self.events:
            requests = max(requests // _PLAIN_SHARE, self.concurrency)
        return Load(
            target.port,
            self.concurrency,
            requests,
            self.events,
            self.prompt_bytes,
            self.prompts,
            leg=target.leg,
        )


ALONE = Course("1 small request at a time", concurrency=1, requests=2_000, quick_requests=400)
SMALL = Course("32 small requests at once", concurrency=32, requests=8_000, quick_requests=1_600)
PACED = Course("32 streams, an event per 10 ms", 32, requests=96, quick_requests=32, events=200, pace_ms=10)
SATURATED = Course("32 streams, as fast as read", 32, requests=640, quick_requests=128, events=200)
COURSES = (ALONE, SMALL, PACED, SATURATED)

PROMPTS = Course(
    "32 requests at once, 256 prompts of 2,000 characters",
    concurrency=32,
    requests=8_000,
    quick_requests=1_600,
    prompt_bytes=2_000,
    prompts=256,
)
"""For routers that look at prompts: with the policy that follows prefixes in all of them."""


class Sample(msgspec.Struct, frozen=True):
    """One target under one load, once. `cpu_s` is the router's, None without one; `units` see `Course`."""

    units: int
    cpu_s: float | None
    outcome: Outcome

    @property
    def cpu_us(self) -> float:
        """Router CPU of one unit, in microseconds."""
        return (self.cpu_s or 0.0) / self.units * 1e6

    @property
    def p50_s(self) -> float:
        return self.outcome.latency.p50

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.units / self.outcome.elapsed_s


Figure = Callable[[Sample], float]
Samples = dict[str, dict[str, list[Sample]]]
"""By load, then by target: one sample for each round that counts."""

Measure = Callable[[Target, Course], Sample]
"""Takes one sample. Raises RuntimeError when an answer was not as expected."""


def measure(target: Target, course: Course, *, quick: bool = False) -> Sample:
    """One measurement. Raises RuntimeError when an answer was not as expected."""
    router = target.router
    before = router.cpu_s() if router is not None else 0.0
    outcome = drive(course.load(target, quick=quick))
    cpu_s = router.cpu_s() - before if router is not None else None
    return Sample(course.units(outcome), cpu_s, outcome)


def run_rounds(
    courses: Sequence[Course],
    targets: Sequence[Target],
    engines: Sequence[EngineProcess],
    rounds: int,
    measured: Measure = measure,
) -> Samples:
    """A warm-up and `rounds` rounds of the courses, each against all targets that it includes."""
    samples: Samples = {
        course.name: {target.name: [] for target in targets if course.includes(target)} for course in courses
    }
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}" + (" (warm-up)" if number == 0 else ""), flush=True)
        order = list(targets) if number % 2 else list(reversed(targets))
        for course in courses:
            for engine in engines:
                engine.pace(course.pace_ms)
            for target in filter(course.includes, order):
                sample = measured(target, course)
                if number:
                    samples[course.name][target.name].append(sample)
    return samples


def median(samples: Samples, course: Course, target: str, figure: Figure) -> float:
    """The median over the rounds."""
    return statistics.median(figure(sample) for sample in samples[course.name][target])


def ratio(samples: Samples, course: Course, target: str, reference: str, figure: Figure) -> float:
    """Target to reference in each round; the median of that."""
    pairs = zip(samples[course.name][target], samples[course.name][reference], strict=True)
    return statistics.median(figure(one) / figure(other) for one, other in pairs)


def added_s(samples: Samples, target: str) -> list[float]:
    """What a router adds to the median latency of single requests, in each round (s)."""
    alone = samples[ALONE.name]
    return [one.p50_s - direct.p50_s for one, direct in zip(alone[target], alone[DIRECT], strict=True)]
