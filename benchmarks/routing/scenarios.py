"""Who asks what: four kinds of traffic in a closed loop, and what is counted of it.

Separate from engines and routers, so that the benchmark on sockets and the test in virtual time play alike.
A: one system prompt before unique questions. B: conversations. C: conversations under one system prompt.
D: prompts that share nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

AT_ONCE = 32
ANSWER_TOKENS = (8, 32)
"""Least and most tokens of an answer. With one length for all, engines and clients would march in step, and
the turns of the conversations of one worker would all come at once."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz    "

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of traffic, and the bounds that a router is held to.

    Attributes:
        system_chars: of the system prompt that all share.
        first_chars, next_chars: of the first message of a conversation, and of each further one.
        turns: of a conversation.
        busiest: requests of the busiest worker over the mean, at most.
        hits: share of prompt tokens found in the engines' caches over that of the best router, at least.
        stays: share of turns at the worker of the turn before, at least.
    """

    system_chars: int
    first_chars: int
    next_chars: int = 0
    turns: int = 1
    busiest: float = 1.15
    hits: float | None = 0.9
    stays: float | None = None


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "A": Scenario(system_chars=4_500, first_chars=200),
        "B": Scenario(system_chars=0, first_chars=400, next_chars=200, turns=5, stays=0.98),
        "C": Scenario(system_chars=4_500, first_chars=400, next_chars=200, turns=5, stays=0.98),
        "D": Scenario(system_chars=0, first_chars=2_000, busiest=1.1, hits=None),
    }
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a router answered: by which worker, and what it said."""

    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered message: of which conversation, the how-manieth of it, and by whom."""

    talk: int
    number: int
    worker: str


Ask = Callable[[Messages, int], Awaitable[Answered]]
"""Asks for an answer of so many tokens."""


async def play(scenario: Scenario, requests: int, ask: Ask, seed: int) -> list[Turn]:
    """Plays about so many requests, `AT_ONCE` at a time; conversations take their turns round robin.

    Args:
        seed: of the texts; another seed shares nothing with this one.
    """
    source, gate, turns = random.Random(seed), asyncio.Semaphore(AT_ONCE), list[Turn]()
    system = [{"role": "system", "content": _text(source, scenario.system_chars)}]

    async def talk(number: int, own: random.Random) -> None:
        messages = list(system) if scenario.system_chars else []
        for turn in range(scenario.turns):
            chars = scenario.next_chars if turn else scenario.first_chars
            messages.append({"role": "user", "content": _text(own, chars)})
            async with gate:
                answered = await ask(messages, own.randint(*ANSWER_TOKENS))
            turns.append(Turn(number, turn, answered.worker))
            messages.append({"role": "assistant", "content": answered.text})

    talks = requests // scenario.turns
    await asyncio.gather(*(talk(number, random.Random(source.random())) for number in range(talks)))
    return turns


def body(model: str, messages: Messages, tokens: int) -> dict[str, Any]:
    """A chat request of the scenarios."""
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}


def busiest(turns: Sequence[Turn], workers: int) -> float:
    """Requests of the busiest worker over the mean of all."""
    counts = Counter(turn.worker for turn in turns)
    return max(counts.values()) * workers / len(turns)


def stays(turns: Sequence[Turn]) -> float | None:
    """Share of the further turns that went to the worker of the one before; None without any."""
    workers = {(turn.talk, turn.number): turn.worker for turn in turns}
    further = [turn for turn in turns if turn.number]
    if not further:
        return None
    return sum(workers[turn.talk, turn.number - 1] == turn.worker for turn in further) / len(further)


def _text(source: random.Random, chars: int) -> str:
    return "".join(source.choices(_LETTERS, k=chars))
