"""One call of a workload: what a client sends, when, and how long the answer will be.

Separate from the router's request, which does not know how long an answer will be, and from the engine's
job, which does not know why it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_128

import msgspec

from engines.model.parts import Part, PromptParts

BYTES_PER_TOKEN = 4
"""Of the text that stands for a prompt."""


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a client.

    Attributes:
        number: its place in the workload; unique, and the key of its answer's text.
        at: arrival (s); for a call that goes on from another one, seconds after the end of that.
        after: number of the call whose answer it waits for, None for one that comes by itself.
        parts: its prompt; calls share a prefix as far as their parts are equal.
        output_tokens: that the model will write per sequence.
        max_tokens: the client's bound, None for none.
        ignore_eos: the client demands as many tokens as its bound.
        session: what keeps a conversation together, None outside of any.
        family: the workload that it comes from, for results by family.
        work_s: service time, for servers that know no tokens.
    """

    number: int
    at: float
    parts: tuple[Part, ...]
    output_tokens: int
    after: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    sequences: int = 1
    tenant: str = ""
    slo: str = ""
    session: str | None = None
    family: str = ""
    work_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        return sum(part.tokens for part in self.parts)

    @property
    def answer(self) -> int:
        """Key of the part that its answer is, for calls that go on from it."""
        return answer_key(self.number)

    def prompt(self) -> PromptParts:
        """Its prompt as an engine gets it."""
        return PromptParts(self.parts, self.answer)


def answer_key(number: int) -> int:
    """Key of the text that answers call `number`: far from the keys of prompts, which count from 0."""
    return -1 - number


class Texts:
    """The text of parts, four bytes a token, for routers that compare text. Bounded; the one used longest ago
    is made anew.

    A part's text begins alike whatever its length, as its blocks do.
    """

    __slots__ = ("_bound_bytes", "_bytes", "_known")

    def __init__(self, bound_bytes: int = 64 << 20) -> None:
        self._known: dict[int, bytes] = {}
        self._bytes = 0
        self._bound_bytes = bound_bytes

    def of(self, parts: Iterable[Part]) -> bytes:
        """The parts' texts in a row. Letters only, so that no border of a segment
        is among them and nothing is escaped in JSON."""
        return b"".join([self._part(part) for part in parts])

    def _part(self, part: Part) -> bytes:
        size = part.tokens * BYTES_PER_TOKEN
        text = self._known.pop(part.key, b"")
        if len(text) < size:
            self._bytes -= len(text)
            text = shake_128(b"%d" % part.key).digest(size).translate(_LETTERS)
            self._bytes += size
        self._known[part.key] = text
        while self._bytes > self._bound_bytes and len(self._known) > 1:
            self._bytes -= len(self._known.pop(next(iter(self._known))))
        return text if len(text) == size else text[:size]

    def __repr__(self) -> str:
        return f"<Texts {len(self._known)} parts [{self._bytes} bytes]>"


_LETTERS = bytes(97 + byte % 26 for byte in range(256))
