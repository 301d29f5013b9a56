"""A prompt known by its parts instead of its tokens, for runs in which nobody reads a token.

Separate from `block_hash`, whose hashes are vLLM's own: a study asks only whether two prompts begin alike,
and hashing 20,000 tokens for that would cost more than everything else that it does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, overload

from engines.model.block_hash import BlockHash

# Numbers below 2**61 - 1 are their own hashes in Python, and so neighbours in a table.
_MASK = (1 << 60) - 1


class Part(NamedTuple):
    """A stretch of text: equal keys are equal texts as far as both go."""

    key: int
    tokens: int


class PromptParts(Sequence[int]):
    """The token ids of a prompt that is made of parts; every id reads as 0.

    Attributes:
        parts: in order; two prompts share a prefix as far as their parts are equal.
        answer: key of the part that the answer to it will be, so that a later prompt can go on from it.
    """

    __slots__ = ("_length", "answer", "parts")

    def __init__(self, parts: Iterable[Part], answer: int) -> None:
        self.parts = tuple(parts)
        self.answer = answer
        self._length = sum(part.tokens for part in self.parts)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [0] * len(range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError(f"token {index} of a prompt of {self._length}")
        return 0

    def identity(self, seed: int, sequence: int) -> bytes:
        """Identity of one answer, as `generation.prompt_key` gives it for tokens."""
        return blake2b(repr((self.parts, self.answer, seed, sequence)).encode(), digest_size=16).digest()

    def __repr__(self) -> str:
        return f"<PromptParts {len(self.parts)} parts [{self._length} tokens]>"


class PartsChain:
    """Block hashes of a prompt of parts and of the answer that follows; stands in for `BlockChain`.

    A place in a text is known by all that is before it, so a block is known by the place of its end. Places
    of one part are consecutive numbers from a hash of the place where it begins and of its key on. Python's
    hash of integers is the same in every process.
    """

    __slots__ = ("_begins", "_first", "block_size", "hashes", "length", "lora")

    def __init__(
        self,
        prompt: PromptParts,
        block_size: int,
        *,
        sequence: int = 0,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """`sequence`: which of the answers to one prompt it is; each is a text of its own."""
        self.block_size = block_size
        self.lora = lora
        self.length = 0
        self.hashes: list[BlockHash] = []
        place = _ROOT if lora is None and cache_salt is None else _root(lora, cache_salt)
        for key, tokens in prompt.parts:
            if tokens:
                self._begin(place, key)
                self.length += tokens
                self.hash_full_blocks()
                place = self._first + tokens
        self._begin(place, hash((prompt.answer, sequence)) if sequence else prompt.answer)

    def _begin(self, place: int, key: int) -> None:
        """The next part begins at the end of what there is."""
        self._begins = self.length
        self._first = hash((place, key)) & _MASK

    def append(self, _token: int) -> None:
        """One more output token, whatever it is."""
        self.length += 1

    def grow(self, tokens: int) -> None:
        """So many more output tokens."""
        self.length += tokens

    def hash_full_blocks(self) -> list[BlockHash]:
        """Hashes of all blocks that are full now; only new ones are computed."""
        size, hashes, length = self.block_size, self.hashes, self.length
        end = (len(hashes) + 1) * size
        if end <= length:
            shift = self._first - self._begins
            hashes.extend(range(shift + end, shift + length + 1, size))
        return hashes

    def extra_keys(self, _index: int) -> tuple[str, ...] | None:
        """Nothing that KV events could carry."""
        return None

    @property
    def tokens(self) -> Sequence[int]:
        """Every token reads as 0."""
        return [0] * self.length


def _root(lora: str | None, cache_salt: str | None) -> int:
    """The place before everything."""
    return int.from_bytes(blake2b(repr((lora, cache_salt)).encode(), digest_size=8).digest(), "little")


_ROOT = _root(None, None)
