"""What an engine's KV events say, whoever encoded them.

Separate because two engines and two encodings (tagged maps, positional arrays) say the same three things, and
the index that follows them should know neither.
"""

from __future__ import annotations

import msgspec

from router.core.prompt_key import Partition

EngineHash = int | bytes
"""An engine's own name of a block: 64 bits, or the whole digest where it is configured so."""


class BlocksStored(msgspec.Struct, frozen=True):
    """Consecutive blocks that the engine now holds.

    Attributes:
        partition: of the first block, for a chain that begins here; later blocks inherit their parent's.
        hashes: the engine's names of the blocks, in order.
        parent: name of the block before the first, None where a prompt begins.
        tokens: ids of all the blocks together, `block_tokens` each.
        extras: what each block depends on beside its tokens, LoRA and cache salt (images, say); empty when
            nothing does.
    """

    partition: Partition
    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: tuple[int, ...]
    block_tokens: int
    extras: tuple[bytes, ...] = ()


class BlocksRemoved(msgspec.Struct, frozen=True):
    """Blocks that the engine no longer holds."""

    hashes: tuple[EngineHash, ...]


class BlocksCleared(msgspec.Struct, frozen=True):
    """The engine forgot all of its blocks."""


KvEvent = BlocksStored | BlocksRemoved | BlocksCleared
