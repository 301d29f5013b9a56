"""The four families of "Calibrate then route" and their bursty mix, with two classes of service.

arXiv 2609.16206 stresses a different resource with each family; its table of them is not to be had, so the
lengths are ours, of the usual orders: short chats, long prompts with short answers, short prompts with long
answers. Long prompts are as long as the paper's tight target lets them be: 175 ms are some 2,400 tokens of
prefill, hand-over and the first step of decode included, which 99 of 100 prompts keep below. The mix comes in
bursts, and half of its calls are of the tight class, the other half of the loose one, whose targets are three
times as long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from engines.model.parts import Part
from router.studies.simulation.call import Call
from router.studies.workloads.lengths import tokens

TIGHT, LOOSE = "tight", "loose"


@dataclass(frozen=True, slots=True)
class Shape:
    """Medians and widths (sigma of the logarithm) of prompt and output."""

    family: str
    prompt: float
    prompt_sigma: float
    output: float
    output_sigma: float

    def draw(self, number: int, chance: random.Random) -> Call:
        """One call, without a time."""
        prompt = tokens(chance.lognormvariate(math.log(self.prompt), self.prompt_sigma), 8, 30_000)
        output = tokens(chance.lognormvariate(math.log(self.output), self.output_sigma), 2, 4_000)
        return Call(
            number=number,
            at=0.0,
            parts=(Part(number, prompt),),
            output_tokens=output,
            slo=TIGHT if chance.random() < 0.5 else LOOSE,
            family=self.family,
        )


CHAT_SHORT = Shape("chat_short", 250, 0.6, 110, 0.5)
LONG_PREFILL = Shape("long_prefill", 1_200, 0.3, 140, 0.5)
LONG_DECODE = Shape("long_decode", 400, 0.6, 1_000, 0.5)
MIX = ((0.60, CHAT_SHORT), (0.22, LONG_PREFILL), (0.18, LONG_DECODE))
"""Share of each in the mix."""


def alike(shape: Shape, _count: int, chance: random.Random) -> Iterator[Call]:
    """Calls of one family."""
    number = 0
    while True:
        yield shape.draw(number, chance)
        number += 1


def mixed(_count: int, chance: random.Random) -> Iterator[Call]:
    """Calls of all three."""
    number = 0
    while True:
        drawn, below = chance.random(), 0.0
        shape = MIX[-1][1]
        for share, each in MIX:
            below += share
            if drawn < below:
                shape = each
                break
        yield shape.draw(number, chance)
        number += 1
