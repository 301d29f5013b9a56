"""An engine that was asked who it is: what it serves, what it can hold, and how it counts.

Separate from the measuring, which begins when all of them are known: the operating point is that of the whole
fleet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from router.studies.calibrate.fleet import Couple, Engine, MeasuredFleet
from router.studies.calibrate.grid import Room
from router.studies.calibrate.probe import Ask, Probe
from router.studies.calibrate.prompts import LONG_SAMPLE, SHORT_SAMPLE, Prompts
from router.studies.calibrate.way import Alone, HandedOver, Way
from router.studies.replay.endpoint import ModelCard
from router.studies.replay.prompts import BYTES_PER_WORD, Tokenizer, words

_LONG_WORDS = 1025
"""Beside a prompt of one word: two lengths give a line, and this one errs by a token in a thousand."""
_UNKNOWN_CONTEXT_TOKENS = 2048
"""Of an engine that does not tell how long a prompt may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One engine, and how requests to it are served.

    Attributes:
        alone: whether it serves whole requests. Otherwise `way` leads through one of its couples.
        bytes_per_token: of the sample of text.
    """

    engine: Engine
    probe: Probe
    way: Way
    alone: bool
    card: ModelCard
    version: str | None
    room: Room
    prompts: Prompts
    bytes_per_token: float

    @property
    def model(self) -> str:
        return self.card.id

    def ask(self, prompt: str, max_tokens: int) -> Ask:
        return Ask(self.model, prompt, max_tokens)


class Ways:
    """The ways through a fleet, all over one probe for each engine."""

    def __init__(self, fleet: MeasuredFleet, probes: dict[str, Probe], chance: random.Random) -> None:
        self._fleet = fleet
        self._probes = probes
        self._chance = chance

    def probe(self, engine: Engine) -> Probe:
        return self._probes[engine.name]

    def over(self, couple: Couple) -> HandedOver:
        """Through both engines of a couple."""
        prefill, decode = self._probes[couple.prefill.name], self._probes[couple.decode.name]
        return HandedOver(prefill, decode, couple.connector, self._chance)

    def to(self, engine: Engine) -> Way:
        """To one engine: straight where it serves whole requests, else through one of its couples."""
        couple = self._fleet.coupled(engine)
        if couple is None or couple.connector.decode_takes_whole:
            return Alone(self._probes[engine.name])
        return self.over(couple)


async def meet(engine: Engine, ways: Ways, run: str) -> Subject:
    """Asks an engine everything that must be known before it is measured. Raises ProbeFailed."""
    probe, way = ways.probe(engine), ways.to(engine)
    card = await probe.model()
    stats = await probe.stats()
    tokenizer = await _tokenizer(way, card, f"{run}/{engine.name}")
    return Subject(
        engine=engine,
        probe=probe,
        way=way,
        alone=isinstance(way, Alone),
        card=card,
        version=await probe.version(),
        room=Room(
            context_tokens=card.max_model_len,
            kv_tokens=None if stats is None else stats.kv_capacity_tokens,
            slots=engine.slots,
        ),
        prompts=Prompts(f"{run}/{engine.name}", tokenizer),
        bytes_per_token=await _bytes_per_token(way, card),
    )


def _most_bytes(card: ModelCard) -> int:
    """Text that is sure to fit beside a start token and one of output: no token is less than a byte."""
    return (card.max_model_len or _UNKNOWN_CONTEXT_TOKENS) - 2


async def _tokenizer(way: Way, card: ModelCard, key: str) -> Tokenizer:
    long = max(2, min(_LONG_WORDS, _most_bytes(card) // BYTES_PER_WORD))
    few = await _count(way, card, words(f"{key}/few", 1))
    many = await _count(way, card, words(f"{key}/many", long))
    if many <= few:
        raise way.answering.failure(
            f"counts {few} tokens for a word and {many} for {long}: its usage cannot be trusted"
        )
    per_word = (many - few) / (long - 1)
    return Tokenizer(overhead_tokens=few - per_word, tokens_per_word=per_word)


async def _bytes_per_token(way: Way, card: ModelCard) -> float:
    """Of the part of a sample that comes after its first sentence, so that no start token is counted."""
    page = LONG_SAMPLE.encode()[: _most_bytes(card)].decode(errors="ignore")
    few, many = await _count(way, card, SHORT_SAMPLE), await _count(way, card, page)
    if many <= few:
        raise way.answering.failure(
            f"counts {many} tokens for a page of text and {few} for its first sentence"
        )
    return (len(page.encode()) - len(SHORT_SAMPLE.encode())) / (many - few)


async def _count(way: Way, card: ModelCard, text: str) -> int:
    return (await way.tell(Ask(card.id, text, 1))).prompt_tokens
