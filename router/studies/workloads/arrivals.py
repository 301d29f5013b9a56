"""When calls come: arrival processes, each a stream of times from a rate and a source of chance.

Separate from what the calls are: any workload can come at any rhythm.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from router.studies.traces.bounds import LONGEST_S

Arrivals: TypeAlias = Callable[[float, random.Random], Iterator[float]]
"""From calls per second and chance to an endless stream of times (s), from 0 on."""


def check_length(calls: int, rate: float | None) -> None:
    """Raises ValueError for calls (at `rate` a second, None: all at once) that take longer than a study runs:
    a fleet is asked how it is every second, and idle years would never end."""
    if rate is not None and calls > rate * LONGEST_S:
        raise ValueError(
            f"at {rate:.3g} calls per second {calls:,} calls do not come within {LONGEST_S / 86_400:.0f} "
            "days, the longest that is simulated: take a higher rate or fewer calls"
        )


def poisson(rate: float, chance: random.Random) -> Iterator[float]:
    """Independent calls: exponential gaps, coefficient of variation 1."""
    at = 0.0
    while True:
        at += chance.expovariate(rate)
        yield at


def gamma(cv: float) -> Arrivals:
    """Gaps of a gamma distribution with this coefficient of variation: above 1 calls come in clumps.

    The shape is 1 / cv², as BurstGPT and ServeGen model the gaps of real traces.
    """
    shape = 1.0 / (cv * cv)

    def times(rate: float, chance: random.Random) -> Iterator[float]:
        at = 0.0
        while True:
            at += chance.gammavariate(shape, 1.0 / (rate * shape))
            yield at

    return times


def bursts(high: float = 2.2, low: float = 0.6, change: float = 0.01) -> Arrivals:
    """A Markov-modulated Poisson process of two states, told in calls: after each call the state changes with
    the chance `change`.

    Args:
        high, low: rate in either state over the nominal one. As the states last equally many calls, the mean
            rate is the nominal one over the mean of 1 / high and 1 / low.
    """
    mean = 2.0 / (1.0 / high + 1.0 / low)

    def times(rate: float, chance: random.Random) -> Iterator[float]:
        at, burst = 0.0, False
        while True:
            if chance.random() < change:
                burst = not burst
            at += chance.expovariate(rate * (high if burst else low) / mean)
            yield at

    return times


def recorded(times_s: Sequence[float]) -> Arrivals:
    """The times of a trace, stretched to the rate; they begin anew when they are over.

    Raises:
        ValueError: fewer than two times, or no time between them.
    """
    if len(times_s) < 2 or times_s[-1] <= times_s[0]:
        raise ValueError("a recorded arrival process needs at least two times that differ")
    length = times_s[-1] - times_s[0]
    period = length * len(times_s) / (len(times_s) - 1)
    natural = len(times_s) / period

    def times(rate: float, chance: random.Random) -> Iterator[float]:
        scale, laps = natural / rate, 0
        while True:
            for at in times_s:
                yield (at - times_s[0] + laps * period) * scale
            laps += 1

    return times


def all_at_once(rate: float, chance: random.Random) -> Iterator[float]:
    """Every call at 0, for saturated runs."""
    while True:
        yield 0.0
