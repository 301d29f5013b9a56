"""Chained hashes of the token blocks of a prompt.

Separate because beliefs and engines' events must cut and hash tokens alike to meet in one index.

A hash stands for its block and everything before it, partition included. Engines cache whole blocks only, so
a last, shorter one has no hash. The hashes are our own: Python's hash of bytes (SipHash under a secret of the
process), chained by its hash of tuples, several times faster than the engines' SHA-256. They never leave the
process, nothing is ordered by them, and a collision of their 64 bits costs one wrong belief.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import iter_unpack

from router.core.prompt_key import Partition

HASH_BYTES = 8
"""Of one hash in the packed form of a chain."""

TOKEN_BYTES = 4
"""Of one packed token id."""


def seed_of(partition: Partition) -> int:
    """Parent of every first block of a partition."""
    return hash(partition)


def chained(parent: int, block: bytes) -> int:
    """Hash of a block of packed tokens behind `parent`."""
    return hash((parent, block))


def pack(tokens: Sequence[int]) -> bytes:
    """The ids, four bytes each; nothing at all if one is beyond any vocabulary: no engine takes it."""
    try:
        return array("I", tokens).tobytes()
    except OverflowError:
        return b""


def chain(partition: Partition, tokens: Sequence[int], block_tokens: int) -> array[int]:
    """Hashes of the whole blocks of a prompt, in order."""
    size = block_tokens * TOKEN_BYTES
    packed = pack(tokens)
    parent, hashes = seed_of(partition), array("q")
    add = hashes.append
    for (block,) in iter_unpack(f"{size}s", packed[: len(packed) // size * size]):
        # `chained`, written out: a call for each of two thousand blocks would cost as much as the hash
        parent = hash((parent, block))
        add(parent)
    return hashes
