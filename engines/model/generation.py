"""What the mock says: output tokens and output lengths as pure functions of prompt and seed.

Separate from the scheduler so that no order of events can change an answer: batching, preemption and cache
hits move the time of a token, never its value.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log
from statistics import NormalDist

from engines.model.text import decode, encode

_CONSONANTS = "bcdfghjklmnprstv"
_VOWELS = "aeio"
_CHUNK = struct.Struct("<32H")


def _pieces() -> list[int]:
    """8,192 tokens of four letters: half of them end a word, half go on with it."""
    ends = [f"{a}{b}{c} " for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS]
    middles = [f"{a}{b}{c}{d}" for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS for d in _VOWELS]
    return encode("".join(ends * 4 + middles))


_PIECES = _pieces()
_GARBLED_PIECES = encode(decode(_PIECES).upper())


def prompt_key(prompt_token_ids: Sequence[int], seed: int, sequence: int) -> bytes:
    """Identity of one answer: the prompt, the seed and which of the n sequences it is."""
    digest = blake2b(array("Q", prompt_token_ids).tobytes(), digest_size=16)
    digest.update(b"%d/%d" % (seed, sequence))
    return digest.digest()


class Answer:
    """The endless answer behind one key: readable lower-case pseudo-words, one token is four letters.

    Token i is a keyed hash of i, made 32 at a time and kept. A garbled answer, over KV of something else, is
    in upper case: no token of it is ever a token of a right one, so a comparison cannot miss it.
    """

    __slots__ = ("_key", "_pieces", "_tokens")

    def __init__(self, key: bytes, *, garbled: bool = False) -> None:
        self._key = key
        self._pieces = _GARBLED_PIECES if garbled else _PIECES
        self._tokens: list[int] = []

    def token(self, index: int) -> int:
        """Token at `index`, the same whenever and however often it is asked for."""
        while True:
            try:
                return self._tokens[index]
            except IndexError:
                self._extend()

    def _extend(self) -> None:
        counter = (len(self._tokens) // 32).to_bytes(8, "little")
        digest = blake2b(counter, key=self._key).digest()
        self._tokens += [self._pieces[draw & 8191] for draw in _CHUNK.unpack(digest)]


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Lognormal distribution of output lengths, the usual shape of chat answers.

    The defaults are an estimate near the Azure 2023 conversation trace (median 129, mean 211 tokens).

    Raises:
        ValueError: for a median below one token or a negative sigma.
    """

    median_tokens: float = 129.0
    sigma: float = 0.95

    def __post_init__(self) -> None:
        if self.median_tokens < 1 or self.sigma < 0:
            raise ValueError("output lengths need a median of at least 1 token and a sigma of at least 0")

    def draw(self, key: bytes) -> int:
        """Output tokens, EOS included, of the answer behind `key`; at least 1."""
        digest = blake2b(b"length", key=key, digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        return max(1, round(exp(log(self.median_tokens) + self.sigma * _NORMAL.inv_cdf(uniform))))


_NORMAL = NormalDist()
