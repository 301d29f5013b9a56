"""Requests that are split between prefill and decode engines: their loads, and the proof that all were split.

Separate from `rounds` because here a router that quietly sends a request to one engine would look fast: after
every measurement the engines' own counts must show two legs for each request.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec

from benchmarks.engine_bytes import Leg
from benchmarks.peers.rounds import Course, Sample, Samples, measure
from benchmarks.peers.targets import Target
from benchmarks.processes import EngineProcess

_ENGINES = 2

ALONE = Course("1 split request at a time", concurrency=1, requests=2_000, quick_requests=400, split=True)
SMALL = Course("32 split requests at once", concurrency=32, requests=8_000, quick_requests=1_600, split=True)
STREAMS = Course(
    "32 split streams, 16 events, one per 10 ms",
    concurrency=32,
    requests=1_600,
    quick_requests=320,
    events=16,
    pace_ms=10,
    split=True,
)
COURSES = (ALONE, SMALL, STREAMS)

PREFILL_LEG = "prefill leg alone"
DECODE_LEG = "decode leg alone"


class LegCounts(msgspec.Struct, frozen=True):
    """Requests that the engines were asked for.

    Attributes:
        strays: whole requests, and legs that came to an engine of the other role.
    """

    prefills: int
    decodes: int
    strays: int

    def since(self, before: LegCounts) -> LegCounts:
        return LegCounts(
            self.prefills - before.prefills, self.decodes - before.decodes, self.strays - before.strays
        )


@dataclass(frozen=True, slots=True)
class SplitEngines:
    """The engines of both roles."""

    prefill: Sequence[EngineProcess]
    decode: Sequence[EngineProcess]

    @property
    def all(self) -> list[EngineProcess]:
        return [*self.prefill, *self.decode]

    def alone(self) -> list[Target]:
        """One engine of each role, asked for its leg without a router."""
        return [
            Target(PREFILL_LEG, self.prefill[0].port, None, Leg.PREFILL),
            Target(DECODE_LEG, self.decode[0].port, None, Leg.DECODE),
        ]

    def counts(self) -> LegCounts:
        """All legs so far."""
        return tally([one.legs() for one in self.prefill], [one.legs() for one in self.decode])

    def measure(self, target: Target, course: Course, *, quick: bool) -> Sample:
        """One measurement.

        Raises RuntimeError when an answer was not as expected, or when a router did not split every request.
        """
        before = self.counts()
        sample = measure(target, course, quick=quick)
        if target.router is not None:
            refuse_unsplit(target.name, self.counts().since(before), sample.outcome.requests)
        return sample


def tally(prefill: Sequence[dict[Leg, int]], decode: Sequence[dict[Leg, int]]) -> LegCounts:
    """The sum of what engines of both roles were asked for."""
    asked = sum(sum(counts.values()) for counts in (*prefill, *decode))
    prefills = sum(counts[Leg.PREFILL] for counts in prefill)
    decodes = sum(counts[Leg.DECODE] for counts in decode)
    return LegCounts(prefills, decodes, asked - prefills - decodes)


def refuse_unsplit(router: str, legs: LegCounts, requests: int) -> None:
    """Raises RuntimeError unless there were two legs for every request and nothing else."""
    if legs != LegCounts(requests, requests, 0):
        raise RuntimeError(
            f"{router} did not split all of {requests} requests: the engines had {legs.prefills} prefill "
            f"legs, {legs.decodes} decode legs and {legs.strays} others"
        )


@contextmanager
def split_engines() -> Iterator[SplitEngines]:
    """Two engines of each role while the block lasts."""
    with ExitStack() as stack:
        made = [
            [stack.enter_context(EngineProcess(f"{role} engine {number}")) for number in range(_ENGINES)]
            for role in ("prefill", "decode")
        ]
        yield SplitEngines(*made)


def own_s(samples: Samples, target: str) -> list[float]:
    """The router's own time in a split request, in each round (s): the median through it less the medians of
    its two legs without it."""
    alone = samples[ALONE.name]
    rounds = zip(alone[target], alone[PREFILL_LEG], alone[DECODE_LEG], strict=True)
    return [whole.p50_s - prefill.p50_s - decode.p50_s for whole, prefill, decode in rounds]


def median_own_s(samples: Samples, target: str) -> float:
    """The median of that over the rounds."""
    return statistics.median(own_s(samples, target))
