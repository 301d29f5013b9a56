"""Jobs for plain servers, first come, first served: the workloads of queueing theory.

A mean service time of 1 s. Exponential, or with a heavy tail: 95 of 100 jobs take 0.5 s, five take 10.5 s
(squared coefficient of variation 4.75).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from engines.model.parts import Part
from router.studies.simulation.call import Call


def exponential(_count: int, chance: random.Random) -> Iterator[Call]:
    """Exponential service times."""
    number = 0
    while True:
        yield _job(number, chance.expovariate(1.0), "classic_exponential")
        number += 1


def heavy_tail(_count: int, chance: random.Random) -> Iterator[Call]:
    """Few jobs that take 21 times as long as most."""
    number = 0
    while True:
        yield _job(number, 10.5 if chance.random() < 0.05 else 0.5, "classic_heavy_tail")
        number += 1


def _job(number: int, work_s: float, family: str) -> Call:
    """Its length in tokens stands for its work, so that policies which count work can see it."""
    tokens = max(round(work_s * 1_000), 1)
    return Call(
        number=number,
        at=0.0,
        parts=(Part(number, tokens),),
        output_tokens=1,
        work_s=work_s,
        family=family,
    )
