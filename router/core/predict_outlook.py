"""What is expected of one request: a table of steps for the hot path, and where it comes from.

Separate from the predictor because an outlook outlives the answer: it stays with the request, is read at
every round, and is judged when the request is over.
"""

from __future__ import annotations

import enum

import msgspec

from router.core.predict_mean import geometric_steps
from router.core.predict_survival import MAX_TABLE_TOKENS, TABLE_SHIFT, SurvivalCurve


class Source(enum.Enum):
    """What an outlook rests on."""

    PROMPT = "prompt"
    TEMPLATE = "template"
    MODEL = "model"
    TENANT = "tenant"
    CLIENT = "client"
    """The client dictated the length."""
    UNKNOWN = "unknown"
    """Nothing has seen enough: it counts as staying."""

    @property
    def learned(self) -> bool:
        return self not in {Source.CLIENT, Source.UNKNOWN}


class Traits(msgspec.Struct, frozen=True, gc=False):
    """What of a request its length depends on; kept while it runs, when the prompt is gone.

    Attributes:
        prompt, template: hashes; None when there is none to go by.
        max_tokens, min_tokens, ignore_eos: as the client demanded, of one sequence.
    """

    model: str
    tenant: str = ""
    prompt: int | None = None
    template: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False


class Outlook(msgspec.Struct, frozen=True):
    """Expectation for one sequence.

    Attributes:
        table: entry i is for 16 i tokens written (see `SurvivalCurve.table`).
        beyond: the same for what lies past the table.
        curve: what the table was made from; None where no curve was.
        expected_tokens: whole length; None when unknown.
    """

    source: Source
    table: bytes
    beyond: int
    curve: SurvivalCurve | None = None
    expected_tokens: float | None = None

    def steps(self, written: int) -> int:
        """In how many of the steps 0 to H from now on it is still there, when it has written so much."""
        index = written >> TABLE_SHIFT
        return self.table[index] if index < len(self.table) else self.beyond

    def forecast(self, written: int, horizon: int) -> tuple[float, float]:
        """(P(ends within the horizon), E[min(rest, horizon)]), before what the client demanded."""
        if self.curve is not None:
            return self.curve.forecast(written, horizon)
        mean = self.expected_tokens
        if mean is None:
            return 0.0, float(horizon)
        return 1.0 - (1.0 - 1.0 / max(mean, 1.0)) ** horizon, geometric_steps(mean, horizon)


def bounded(outlook: Outlook, traits: Traits, horizon: int, *, tables: bool = True) -> Outlook:
    """An outlook within what the client demanded: it cannot run beyond `max_tokens`, nor end before
    `min_tokens`. Its table is left as it was without `tables`."""
    bound, floor = traits.max_tokens, traits.min_tokens or 0
    if bound is None and not floor:
        return outlook
    table, beyond = outlook.table, outlook.beyond
    if tables:
        table, beyond = _bounded_table(outlook, bound, floor, horizon)
    expected = outlook.expected_tokens
    if outlook.source is Source.CLIENT:
        expected = bound
    elif expected is not None:
        expected = max(expected, floor)
        expected = expected if bound is None else min(expected, bound)
    return Outlook(outlook.source, table, beyond, outlook.curve, expected)


def _bounded_table(outlook: Outlook, bound: int | None, floor: int, horizon: int) -> tuple[bytes, int]:
    table, beyond = bytearray(outlook.table), outlook.beyond
    if floor:
        _hold(table, beyond, min(floor, MAX_TABLE_TOKENS), horizon)
    if bound is not None and bound <= MAX_TABLE_TOKENS:
        _cut(table, beyond, max(bound, 1), horizon)
        beyond = 1
    return bytes(table), beyond


def _pad(table: bytearray, beyond: int, tokens: int) -> int:
    """Makes a table reach so many tokens; returns how many entries that takes."""
    entries = (tokens - 1 >> TABLE_SHIFT) + 1
    table.extend([beyond] * (entries - len(table)))
    return entries


def _hold(table: bytearray, beyond: int, floor: int, horizon: int) -> None:
    for index in range(_pad(table, beyond, floor)):
        table[index] = max(table[index], min(floor - (index << TABLE_SHIFT), horizon + 1))


def _cut(table: bytearray, beyond: int, bound: int, horizon: int) -> None:
    entries = _pad(table, beyond, bound)
    del table[entries:]
    for index in range(max(bound - horizon >> TABLE_SHIFT, 0), entries):
        table[index] = min(table[index], bound - (index << TABLE_SHIFT))
