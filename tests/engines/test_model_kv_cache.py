"""Blocks are conserved, held ones are never reused, and the least useful content goes first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.model.block_hash import BlockChain, BlockHash
from engines.model.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlocksStored,
    KvCache,
    KvCacheError,
    blocks_for,
)

SIZE = 4


def chain_of(blocks: int, start: int = 0) -> BlockChain:
    chain = BlockChain(range(start, start + blocks * SIZE), SIZE)
    chain.hash_full_blocks()
    return chain


def fill(kv: KvCache, chain: BlockChain) -> list[int]:
    """Hold new blocks for all of `chain` and cache the full ones."""
    blocks = kv.allocate(blocks_for(len(chain.tokens), SIZE))
    kv.store(chain, blocks, 0, len(chain.hashes))
    return blocks


def test_the_null_block_is_never_handed_out() -> None:
    kv = KvCache(8, SIZE)
    assert sorted(kv.allocate(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert kv.usage == 1.0
    assert kv.capacity_tokens == 7 * SIZE


def test_usage_counts_held_blocks_only() -> None:
    kv = KvCache(9, SIZE)
    blocks = fill(kv, chain_of(4))
    assert kv.usage == 0.5
    kv.free(blocks)
    assert kv.usage == 0.0
    assert kv.cached_blocks == 4


def test_a_hit_is_the_longest_cached_prefix_within_the_limit() -> None:
    kv = KvCache(20, SIZE)
    chain = chain_of(6)
    blocks = fill(kv, chain)
    kv.free(blocks)
    assert kv.find(chain.hashes, 6) == blocks
    assert kv.find(chain.hashes, 4) == blocks[:4]
    assert kv.find([*chain.hashes[:2], b"other", *chain.hashes[3:]], 6) == blocks[:2]
    assert kv.find(chain.hashes[1:], 6) == blocks[1:]


def test_a_block_that_two_sequences_hold_is_free_after_the_second_lets_go() -> None:
    kv = KvCache(4, SIZE)
    blocks = fill(kv, chain_of(2))
    kv.take(blocks)
    kv.free(blocks)
    assert kv.used_blocks == 2
    kv.free(blocks)
    assert kv.used_blocks == 0


def test_taking_a_free_cached_block_saves_it_from_reuse() -> None:
    kv = KvCache(4, SIZE)
    blocks = fill(kv, chain_of(2))
    kv.free(blocks)
    kv.take(blocks)
    assert not kv.can_allocate(2)
    assert kv.allocate(1) == [3]


def test_uncached_blocks_are_reused_before_anything_cached_is_lost() -> None:
    kv = KvCache(8, SIZE)
    chain = BlockChain(range(2 * SIZE + 1), SIZE)
    chain.hash_full_blocks()
    blocks = fill(kv, chain)
    kv.free(blocks)
    assert kv.allocate(1) == blocks[2:]
    assert kv.cached_blocks == 2


def test_the_oldest_sequence_loses_its_tail_first() -> None:
    kv = KvCache(7, SIZE, record_events=True)
    old, new = chain_of(3), chain_of(3, start=1_000)
    held = fill(kv, old), fill(kv, new)
    kv.free(held[0])
    kv.free(held[1])
    kv.drain_events()
    kv.allocate(4)
    removed = [event.hash for event in kv.drain_events() if isinstance(event, BlockRemoved)]
    assert removed == [*reversed(old.hashes), new.hashes[2]]


def test_a_hit_makes_content_young_again() -> None:
    kv = KvCache(5, SIZE)
    first, second = chain_of(2), chain_of(2, start=1_000)
    blocks = fill(kv, first)
    other = fill(kv, second)
    kv.free(blocks)
    kv.free(other)
    kv.take(blocks)
    kv.free(blocks)
    kv.allocate(2)
    assert kv.find(first.hashes, 2) == blocks
    assert kv.find(second.hashes, 2) == []


def test_equal_blocks_of_two_sequences_survive_the_loss_of_one() -> None:
    kv = KvCache(5, SIZE)
    chain = chain_of(2)
    first, second = fill(kv, chain), fill(kv, chain)
    kv.free(first)
    kv.allocate(2)
    assert kv.find(chain.hashes, 2) == second


def test_allocating_more_than_is_free_is_a_bug_and_changes_nothing() -> None:
    kv = KvCache(4, SIZE)
    with pytest.raises(KvCacheError, match="4 blocks asked for and 3 free"):
        kv.allocate(4)
    assert kv.free_blocks == 3


@pytest.mark.parametrize("block", [0, 1])
def test_freeing_what_is_not_held_is_a_bug(block: int) -> None:
    with pytest.raises(KvCacheError, match="without being held"):
        KvCache(4, SIZE).free([block])


@pytest.mark.parametrize(("num_blocks", "size"), [(1, 16), (10, 0)])
def test_a_cache_without_room_is_refused(num_blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least two blocks"):
        KvCache(num_blocks, size)


def test_reset_forgets_everything_unless_a_block_is_held() -> None:
    kv = KvCache(6, SIZE, record_events=True)
    chain = chain_of(2)
    blocks = fill(kv, chain)
    assert not kv.reset()
    assert kv.find(chain.hashes, 2) == blocks
    kv.free(blocks)
    kv.drain_events()
    assert kv.reset()
    assert kv.find(chain.hashes, 2) == []
    assert kv.drain_events() == [AllBlocksCleared()]


def test_stored_events_chain_to_what_was_stored_before() -> None:
    kv = KvCache(10, SIZE, record_events=True)
    chain = BlockChain(range(3 * SIZE), SIZE, lora="sql", cache_salt="s")
    chain.hash_full_blocks()
    blocks = kv.allocate(3)
    kv.store(chain, blocks, 0, 2)
    kv.store(chain, blocks, 2, 3)
    kv.store(chain, blocks, 3, 3)
    first, second = kv.drain_events()
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert first.parent is None
    assert first.token_ids == tuple(range(2 * SIZE))
    assert first.extra_keys == (("sql", "s"), ("sql",))
    assert first.lora == "sql"
    assert second.parent == first.hashes[-1]
    assert second.hashes == (chain.hashes[2],)
    assert kv.drain_events() == []


def test_nothing_is_recorded_unless_asked_for() -> None:
    kv = KvCache(3, SIZE)
    kv.free(fill(kv, chain_of(2)))
    kv.allocate(2)
    assert kv.drain_events() == []


def test_repr_shows_the_account() -> None:
    kv = KvCache(9, SIZE)
    fill(kv, chain_of(3))
    assert repr(kv) == "<KvCache 3/8 blocks of 4 held | 3 cached>"


@given(st.integers(0, 10_000), st.integers(1, 256))
def test_blocks_for_is_just_enough(tokens: int, size: int) -> None:
    blocks = blocks_for(tokens, size)
    assert blocks * size >= tokens
    assert (blocks - 1) * size < tokens


class Cache(RuleBasedStateMachine):
    """Sequences over a small alphabet of prefixes come, grow, fork and go; a plain model keeps count."""

    @initialize(num_blocks=st.integers(2, 24))
    def start(self, num_blocks: int) -> None:
        self.kv = KvCache(num_blocks, SIZE, record_events=True)
        self.held: list[tuple[BlockChain, list[int]]] = []
        self.known: dict[BlockHash, int] = {}

    @rule(blocks=st.integers(1, 6), start=st.integers(0, 2), partial=st.booleans())
    def admit(self, blocks: int, start: int, partial: bool) -> None:
        chain = BlockChain(range(start, start + blocks * SIZE + partial), SIZE)
        hits = self.kv.find(chain.hash_full_blocks(), blocks)
        missing = blocks_for(len(chain.tokens), SIZE) - len(hits)
        if not self.kv.can_allocate(missing, held_back=hits):
            return
        self.kv.take(hits)
        table = hits + self.kv.allocate(missing)
        self.kv.store(chain, table, len(hits), blocks)
        self.held.append((chain, table))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        _, table = self.held.pop(index)
        self.kv.free(table)

    @rule()
    def reset(self) -> None:
        assert self.kv.reset() is (not self.held)

    @invariant()
    def blocks_are_conserved(self) -> None:
        holders: dict[int, int] = {}
        for _, table in self.held:
            for block in table:
                holders[block] = holders.get(block, 0) + 1
        assert self.kv._refs[1:] == [holders.get(block, 0) for block in range(1, self.kv.num_blocks)]
        free = [*self.kv._blank, *self.kv._idle]
        assert sorted(free) == sorted(set(range(1, self.kv.num_blocks)) - set(holders))
        assert {block for block in free if self.kv._hash_of[block] is not None} == set(self.kv._idle)
        assert self.kv.usage == pytest.approx(len(holders) / (self.kv.num_blocks - 1))

    @invariant()
    def what_is_held_can_be_found(self) -> None:
        for chain, table in self.held:
            found = self.kv.find(chain.hashes, len(chain.hashes))
            assert len(found) == len(chain.hashes)
            assert all(self.kv._hash_of[block] == h for block, h in zip(table, chain.hashes, strict=False))

    @invariant()
    def events_tell_exactly_what_is_cached(self) -> None:
        for event in self.kv.drain_events():
            match event:
                case BlocksStored(hashes=hashes):
                    for block_hash in hashes:
                        self.known[block_hash] = self.known.get(block_hash, 0) + 1
                case BlockRemoved(hash=block_hash):
                    self.known[block_hash] -= 1
                case AllBlocksCleared():
                    self.known.clear()
        twins = self.kv._twins
        cached = {block_hash: 1 + len(twins.get(block_hash, ())) for block_hash in self.kv._cached}
        assert twins.keys() <= cached.keys()
        assert {block_hash: count for block_hash, count in self.known.items() if count} == cached


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
