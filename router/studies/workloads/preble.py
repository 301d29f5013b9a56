"""The five families of Preble's evaluation and its mix, synthesised to the published moments.

Srivatsa et al., ICLR 2025, arXiv 2407.00023, table 1 (mean and standard deviation in tokens):

| family | prompt | output | shared share of the prompt | calls per key portion |
|---|---|---|---|---|
| toolbench | 1,835 (742) | 43 (16) | 85 % | 39 |
| embodied_agent | 2,285 (471) | 16 (13) | 97 % | 48 |
| programming | 3,871 (1,656) | 190 (343) | 97 % | 126 |
| video_qa | 9,865 (5,976) | 4 (1.5) | 88 % | 8.6 |
| long_document | 23,474 (6,105) | 16 (9.9) | 91 % | 18 |

Each prompt is a short system prompt that all share, a key portion (a tool, an environment, a problem, a
video, a document) and something of its own. How many key portions there are for how many calls follows the
paper's code, as does their popularity: Zipf with an exponent of 1.1. Calls per key portion therefore follow
from the size of a run, and match the table only at the published one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from engines.model.parts import Part
from router.studies.simulation.call import Call
from router.studies.workloads.lengths import Zipf, lognormal, tokens

_SYSTEM_TOKENS = 13
"""As long as the system prompt that leads every call of the lecture's experiments astray at a threshold of
0.1."""
_EXPONENT = 1.1
VIDEO, DOCUMENT = "video", "document"
"""Classes of service of prompts that take seconds to prefill: what is soon for them is late for a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The moments of one family.

    Attributes:
        prompt, prompt_sd, output, output_sd: tokens.
        shared: share of the prompt that is system prompt and key portion.
        keys, calls: key portions in so many calls of the paper's code.
        samples: calls that ask the very same prompt in a row (parallel sampling).
        longest: prompts are cut there.
        system: tokens that all prompts begin with.
        slo: class of service of its calls; the paper has none.
    """

    name: str
    prompt: float
    prompt_sd: float
    output: float
    output_sd: float
    shared: float
    keys: int
    calls: int
    samples: int = 1
    exponent: float = _EXPONENT
    longest: int = 32_000
    system: int = _SYSTEM_TOKENS
    slo: str = ""

    def make(self, count: int, chance: random.Random) -> Iterator[Call]:
        """The calls, without times."""
        own_mean = (1 - self.shared) * self.prompt
        own_sd = 0.5 * own_mean
        key_mean = self.shared * self.prompt - self.system
        key_sd = max(self.prompt_sd**2 - own_sd**2, 0.0) ** 0.5
        keys = max(round(self.keys * count / self.calls), 4)
        popular = Zipf(keys, self.exponent)
        most = self.longest - self.system
        lengths = _lengths(popular, key_mean, key_sd, most, chance)
        system, number = Part(0, self.system), 0
        while True:
            key = popular.draw(chance)
            own = tokens(lognormal(own_mean, own_sd, chance), 1, max(most - lengths[key], 1))
            question = Part(keys + 1 + number, own)
            for _ in range(self.samples):
                yield Call(
                    number=number,
                    at=0.0,
                    parts=(system, Part(1 + key, lengths[key]), question),
                    output_tokens=tokens(lognormal(self.output, self.output_sd, chance), 1, 4_096),
                    slo=self.slo,
                    family=self.name,
                )
                number += 1


def _lengths(popular: Zipf, mean: float, sd: float, most: int, chance: random.Random) -> list[int]:
    """Of each key portion. Few are asked for often, so their mean over calls is far from the one they were
    drawn with; they are scaled to it."""
    shares = popular.shares()
    drawn = [lognormal(mean, sd, chance) for _ in shares]
    scale = mean / sum(share * length for share, length in zip(shares, drawn, strict=True))
    return [tokens(length * scale, 16, most) for length in drawn]


TOOLBENCH = Family(
    name="toolbench", prompt=1_835, prompt_sd=742, output=43, output_sd=16, shared=0.85, keys=320, calls=5_400
)
EMBODIED_AGENT = Family(
    name="embodied_agent", prompt=2_285, prompt_sd=471, output=16, output_sd=13, shared=0.97, keys=200,
    calls=3_600,
)  # fmt: skip
PROGRAMMING = Family(
    name="programming", prompt=3_871, prompt_sd=1_656, output=190, output_sd=343, shared=0.97, keys=160,
    calls=2_812, samples=8,
)  # fmt: skip
VIDEO_QA = Family(
    name="video_qa", prompt=9_865, prompt_sd=5_976, output=4, output_sd=1.5, shared=0.88, keys=150, calls=900,
    slo=VIDEO,
)  # fmt: skip
LONG_DOCUMENT = Family(
    name="long_document", prompt=23_474, prompt_sd=6_105, output=16, output_sd=9.9, shared=0.91, keys=24,
    calls=393, slo=DOCUMENT,
)  # fmt: skip

FAMILIES = (TOOLBENCH, EMBODIED_AGENT, PROGRAMMING, VIDEO_QA, LONG_DOCUMENT)


def mixed(count: int, chance: random.Random) -> Iterator[Call]:
    """Tool calls and video questions four to one, as in the paper's mix (3,600 and 900 calls)."""
    tools = Family(
        name="toolbench", prompt=1_835, prompt_sd=742, output=43, output_sd=16, shared=0.85, keys=200,
        calls=3_600,
    )  # fmt: skip
    sources = (tools.make(count, chance), VIDEO_QA.make(count, chance))
    far = 1 << 40
    number = 0
    while True:
        video = chance.random() < 0.2
        call = next(sources[video])
        parts = tuple(Part(part.key + far, part.tokens) for part in call.parts) if video else call.parts
        yield structs.replace(call, number=number, parts=parts)
        number += 1
