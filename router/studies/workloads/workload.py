"""What a workload is, and the figures by which two can be compared.

Separate from the families, which only know how to make calls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import msgspec
from msgspec import structs

from router.studies.simulation.call import Call
from router.studies.traces.trace import Distribution, distribution
from router.studies.workloads.arrivals import Arrivals, poisson

Calls = Callable[[int, random.Random], Iterator[Call]]
"""From how many calls are wanted, and chance, to calls without times (their `at` is 0, or what they wait
after the call before them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A family of calls.

    Attributes:
        make: the calls.
        arrivals: how they come unless said otherwise.
        published_size: calls of the experiment that it stands for.
        setup: name of the fleet that the experiment ran on.
        natural_rate: calls per second as they were recorded, None for a workload that was not.
        page: what it is, which published figures it matches, and which not.
    """

    name: str
    make: Calls
    published_size: int
    setup: str
    page: str
    arrivals: Arrivals = poisson
    natural_rate: float | None = None

    def calls(self, count: int, rate: float, seed: int, arrivals: Arrivals | None = None) -> list[Call]:
        """So many calls at a mean rate (calls/s), the same for the same seed.

        Calls that go on from another one come after it, and count in the rate.
        """
        made = list(islice(self.make(count, random.Random(f"{self.name}/{seed}")), count))
        first = sum(call.after is None for call in made)
        chance = random.Random(f"{self.name}/{seed}/arrivals")
        times = (arrivals or self.arrivals)(rate * first / max(len(made), 1), chance)
        return [call if call.after is not None else structs.replace(call, at=next(times)) for call in made]


class WorkloadStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A workload in figures, to hold against the published ones.

    Attributes:
        gap_cv: coefficient of variation of the gaps between arrivals.
        shared_share: of the prompt tokens, those that an earlier prompt already had: what an endless cache
            would save.
        sharing_calls: calls per shared beginning, on the mean over beginnings that any two calls share.
    """

    calls: int
    rate_per_s: float | None
    gap_cv: float | None
    prompt_tokens: Distribution | None
    prompt_sd: float
    output_tokens: Distribution | None
    output_sd: float
    shared_share: float
    sharing_calls: float
    classes: dict[str, int]


def describe(calls: Sequence[Call]) -> WorkloadStatistics:
    """The figures of these calls. Those that wait for another one have no arrival of their own."""
    times = [call.at for call in calls if call.after is None]
    gaps = [after - before for before, after in pairwise(times)]
    prompts = [float(call.prompt_tokens) for call in calls]
    outputs = [float(call.output_tokens) for call in calls]
    shared, sharing = _sharing(calls)
    classes: dict[str, int] = {}
    for call in calls:
        classes[call.slo] = classes.get(call.slo, 0) + 1
    length = times[-1] - times[0] if len(times) > 1 else 0.0
    return WorkloadStatistics(
        calls=len(calls),
        rate_per_s=(len(times) - 1) / length if length > 0 else None,
        gap_cv=_sd(gaps) / (math.fsum(gaps) / len(gaps)) if length > 0 else None,
        prompt_tokens=distribution(prompts),
        prompt_sd=_sd(prompts),
        output_tokens=distribution(outputs),
        output_sd=_sd(outputs),
        shared_share=shared,
        sharing_calls=sharing,
        classes=dict(sorted(classes.items())),
    )


def _sd(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _sharing(calls: Sequence[Call]) -> tuple[float, float]:
    """Share of prompt tokens seen before, and calls per beginning that is shared. A beginning is known by its
    parts; the last part of each prompt is taken to be its own."""
    places: dict[tuple[int, tuple[int, int]], int] = {}
    counts: list[int] = []
    again = total = 0
    for call in calls:
        known, parts, place = 0, call.parts, -1
        for part in parts:
            place = places.setdefault((place, part), len(counts))
            if place == len(counts):
                counts.append(0)
            elif counts[place]:
                known += part.tokens
            counts[place] += 1
        again += known
        total += call.prompt_tokens
    keys = [count for count in counts if count > 1]
    return (again / total if total else 0.0), (math.fsum(keys) / len(keys) if keys else 0.0)
