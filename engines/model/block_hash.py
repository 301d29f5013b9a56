"""Chained block hashes: the identity of a block is everything before it and in it.

Separate from the block pool because hashes belong to a sequence, not to memory, and are computed once per
sequence. They are vLLM's own (`sha256` algorithm, default seed), so that KV events carry values that a
router can recompute.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from hashlib import sha256


def _digest(value: object) -> bytes:
    return sha256(pickle.dumps(value, protocol=5)).digest()


ROOT_HASH = _digest("vllm-none-hash")
"""Parent of every first block."""


BlockHash = bytes | int
"""What tells a block from all others: of tokens vLLM's digest, of parts a number."""


def published(block_hash: BlockHash) -> int:
    """The integer that KV events carry for a hash: its low 64 bits."""
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")


class BlockChain:
    """The tokens of one sequence and the hashes of its full blocks.

    Args:
        tokens: owned by the chain and appended to by whoever decodes.
        lora: adapter name; part of every block's identity.
        cache_salt: part of the first block's identity and, through the chain, of all that follow.
    """

    __slots__ = ("_first_keys", "_keys", "block_size", "hashes", "lora", "tokens")

    def __init__(
        self,
        tokens: Sequence[int],
        block_size: int,
        *,
        lora: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.tokens = list(tokens)
        self.block_size = block_size
        self.lora = lora
        self.hashes: list[BlockHash] = []
        keys = (("lora", lora),) if lora is not None else ()
        first = keys if cache_salt is None else (*keys, ("cache_salt", cache_salt))
        self._keys = keys or None
        self._first_keys = first or None

    def append(self, token: int) -> None:
        """One more output token."""
        self.tokens.append(token)

    def hash_full_blocks(self) -> list[BlockHash]:
        """Hashes of all blocks that are full now; only new ones are computed."""
        size, hashes, tokens = self.block_size, self.hashes, self.tokens
        for index in range(len(hashes), len(tokens) // size):
            parent = hashes[-1] if hashes else ROOT_HASH
            content = tuple(tokens[index * size : (index + 1) * size])
            hashes.append(_digest((parent, content, self._keys if index else self._first_keys)))
        return hashes

    def extra_keys(self, index: int) -> tuple[str, ...] | None:
        """Values beyond the tokens that block `index` depends on, untagged as KV events carry them."""
        keys = self._keys if index else self._first_keys
        return tuple(str(value) for _, value in keys) if keys else None
