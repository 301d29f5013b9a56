"""What engines' KV events say that each worker holds, by the chained hashes of token blocks.

Separate from the tree of beliefs because it is the engine's word: it is not evicted, it does not age, and it
is either complete or of no use. The engine's own hashes serve for one purpose: to find the place that a later
event speaks of.

Blocks of engines may be of any size. Their tokens are counted into blocks of our own size along the chain,
and a block of ours is held from the event that completes it to the removal of that event's block. Engines
drop the end of a chain before what it stands on, so what a worker holds is closed towards the beginning; a
match relies on that and looks up only where somebody's prefix may end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from router.core.kv_event import BlocksStored, EngineHash
from router.core.prefix_chain import TOKEN_BYTES, chained, pack, seed_of
from router.core.prefix_tree import Depths

ROW_BYTES = 144
"""What a distinct block takes: its hash, its mask, its place in a table. Measured on CPython 3.11."""

PLACE_BYTES = 192
"""What an engine's block takes: its name, its place in the ledger, the hash and the rest that follow it."""

_SHARDS = 256  # a single dict of a million rows would stop the router for its whole length when it grows


class Fit(enum.Enum):
    """What became of a stored event."""

    WELL = "well"
    ORPHAN = "orphan"
    """Its parent is not known: events were lost before it."""
    FULL = "full"
    """There is no room for more."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    """How far a chain has come with one block of the engine."""

    block: int  # hash of the last whole block of ours
    rest: bytes  # packed tokens behind it, less than a block
    completed: tuple[int, ...]  # blocks of ours that this one completed


_COUNTED = _Place(0, b"", ())


class Ledger:
    """The blocks of one worker's engine since its events are followed. `StoredBlocks` alone writes it.

    Attributes:
        bit: its bit in the masks.
        counts_only: whether blocks are counted and not placed, for a worker whose prompts never come as
            tokens.
        orphans: events that could not be placed.
        shared: our blocks that more than one of the engine's completed, and how many more: a fork within a
            block of the engine that is larger than ours.
        block_tokens: size of the engine's blocks, 0 before the first event.
    """

    __slots__ = ("bit", "block_tokens", "counts_only", "orphans", "places", "shared")

    def __init__(self, bit: int, *, counts_only: bool = False) -> None:
        self.bit = bit
        self.counts_only = counts_only
        self.orphans = 0
        self.block_tokens = 0
        self.places: dict[EngineHash, _Place] = {}
        self.shared: dict[int, int] = {}

    @property
    def resident_tokens(self) -> int:
        """Tokens that the engine holds as far as its events were seen."""
        return len(self.places) * self.block_tokens

    def __repr__(self) -> str:
        return f"<Ledger {self.bit.bit_length() - 1} [{len(self.places)} blocks | {self.orphans} orphans]>"


class StoredBlocks:
    """All ledgers' blocks; the hash keeps partitions apart.

    Attributes:
        block_tokens: tokens of one of our blocks.
        max_bytes: above this no more blocks are taken.
        used_bytes: what rows and places take, by `ROW_BYTES` and `PLACE_BYTES`.
        rows: distinct blocks.
    """

    __slots__ = ("_shards", "block_tokens", "max_bytes", "rows", "used_bytes")

    def __init__(self, block_tokens: int, max_bytes: int) -> None:
        self.block_tokens = block_tokens
        self.max_bytes = max_bytes
        self._shards: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        self.used_bytes = 0
        self.rows = 0

    def match(self, hashes: Sequence[int], live: int) -> Depths:
        """How many tokens from the beginning each ledger of the mask `live` holds.

        Costs a few look-ups per distinct length, not one per block.
        """
        depths: Depths = []
        held, at, size = live, 0, len(hashes)
        while held:
            at = self._reach(hashes, at, held)
            rest = held & self._mask(hashes[at]) if at < size else 0
            if at:
                depths.append((at * self.block_tokens, held ^ rest))
            held = rest
        return depths

    def store(self, ledger: Ledger, event: BlocksStored) -> Fit:
        """The engine holds these blocks. Saying so twice changes nothing.

        An event that does not fit is counted and left out.
        """
        if self.used_bytes >= self.max_bytes:
            return Fit.FULL
        if ledger.counts_only:
            for name in event.hashes:
                self._put(ledger, name, _COUNTED)
        elif not self._place(ledger, event):
            ledger.orphans += 1
            return Fit.ORPHAN
        ledger.block_tokens = event.block_tokens
        return Fit.WELL

    def remove(self, ledger: Ledger, names: Sequence[EngineHash]) -> None:
        """The engine holds these blocks no more. What is not known is ignored."""
        for name in names:
            self._take(ledger, ledger.places.pop(name, None))

    def sweep(self, ledger: Ledger, most: int) -> int:
        """Takes at most `most` blocks out of a ledger that is no longer followed; returns how many."""
        for taken in range(most):
            if not ledger.places:
                return taken
            self._take(ledger, ledger.places.popitem()[1])
        return most

    def _place(self, ledger: Ledger, event: BlocksStored) -> bool:
        packed, step = pack(event.tokens), event.block_tokens * TOKEN_BYTES
        parent = None if event.parent is None else ledger.places.get(event.parent)
        if len(packed) != step * len(event.hashes) or (event.parent is not None and parent is None):
            return False
        block, rest = (seed_of(event.partition), b"") if parent is None else (parent.block, parent.rest)
        for index, name in enumerate(event.hashes):
            if event.extras and event.extras[index]:
                block = chained(block, event.extras[index])
            rest += packed[index * step : (index + 1) * step]
            place, rest = self._cut(block, rest)
            block = place.block
            self._put(ledger, name, place)
        return True

    def _cut(self, block: int, rest: bytes) -> tuple[_Place, bytes]:
        size = self.block_tokens * TOKEN_BYTES
        completed: tuple[int, ...] = ()
        while len(rest) >= size:
            block = chained(block, rest[:size])
            rest = rest[size:]
            completed += (block,)
        return _Place(block, rest, completed), rest

    def _put(self, ledger: Ledger, name: EngineHash, place: _Place) -> None:
        if name in ledger.places:
            return
        ledger.places[name] = place
        self.used_bytes += PLACE_BYTES
        for block in place.completed:
            shard = self._shards[block % _SHARDS]
            mask = shard.get(block, 0)
            if mask & ledger.bit:
                ledger.shared[block] = ledger.shared.get(block, 0) + 1
                continue
            shard[block] = mask | ledger.bit
            if not mask:
                self.rows += 1
                self.used_bytes += ROW_BYTES

    def _take(self, ledger: Ledger, place: _Place | None) -> None:
        if place is None:
            return
        self.used_bytes -= PLACE_BYTES
        for block in place.completed:
            others = ledger.shared.pop(block, 0)
            if others > 1:
                ledger.shared[block] = others - 1
            if others:
                continue
            shard = self._shards[block % _SHARDS]
            shard[block] ^= ledger.bit
            if not shard[block]:
                del shard[block]
                self.rows -= 1
                self.used_bytes -= ROW_BYTES

    def _mask(self, block: int) -> int:
        return self._shards[block % _SHARDS].get(block, 0)

    def _reach(self, hashes: Sequence[int], low: int, held: int) -> int:
        """The first index from `low` on at which not all of `held` hold; in growing steps, then halving."""
        high, step = len(hashes), 1
        while low < high:
            probe = min(low + step, high) - 1
            if self._mask(hashes[probe]) & held != held:
                high = probe
                break
            low, step = probe + 1, step * 2
        while low < high:
            middle = (low + high) // 2
            if self._mask(hashes[middle]) & held == held:
                low = middle + 1
            else:
                high = middle
        return low

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every row as (hash, mask); for audits, never on the way of a request."""
        return (row for shard in self._shards for row in shard.items())

    def __repr__(self) -> str:
        return f"<StoredBlocks [{self.rows} blocks of {self.block_tokens} tokens | {self.used_bytes} bytes]>"
