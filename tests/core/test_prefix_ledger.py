"""Laws of the blocks that engines' events name."""

from __future__ import annotations

import tracemalloc
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.core.kv_event import BlocksStored
from router.core.prefix_chain import chain
from router.core.prefix_ledger import PLACE_BYTES, ROW_BYTES, Fit, Ledger, StoredBlocks
from router.core.prompt_key import Partition

PART = Partition("model", "", "")
PROMPT = tuple(range(100, 164))
ROOM = 1 << 30


def stored(
    tokens: tuple[int, ...],
    block_tokens: int = 16,
    *,
    skip: int = 0,
    partition: Partition = PART,
    extras: tuple[bytes, ...] = (),
) -> BlocksStored:
    """The event of a prompt, an engine's name of a block being all the tokens up to its end, without `skip`
    blocks that were stored before."""
    names = [repr(tokens[:end]).encode() for end in range(block_tokens, len(tokens) + 1, block_tokens)]
    whole = len(names) * block_tokens
    return BlocksStored(
        partition,
        tuple(names[skip:]),
        names[skip - 1] if skip else None,
        tokens[skip * block_tokens : whole],
        block_tokens,
        extras,
    )


def held(table: StoredBlocks, ledger: Ledger, tokens: tuple[int, ...], partition: Partition = PART) -> int:
    depths = table.match(chain(partition, tokens, table.block_tokens), ledger.bit)
    assert all(mask == ledger.bit for _, mask in depths)
    return sum(length for length, _ in depths)


def audit(table: StoredBlocks, *ledgers: Ledger) -> None:
    """Every row is held by whom the ledgers say, and the account is the sum over rows and places."""
    rows: dict[int, int] = {}
    for ledger in ledgers:
        completed = Counter(block for place in ledger.places.values() for block in place.completed)
        assert ledger.shared == {block: count - 1 for block, count in completed.items() if count > 1}
        for block in completed:
            rows[block] = rows.get(block, 0) | ledger.bit
    assert dict(table) == rows
    assert table.rows == len(rows)
    assert table.used_bytes == ROW_BYTES * len(rows) + PLACE_BYTES * sum(len(one.places) for one in ledgers)


def test_stored_blocks_are_held_until_they_are_removed() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    event = stored(PROMPT)
    assert table.store(ledger, event) is Fit.WELL
    assert held(table, ledger, PROMPT) == 64
    assert held(table, ledger, (*PROMPT[:40], 7, *PROMPT[41:])) == 32
    table.remove(ledger, event.hashes[-1:])
    assert held(table, ledger, PROMPT) == 48
    table.remove(ledger, event.hashes[2::-1])
    assert table.rows == table.used_bytes == 0


def test_every_worker_has_its_own_length() -> None:
    table, ledgers = StoredBlocks(16, ROOM), [Ledger(1 << n) for n in range(4)]
    for count, ledger in enumerate(ledgers):
        table.store(ledger, stored(PROMPT[: 16 * count]))
    assert table.match(chain(PART, PROMPT, 16), 0b1111) == [(16, 0b10), (32, 0b100), (48, 0b1000)]
    assert table.match(chain(PART, PROMPT, 16), 0b0100) == [(32, 0b100)]
    assert table.match(chain(PART, PROMPT, 16), 0) == []
    assert table.match((), 0b1111) == []


def test_a_later_event_continues_its_parent() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    table.store(ledger, stored(PROMPT[:32]))
    assert table.store(ledger, stored(PROMPT, skip=2)) is Fit.WELL
    assert held(table, ledger, PROMPT) == 64


def test_an_event_whose_parent_was_lost_is_an_orphan() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    assert table.store(ledger, stored(PROMPT, skip=2)) is Fit.ORPHAN
    assert (ledger.orphans, ledger.resident_tokens, table.used_bytes) == (1, 0, 0)


def test_an_event_whose_tokens_do_not_fill_its_blocks_is_not_taken() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    assert table.store(ledger, BlocksStored(PART, (1, 2), None, PROMPT[:31], 16)) is Fit.ORPHAN
    assert table.used_bytes == 0


def test_the_same_event_twice_changes_nothing() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    for _ in range(2):
        table.store(ledger, stored(PROMPT))
        audit(table, ledger)
    table.remove(ledger, stored(PROMPT).hashes[::-1] * 2)
    audit(table, ledger)
    assert held(table, ledger, PROMPT) == 0


def test_blocks_that_are_not_known_are_removed_without_effect() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    table.store(ledger, stored(PROMPT))
    table.remove(ledger, (12345, b"unknown"))
    assert held(table, ledger, PROMPT) == 64


def test_pages_of_one_token_are_counted_into_blocks() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    table.store(ledger, stored(PROMPT[:30], 1))
    assert held(table, ledger, PROMPT) == 16
    table.store(ledger, stored(PROMPT[:32], 1, skip=30))
    assert held(table, ledger, PROMPT) == 32
    table.remove(ledger, stored(PROMPT[:32], 1).hashes[-1:])
    assert held(table, ledger, PROMPT) == 16
    assert ledger.resident_tokens == 31


def test_an_engines_larger_block_is_several_of_ours() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    table.store(ledger, stored(PROMPT, 32))
    assert held(table, ledger, PROMPT) == 64
    table.remove(ledger, stored(PROMPT, 32).hashes[-1:])
    assert held(table, ledger, PROMPT) == 32


def test_a_fork_within_an_engines_block_leaves_what_both_sides_share() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1)
    forked = stored((*PROMPT[:16], *range(16)), 32)
    table.store(ledger, stored(PROMPT[:32], 32))
    table.store(ledger, forked)
    table.remove(ledger, forked.hashes)
    assert held(table, ledger, PROMPT) == 32
    audit(table, ledger)


