"""A prompt known by its parts instead of its tokens, for runs in which nobody reads a token.

Separate from `block_hash`, whose hashes are vLLM's own: a study asks only whether two prompts begin alike,
and hashing 20,000 tokens for that would cost more than everything else that it does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple, overload

_MASK = (1 << 64) - 1


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

    A block's hash is a hash of its parent's and of the stretches of parts that lie in it. Python's hash of
    integers is the same in every process.
    """

    __slots__ = ("_answer", "_ends", "_keys", "_root", "block_size", "hashes", "length", "lora")

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
        self.length = len(prompt)
        self.hashes: list[bytes] = []
        self._keys = [part.key for part in prompt.parts]
        self._ends = list(accumulate(part.tokens for part in prompt.parts))
        self._answer = hash((prompt.answer, sequence)) if sequence else prompt.answer
        root = blake2b(repr((lora, cache_salt)).encode(), digest_size=8).digest()
        self._root = int.from_bytes(root, "little")

    def append(self, _token: int) -> None:
        """One more output token, whatever it is."""
        self.length += 1

    def grow(self, tokens: int) -> None:
        """So many more output tokens."""
        self.length += tokens

    def hash_full_blocks(self) -> list[bytes]:
        """Hashes of all blocks that are full now; only new ones are computed."""
        size, hashes = self.block_size, self.hashes
        first, end = len(hashes), self.length // size
        if first == end:
            return hashes
        parent = int.from_bytes(hashes[-1], "little") if first else self._root
        keys, ends = [*self._keys, self._answer], [*self._ends, self.length]
        part, begins = 0, 0
        while ends[part] <= first * size:
            begins = ends[part]
            part += 1
        for start in range(first * size, end * size, size):
            stop = start + size
            while ends[part] < stop:
                # A border lies in the block: what is before it counts with its own key and place.
                parent = hash((parent, keys[part], start - begins, ends[part]))
                begins = ends[part]
                part += 1
            parent = hash((parent, keys[part], start - begins)) & _MASK
            hashes.append(parent.to_bytes(8, "little"))
            if ends[part] == stop and stop < end * size:
                begins = stop
                part += 1
        return hashes

    def extra_keys(self, _index: int) -> tuple[str, ...] | None:
        """Nothing that KV events could carry."""
        return None

    @property
    def tokens(self) -> Sequence[int]:
        """Every token reads as 0."""
        return [0] * self.length
