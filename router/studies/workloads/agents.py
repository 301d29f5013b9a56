"""Conversations of agents: each turn goes on from the answer before it, after the tools have run.

Ours; no paper's. A session has a system prompt with its tools (one of eight, Zipf 1.1, some 3,000 tokens), a
task of its own, and about ten turns: the model writes some 120 tokens, a tool answers some 400 after about
2 s, and all of it is sent again. The 17 % of sessions that go on for long carry most of the tokens, as in
recorded agent traffic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from engines.model.parts import Part
from router.studies.simulation.call import Call, answer_key
from router.studies.workloads.lengths import Zipf, lognormal, tokens

_KINDS = 8
_MEAN_TURNS = 10.0
_LONGEST = 30_000


def make(_count: int, chance: random.Random) -> Iterator[Call]:
    """The calls, sessions one after the other; each later turn names the one before it."""
    popular = Zipf(_KINDS, 1.1)
    systems = [tokens(lognormal(3_000, 1_500, chance), 200, 8_000) for _ in range(_KINDS)]
    number = session = 0
    fresh = _KINDS
    while True:
        kind = popular.draw(chance)
        parts: tuple[Part, ...] = (
            Part(kind, systems[kind]),
            Part(fresh, tokens(lognormal(250, 200, chance), 10, 2_000)),
        )
        fresh += 1
        turns = 1 + int(chance.expovariate(1.0 / (_MEAN_TURNS - 1)))
        for turn in range(turns):
            output = tokens(lognormal(120, 120, chance), 2, 2_000)
            yield Call(
                number=number,
                at=lognormal(2.0, 3.0, chance) if turn else 0.0,
                after=number - 1 if turn else None,
                parts=parts,
                output_tokens=output,
                session=f"s{session}",
                family="agents",
            )
            tool = Part(fresh, tokens(lognormal(400, 600, chance), 5, 4_000))
            parts = (*parts, Part(answer_key(number), output), tool)
            fresh += 1
            number += 1
            if sum(part.tokens for part in parts) > _LONGEST:
                break
        session += 1