def test_partitions_and_extras_are_part_of_a_block() -> None:
    table, ledger, salted = StoredBlocks(16, ROOM), Ledger(1), Partition("model", "", "salt")
    table.store(ledger, stored(PROMPT, partition=salted))
    assert held(table, ledger, PROMPT) == 0
    assert held(table, ledger, PROMPT, salted) == 64
    images, other = StoredBlocks(16, ROOM), Ledger(1)
    images.store(other, stored(PROMPT, extras=(b"", b"", b"an image", b"")))
    assert held(images, other, PROMPT) == 32


def test_a_full_table_takes_no_more_and_says_so() -> None:
    table, ledger = StoredBlocks(16, 4 * (ROW_BYTES + PLACE_BYTES)), Ledger(1)
    assert table.store(ledger, stored(PROMPT)) is Fit.WELL
    assert table.store(ledger, stored(PROMPT[16:])) is Fit.FULL
    audit(table, ledger)


def test_a_ledger_that_only_counts_places_nothing() -> None:
    table, ledger = StoredBlocks(16, ROOM), Ledger(1, counts_only=True)
    assert table.store(ledger, stored(PROMPT, skip=2)) is Fit.WELL
    assert (ledger.resident_tokens, table.rows) == (32, 0)
    table.remove(ledger, stored(PROMPT).hashes[-1:])
    assert ledger.resident_tokens == 16


def test_a_sweep_takes_as_many_steps_as_it_may() -> None:
    table, gone, other = StoredBlocks(16, ROOM), Ledger(1), Ledger(2)
    table.store(gone, stored(PROMPT))
    table.store(other, stored(PROMPT))
    assert table.sweep(gone, 3) == 3
    audit(table, gone, other)
    assert table.sweep(gone, 3) == 1
    assert held(table, other, PROMPT) == 64
    assert table.used_bytes == 4 * (ROW_BYTES + PLACE_BYTES)


def test_a_gap_does_not_trap_a_match() -> None:
    table, ledgers = StoredBlocks(16, ROOM), [Ledger(1), Ledger(2)]
    for ledger in ledgers:
        table.store(ledger, stored(PROMPT))
    table.remove(ledgers[0], stored(PROMPT).hashes[1:2])
    assert table.match(chain(PART, PROMPT[:32], 16), 0b11) == [(16, 0b01), (32, 0b10)]


class Engines(RuleBasedStateMachine):
    """Engines that store along chains and drop leaves, beside plain sets of what each one holds."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = [Ledger(1), Ledger(2)]
        self.chains: list[set[tuple[int, ...]]] = [set(), set()]

    @initialize(ours=st.integers(1, 4), theirs=st.integers(1, 5))
    def sizes(self, ours: int, theirs: int) -> None:
        self.table = StoredBlocks(ours, ROOM)
        self.size = theirs

    @rule(engine=st.integers(0, 1), tokens=st.lists(st.integers(0, 1), max_size=14).map(tuple))
    def prefill(self, engine: int, tokens: tuple[int, ...]) -> None:
        event = stored(tokens, self.size)
        known = sum(name in self.ledgers[engine].places for name in event.hashes)
        if event.hashes[known:]:
            assert self.table.store(self.ledgers[engine], stored(tokens, self.size, skip=known)) is Fit.WELL
        ends = range(self.size, len(tokens) + 1, self.size)
        self.chains[engine] |= {tokens[:end] for end in ends}

    @rule(engine=st.integers(0, 1), data=st.data())
    def evict_leaf(self, engine: int, data: st.DataObject) -> None:
        chains = self.chains[engine]
        leaves = [one for one in chains if not any(two[: len(one)] == one != two for two in chains)]
        if leaves:
            leaf = data.draw(st.sampled_from(sorted(leaves)))
            chains.remove(leaf)
            self.table.remove(self.ledgers[engine], (repr(leaf).encode(),))

    @rule(tokens=st.lists(st.integers(0, 1), max_size=16).map(tuple))
    def match(self, tokens: tuple[int, ...]) -> None:
        for engine, ledger in enumerate(self.ledgers):
            assert held(self.table, ledger, tokens) == self.naive(engine, tokens)
        both = self.table.match(chain(PART, tokens, self.table.block_tokens), 0b11)
        found = {bit: length for length, mask in both for bit in (1, 2) if mask & bit}
        assert found == {1 << n: length for n in range(2) if (length := self.naive(n, tokens))}

    def naive(self, engine: int, tokens: tuple[int, ...]) -> int:
        size, best = self.table.block_tokens, 0
        for one in self.chains[engine]:
            common = 0
            while common + size <= len(one) and one[: common + size] == tokens[: common + size]:
                common += size
            best = max(best, common)
        return best

    @invariant()
    def the_account_is_the_sum_of_its_parts(self) -> None:
        audit(self.table, *self.ledgers)


Engines.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestEngines = Engines.TestCase


def test_the_account_of_ledgers_is_an_upper_bound_of_the_memory_taken() -> None:
    table, ledgers = StoredBlocks(16, ROOM), [Ledger(1 << (8 * n)) for n in range(4)]
    events = [
        BlocksStored(PART, tuple(hash((n, k)) for k in range(64)), None, tuple(range(n, n + 1024)), 16)
        for n in range(100)
    ]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, event in enumerate(events):
            table.store(ledgers[number % 4], event)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * table.used_bytes < taken < table.used_bytes
