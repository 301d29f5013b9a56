"""The key portion of a prompt: the part that decides with whom it should stand.

Separate from the tree, which only knows who holds what. The key portion is the deepest part between two
places where prompts part that is longer than everything before it: a document behind a short system prompt,
or the whole of a prompt that shares little. Preble (arXiv 2407.00023) keeps its statistics by it.
"""

from __future__ import annotations

import msgspec

from router.core.prefix_tree import LONGEST_PATH, Node, common_length


class Portion(msgspec.Struct, frozen=True, gc=False):
    """The key portion of one prompt.

    Attributes:
        key: stands for the partition and the prompt up to the portion's end, in the pieces that prompts share
            of it now: once another prompt parts from it within a piece, it is another key. Of this process
            only.
        tokens: from the beginning of the prompt to the portion's end.
        own_tokens: of these, its own.
    """

    key: int
    tokens: int
    own_tokens: int


def key_portion(root: Node | None, data: bytes, unit: int) -> tuple[int, list[bytes]]:
    """Where the key portion of `data` begins, and the pieces from the beginning of `data` to its end.

    The same before and after `data` itself is inserted, since the place where it parts from the tree counts
    as one where prompts part. Pieces are the tree's own objects as far as can be: their hashes, once asked
    for, are remembered.

    Args:
        unit: bytes that are never cut; places within one count as its beginning.
    """
    node, at, begin, last, size, steps = root, 0, 0, 0, len(data), LONGEST_PATH
    pieces: list[bytes] = []
    count = 0  # of the pieces up to the end of the key portion
    while node is not None and at < size and steps:
        steps -= 1
        child = node.children.get(data[at])
        if child is None:
            break
        whole = data.startswith(child.edge, at)
        at += len(child.edge) if whole else common_length(data, at, child.edge)
        border = at - at % unit
        exact = whole and border - last == len(child.edge)
        pieces.append(child.edge if exact else data[last:border])
        if border - last > last:
            begin, count = last, len(pieces)
        last = border
        node = child if whole else None
    if size - last > last:
        return last, [*pieces, data[last:]]
    return begin, pieces[:count]
