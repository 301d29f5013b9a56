"""The KV cache of one engine: a pool of blocks that doubles as a prefix cache.

Separate from the scheduler because it owns one fact, who holds which block, and its rules are exact ones
(vLLM V1): block 0 is never handed out; a block that nobody holds is free, cached or not; free blocks are
reused from the front of one queue, and only then does a cached one lose its content.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import KeysView, Sequence
from dataclasses import dataclass
from itertools import chain as joined

from engines.model.block_hash import BlockChain, BlockHash
from engines.model.parts import PartsChain


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks that became cached, in the order of the sequence."""

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    extra_keys: tuple[tuple[str, ...] | None, ...]
    lora: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A cached block was given to somebody else; its content is gone."""

    hash: BlockHash


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


# Hashes that are looked up at once: few enough that a miss at once costs little.
_LOOK_UP = 64

KvEvent = BlocksStored | BlockRemoved | AllBlocksCleared


class KvCacheError(RuntimeError):
    """A bug in the engine model: a block was freed twice, or handed out while held."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens`."""
    return -(-tokens // block_size)


class KvCache:
    """Blocks with reference counts, a hash table of cached ones, and the queue of free ones.

    Args:
        num_blocks: blocks in all, the null block included.
        block_size: tokens in one block.
        record_events: keep stored, removed and cleared events until they are drained.

    Attributes:
        changes: how often cached content came or went.

    Raises:
        ValueError: for fewer than two blocks or an empty block.
    """

    def __init__(self, num_blocks: int, block_size: int, *, record_events: bool = False) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ValueError("a KV cache needs at least two blocks (one is the null block) of one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        # The queue of free blocks: those without content, the next one last, and behind them the others.
        self._blank = list(range(num_blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        # Equal blocks filled by sequences that ran side by side are not merged: one hash, several blocks, of
        # which those after the first are twins.
        self._cached: dict[BlockHash, int] = {}
        self._twins: dict[BlockHash, list[int]] = {}
        self._spoiled: set[int] = set()
        self.changes = 0
        self._events: list[KvEvent] | None = [] if record_events else None

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._blank) + len(self._idle)

    @property
    def used_blocks(self) -> int:
        """Blocks held by sequences; the null block is not counted."""
        return self.num_blocks - 1 - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks with reusable content, held or not."""
        return len(self._cached) + sum(map(len, self._twins.values()))

    @property
    def cached_hashes(self) -> KeysView[BlockHash]:
        """What is cached, each content once."""
        return self._cached.keys()

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit: the null block holds none."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def usage(self) -> float:
        """Share of usable blocks held by sequences, 0 to 1; cached but unheld blocks are free."""
        return 1.0 - self.free_blocks / (self.num_blocks - 1)

    def find(self, hashes: Sequence[BlockHash], limit: int) -> list[int]:
        """Blocks of the longest cached prefix of `hashes`, at most `limit`. Changes nothing."""
        found: list[int] = []
        for first in range(0, limit, _LOOK_UP):
            blocks = list(map(self._cached.get, hashes[first : min(first + _LOOK_UP, limit)]))
            known = blocks if all(blocks) else blocks[: blocks.index(None)]
            found += filter(None, known)
            if len(known) < _LOOK_UP:
                break
        return found

    def prefix_blocks(self, hashes: Sequence[BlockHash], limit: int) -> int:
        """How many blocks `find` would find, in logarithmic time.

        A block is freed after those that continue it and so outlives them: of a chain, always a prefix is
        cached and nothing behind it.
        """
        cached = self._cached
        end = min(limit, len(hashes))
        return bisect_left(range(end), True, key=lambda index: hashes[index] not in cached)

    def can_allocate(self, count: int, held_back: Sequence[int] = ()) -> bool:
        """Whether `count` blocks are free besides those of `held_back` that are free too."""
        spare = self.free_blocks - count
        if spare < 0 or spare >= len(held_back):
            return spare >= 0
        refs = self._refs
        return spare >= sum(1 for block in held_back if refs[block] == 0)

    def take(self, blocks: Sequence[int]) -> None:
        """Hold cached blocks once more; those that were free leave the free queue."""
        refs = self._refs
        for block in blocks:
            if refs[block] == 0:
                del self._idle[block]
            refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks from the front of the free queue; cached content in them is lost.

        Raises:
            KvCacheError: when fewer are free; ask `can_allocate` first.
        """
        if count > self.free_blocks:
            raise KvCacheError(f"{count} blocks asked for and {self.free_blocks} free")
        rest = max(len(self._blank) - count, 0)
        blocks = self._blank[rest:]
        blocks.reverse()
        del self._blank[rest:]
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks))
        refs = self._refs
        for block in blocks:
            refs[block] = 1
        if self._spoiled:
            self._spoiled.difference_update(blocks)
        return blocks

    def store(self, chain: BlockChain | PartsChain, blocks: Sequence[int], first: int, end: int) -> None:
        """Make blocks `first` to `end` (exclusive) of a sequence reusable: they are full now."""
        cached, hash_of = self._cached, self._hash_of
        self.changes += 1
        for block, block_hash in zip(blocks[first:end], chain.hashes[first:end], strict=True):
            hash_of[block] = block_hash
            if block_hash in cached:
                self._twins.setdefault(block_hash, []).append(block)
            else:
                cached[block_hash] = block
        if self._events is not None and first < end:
            self._events.append(_stored(chain, first, end))

    def spoil(self, blocks: Sequence[int]) -> None:
        """What these blocks hold is not what their hashes say, until they are handed out anew."""
        self._spoiled.update(blocks)

    def is_spoiled(self, blocks: Sequence[int]) -> bool:
        """Whether any of these blocks holds something else than its hash says."""
        return bool(self._spoiled) and not self._spoiled.isdisjoint(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks, given in its order.

        The tail is queued first, so a prefix outlives its continuations. Blocks without content go to the
        front of the queue, to be reused before anything cached is lost.

        Raises:
            KvCacheError: when a block is not held.
        """
        refs, hash_of, blank, idle = self._refs, self._hash_of, self._blank, self._idle
        for block in reversed(blocks):
            held = refs[block]
            if not held:
                raise KvCacheError(f"block {block} was freed without being held")
            refs[block] = held - 1
            if held > 1:
                continue
            if hash_of[block] is None:
                blank.append(block)
            else:
                idle[block] = None

    def reset(self) -> bool:
        """Forget all cached content. False, and nothing done, while any block is held."""
        if self.used_blocks:
            return False
        self.changes += 1
        self._blank = list(joined(reversed(self._idle), self._blank))
        self._idle.clear()
        self._cached.clear()
        self._twins.clear()
        self._spoiled.clear()
        self._hash_of = [None] * self.num_blocks
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def drain_events(self) -> list[KvEvent]:
        """Events since the last call, oldest first; empty unless events are recorded."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def _evict(self, count: int) -> list[int]:
        """The idle blocks that were freed first, without their content."""
        idle, hash_of, cached = self._idle, self._hash_of, self._cached
        self.changes += count
        blocks: list[int] = []
        for _ in range(count):
            block, _none = idle.popitem(last=False)
            block_hash, hash_of[block] = hash_of[block], None
            if block_hash is None:
                raise KvCacheError(f"block {block} holds nothing to evict")
            if block_hash in self._twins:
                self._lose_twin(block_hash, block)
            else:
                del cached[block_hash]
            if self._events is not None:
                self._events.append(BlockRemoved(block_hash))
            blocks.append(block)
        return blocks

    def _lose_twin(self, block_hash: BlockHash, block: int) -> None:
        """One of several equal blocks is gone; if it was the first, the next one is."""
        twins = self._twins[block_hash]
        if self._cached[block_hash] == block:
            self._cached[block_hash] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[block_hash]

    def __repr__(self) -> str:
        return (
            f"<KvCache {self.used_blocks}/{self.num_blocks - 1} blocks of {self.block_size} held "
            f"| {self.cached_blocks} cached>"
        )


def _stored(chain: BlockChain | PartsChain, first: int, end: int) -> BlocksStored:
    size = chain.block_size
    return BlocksStored(
        hashes=tuple(chain.hashes[first:end]),
        parent=chain.hashes[first - 1] if first else None,
        token_ids=tuple(chain.tokens[first * size : end * size]),
        block_size=size,
        extra_keys=tuple(chain.extra_keys(index) for index in range(first, end)),
        lora=chain.lora,
    )
