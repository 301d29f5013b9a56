"""The two traces of BalanceRoute, synthesised to their published means.

arXiv 2605.06113. *Proprietary*: 8,000 requests, mean prompt 3,197, mean output 1,185 with a heavy tail.
*Azure*: conversations of the Azure trace of 2024 with more than 1,000 output tokens: 10,000 requests, mean
prompt 4,652, mean output 1,052, so outputs are nearly constant. Only the means are published; the tails are
lognormal here and may be thinner than the real ones.

Outputs of the proprietary trace come from 400 templates of Zipf popularity, each with its own median, so that
a predictor which knows the template knows more than one which does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from engines.model.parts import Part
from router.studies.simulation.call import Call
from router.studies.workloads.lengths import Zipf, lognormal, tokens

_LONGEST = 32_000
_TEMPLATES = 400
_TEMPLATE_TOKENS = 64
"""As much as the router takes for the template of a prompt that has no messages."""
_OWN_TOKENS = 16


def azure(_count: int, chance: random.Random) -> Iterator[Call]:
    """Prompts lognormal with sigma 0.8; outputs 1,001 and an exponential of mean 51."""
    number = 0
    while True:
        prompt = tokens(lognormal(4_652, 0.947 * 4_652, chance), 16, _LONGEST)
        yield Call(
            number=number,
            at=0.0,
            parts=(Part(number, prompt),),
            output_tokens=1_001 + int(chance.expovariate(1 / 51)),
            family="balanceroute_azure",
        )
        number += 1


def proprietary(_count: int, chance: random.Random) -> Iterator[Call]:
    """Prompts lognormal with sigma 1; outputs lognormal about the median of their template."""
    popular = Zipf(_TEMPLATES, 1.0)
    medians = [chance.lognormvariate(0.0, 0.9) for _ in range(_TEMPLATES)]
    # The mean of a lognormal of sigma 0.45 about a median of 1 is exp(0.45² / 2).
    mean = sum(share * median for share, median in zip(popular.shares(), medians, strict=True)) * 1.1066
    number = 0
    while True:
        template = popular.draw(chance)
        prompt = tokens(lognormal(3_197, 1.311 * 3_197, chance), 40, _LONGEST)
        head = min(_TEMPLATE_TOKENS, prompt - _OWN_TOKENS)
        output = medians[template] * chance.lognormvariate(0.0, 0.45) / mean * 1_185
        yield Call(
            number=number,
            at=0.0,
            parts=(
                Part(template, head),
                Part(_TEMPLATES + number, prompt - head),
            ),
            output_tokens=tokens(output, 2, 16_000),
            family="balanceroute_proprietary",
        )
        number += 1
