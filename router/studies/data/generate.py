"""Makes `synthetic.jsonl`: `python -m router.studies.data.generate`.

A workload of our own making, so that a clone can be tried without anybody's data. Three kinds of traffic
that a router must tell apart: conversations that grow turn by turn under a few system prompts, questions
about a few long documents, and single prompts that share nothing. A test holds the file to this generator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from router.studies.data import SYNTHETIC
from router.studies.traces.mooncake import BLOCK_TOKENS

SEED = 20_231
REQUESTS = 300
RATE_PER_S = 5.0

_SYSTEM_BLOCKS = (1, 2, 3)
"""Length of each system prompt, in blocks."""
_DOCUMENT_BLOCKS = (8, 10, 12, 14, 16, 20)
_KINDS = {"chat": 0.60, "document": 0.25, "single": 0.15}
_MAX_PROMPT_TOKENS = 12_000


class Line(msgspec.Struct):
    """One request, in the fields and the order of Mooncake's traces."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(slots=True, eq=False)
class _Chat:
    tokens: int
    ids: list[int]


@dataclass(slots=True)
class _World:
    """Everything that later requests may share. Mutable: the conversations grow."""

    random: Random
    fresh: Iterator[int] = field(default_factory=itertools.count)
    systems: list[list[int]] = field(default_factory=list)
    documents: list[list[int]] = field(default_factory=list)
    chats: list[_Chat] = field(default_factory=list)

    def blocks(self, count: int) -> list[int]:
        return list(itertools.islice(self.fresh, count))


def lines(seed: int = SEED, requests: int = REQUESTS) -> list[Line]:
    """The trace as a function of its seed. Arrivals are a Poisson process of `RATE_PER_S`."""
    world = _World(Random(seed))
    world.systems = [world.blocks(count) for count in _SYSTEM_BLOCKS]
    world.documents = [world.blocks(count) for count in _DOCUMENT_BLOCKS]
    makers = {"chat": _chat_turn, "document": _document_question, "single": _single}
    now_s = 0.0
    made = []
    for _ in range(requests):
        kind = world.random.choices(list(_KINDS), list(_KINDS.values()))[0]
        made.append(makers[kind](world, round(now_s * 1000)))
        now_s += world.random.expovariate(RATE_PER_S)
    return made


def encode(made: list[Line]) -> bytes:
    """The trace as JSONL."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in made)


def _lognormal(random: Random, median: float, sigma: float, most: int) -> int:
    return max(1, min(most, round(median * random.lognormvariate(0.0, sigma))))


def _line(world: _World, timestamp: int, shared: list[int], own_tokens: int, output_tokens: int) -> Line:
    """A prompt of whole shared blocks and `own_tokens` after them, in blocks that nobody has yet."""
    ids = shared + world.blocks(-(-own_tokens // BLOCK_TOKENS))
    return Line(timestamp, len(shared) * BLOCK_TOKENS + own_tokens, output_tokens, ids)


def _chat_turn(world: _World, timestamp: int) -> Line:
    random = world.random
    if not world.chats or random.random() < 0.35:
        system = random.choices(world.systems, (6, 3, 1))[0]
        chat = _Chat(len(system) * BLOCK_TOKENS, list(system))
        world.chats.append(chat)
    else:
        chat = random.choice(world.chats[-24:])
    whole = chat.tokens // BLOCK_TOKENS
    own_tokens = chat.tokens - whole * BLOCK_TOKENS + _lognormal(random, 90, 0.9, 1_500)
    line = _line(world, timestamp, chat.ids[:whole], own_tokens, _lognormal(random, 110, 0.7, 600))
    chat.tokens, chat.ids = line.input_length + line.output_length, line.hash_ids
    _grow(world, chat)
    return line


def _grow(world: _World, chat: _Chat) -> None:
    """Names the blocks that the answer fills up; the last one, partly filled, gets its name next turn."""
    missing = chat.tokens // BLOCK_TOKENS - len(chat.ids)
    chat.ids = chat.ids + world.blocks(max(0, missing))
    if chat.tokens > _MAX_PROMPT_TOKENS:
        world.chats.remove(chat)


def _document_question(world: _World, timestamp: int) -> Line:
    random = world.random
    document = random.choices(world.documents, [1 / rank for rank in range(1, len(world.documents) + 1)])[0]
    return _line(
        world, timestamp, document, _lognormal(random, 40, 0.6, 300), _lognormal(random, 45, 0.6, 250)
    )


def _single(world: _World, timestamp: int) -> Line:
    random = world.random
    return _line(world, timestamp, [], _lognormal(random, 500, 1.0, 6_000), _lognormal(random, 150, 0.8, 800))


if __name__ == "__main__":
    SYNTHETIC.write_bytes(encode(lines()))
