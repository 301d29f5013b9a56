"""A prefix tree looked at from outside, and its accounts made again from nothing."""

from __future__ import annotations

from router.core.prefix_tree import (
    Book,
    End,
    PrefixTree,
)
from router.core.prompt_key import Partition

PART = Partition("model", "", "")
EVERYBODY = (1 << 64) - 1


def held_by(
    tree: PrefixTree, data: bytes, partition: Partition = PART, live: int = EVERYBODY
) -> dict[int, int]:
    """Bytes held, by bit."""
    found = {}
    for length, mask in tree.match(partition, data, live):
        for bit in (1 << n for n in range(mask.bit_length()) if mask >> n & 1):
            assert bit not in found
            found[bit] = length
    return found


def sure(tree: PrefixTree, book: Book, data: bytes, now: float = 0.0) -> End:
    end = tree.insert(PART, data, book, now).end
    tree.confirm(end, book, now)
    return end


def common(one: bytes, other: bytes) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
