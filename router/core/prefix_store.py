"""The trees and ledgers of the prefix index within their bounds: bytes in all, tokens per worker, age.

Separate because every bound is kept the same way, by evicting from the old end of some worker's book, a few
steps at a time: no request pays for more than about what it adds, and the rest is done by `sweep`.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush, heapreplace

from router.core.prefix_chain import HASH_BYTES
from router.core.prefix_holder import Holder
from router.core.prefix_ledger import Ledger, StoredBlocks
from router.core.prefix_settings import PrefixSettings, TreeBound
from router.core.prefix_slots import Slots
from router.core.prefix_tree import Book, PrefixTree
from router.core.tokens import BYTES_PER_TOKEN

_STEPS_PER_INSERT = 64
_LEDGERS_SHARE = 0.5  # of all bytes: the rest stays for beliefs, which work without events
_LONGEST_SHARE = 1 / 8  # of all bytes, for a single prompt
_RATIO_WEIGHT = 0.05
_RATIO_BOUNDS = (0.5, 16.0)  # bytes a token; beyond them the text is not what the engine tokenized
_HEADROOM = 1 / 16  # of all bytes, kept free by sweeps so that requests seldom have to evict


class PrefixStore:
    """The trees and ledgers of the index, kept within their bounds.

    Attributes:
        bytes_per_token: of canonical text, as learned; converts a worker's capacity.
        evicted: nodes and ends evicted so far, for a metric.
        tree_bound: of the text of one worker, by the wish of a policy.
    """

    def __init__(self, settings: PrefixSettings) -> None:
        self.settings = settings
        self.text = PrefixTree()
        self.blocks = PrefixTree()
        self.predicted = PrefixTree()
        self.event_blocks = StoredBlocks(settings.block_tokens, int(settings.max_bytes * _LEDGERS_SHARE))
        self.slots = Slots()
        self.ledger_slots = Slots()
        self.bytes_per_token = BYTES_PER_TOKEN
        self.evicted = 0
        self.tree_bound = TreeBound()
        self._trimmed = float("-inf")
        self._by_age: list[tuple[float, int, PrefixTree, Book]] = []
        self._entered = 0
        self._gone: deque[Holder] = deque()
        self._gone_ledgers: deque[Ledger] = deque()

    @property
    def used_bytes(self) -> int:
        return (
            self.text.used_bytes
            + self.blocks.used_bytes
            + self.predicted.used_bytes
            + self.event_blocks.used_bytes
        )

    @property
    def to_sweep(self) -> int:
        """Workers' incarnations and ledgers that are gone and not yet swept."""
        return len(self._gone) + len(self._gone_ledgers)

    def held_tokens(self, holder: Holder) -> float:
        """Tokens that a worker is believed to hold."""
        blocks = holder.blocks.held_bytes // HASH_BYTES * self.settings.block_tokens
        return holder.text.held_bytes / self.bytes_per_token + blocks

    def capacity_tokens(self, holder: Holder) -> float | None:
        """Tokens that it may be believed to hold, None when nobody said what it can."""
        capacity = holder.kv_capacity_tokens
        return None if capacity is None else capacity * self.settings.capacity_share

    def longest_tokens(self, holder: Holder) -> float:
        """What is longer is believed only so far: no more fits into the worker, or too little else here."""
        longest = self.settings.max_bytes * _LONGEST_SHARE / self.bytes_per_token
        capacity = holder.kv_capacity_tokens
        return longest if capacity is None else min(longest, capacity * self.settings.capacity_share)

    def learn_ratio(self, text_bytes: int, tokens: int) -> None:
        """An engine made so many tokens of a prompt of so many bytes."""
        low, high = _RATIO_BOUNDS
        if low <= text_bytes / tokens <= high:
            self.bytes_per_token += (text_bytes / tokens - self.bytes_per_token) * _RATIO_WEIGHT

    # --- what is gone --------------------------------------------------------------------------------

    def retire(self, holder: Holder) -> None:
        """Everything of this incarnation counts as gone. Takes the same time however much it is."""
        holder.gone = True
        self.slots.retire(holder.bit)
        self._gone.append(holder)
        self.retire_ledger(holder)

    def retire_ledger(self, holder: Holder) -> None:
        """What its events said counts as gone."""
        if holder.ledger is not None:
            self.ledger_slots.retire(holder.ledger.bit)
            self._gone_ledgers.append(holder.ledger)
            holder.ledger = None

    # --- bounds --------------------------------------------------------------------------------------

    def entered(self, tree: PrefixTree, book: Book) -> None:
        """Something was put into a book: its age is watched from now on."""
        if not book.queued and book.oldest is not None:
            book.queued = True
            self._entered += 1
            heappush(self._by_age, (book.oldest, self._entered, tree, book))

    def make_room(self, holder: Holder, now: float) -> None:
        """After an insertion: a few steps towards the worker's capacity, all of them for the byte bound."""
        self._fit(holder, _STEPS_PER_INSERT)
        self._age(now, 4)
        while self.used_bytes > self.settings.max_bytes and self._drop_oldest():
            pass

    def sweep(self, holders: list[Holder], now: float, most: int) -> int:
        """At most about `most` steps of everything that is due; returns how many were taken.

        Fewer than `most` means that nothing is due any more.
        """
        steps = self._sweep_gone(most)
        if steps < most:
            steps += self._age(now, most - steps)
        for holder in holders:
            if steps >= most:
                return steps
            steps += self._forget(holder, now, most - steps)
            steps += self._fit(holder, most - steps)
        steps += self._trim(holders, now, most - steps)
        limit = self.settings.max_bytes * (1 - _HEADROOM)
        while steps < most and self.used_bytes > limit and self._drop_oldest():
            steps += 1
        return steps

    def _fit(self, holder: Holder, most: int) -> int:
        """Evicts down to the worker's capacity, and to what its events count."""
        steps = 0
        while steps < most and self._holds_too_much(holder):
            tree, book = self._older(holder)
            tree.evict(book)
            steps += 1
        self.evicted += steps
        return steps

    def _older(self, holder: Holder) -> tuple[PrefixTree, Book]:
        """Where its least recently used prompt is."""
        text, blocks = holder.text.oldest, holder.blocks.oldest
        if text is not None and (blocks is None or text <= blocks):
            return self.text, holder.text
        return self.blocks, holder.blocks

    def _holds_too_much(self, holder: Holder) -> bool:
        """Whether its oldest prompt is one too many.

        Where its events are counted, it holds what they say and what is on its way. The end of a prompt that
        does not fill a block is not among it, and lengths of text are estimates: so the oldest one goes only
        when the others make up the count without it.
        """
        capacity, held = self.capacity_tokens(holder), self.held_tokens(holder)
        if not held:
            return False
        if capacity is not None and held > capacity:
            return True
        if holder.ledger is None or not holder.counted:
            return False
        _, book = self._older(holder)
        per_token = self.bytes_per_token if book is holder.text else HASH_BYTES / self.settings.block_tokens
        oldest = next((len(node.edge) for node in book.ends), 0) / per_token
        return held - oldest >= holder.ledger.resident_tokens + holder.pending_tokens

    def _trim(self, holders: list[Holder], now: float, most: int) -> int:
        """Once per interval, evicts down to the text that one worker may have."""
        bound, steps = self.tree_bound, 0
        if now < self._trimmed + bound.interval_s:
            return 0
        for holder in holders:
            while holder.text.held_bytes > bound.max_bytes:
                if steps >= most:
                    return steps
                self.text.evict(holder.text)
                self.evicted += 1
                steps += 1
        self._trimmed = now
        return steps

    def _forget(self, holder: Holder, now: float, most: int) -> int:
        """Evicts what the worker was found to have forgotten, and predictions that did not come true."""
        steps = self.predicted.expire(holder.predicted, now - self.settings.predicted_ttl_s, now, most)
        steps += self.text.expire(holder.text, holder.forgotten, now, most - steps)
        return steps + self.blocks.expire(holder.blocks, holder.forgotten, now, most - steps)

    def _age(self, now: float, most: int) -> int:
        """Evicts what nobody asked for in a long time."""
        before, steps = now - self.settings.ttl_s, 0
        while steps < most:
            oldest = self._oldest()
            if oldest is None or oldest[0] > before:
                break
            steps += max(oldest[2].expire(oldest[3], before, now, most - steps), 1)
        return steps

    def _drop_oldest(self) -> bool:
        """One step that frees memory: of whoever is gone, else of the book that was used longest ago."""
        if self._sweep_gone(1):
            return True
        oldest = self._oldest()
        if oldest is None:
            return False
        oldest[2].evict(oldest[3])
        self.evicted += 1
        return True

    def _oldest(self) -> tuple[float, int, PrefixTree, Book] | None:
        """The entry of the book with the oldest end. Ages in the heap lag behind; they only ever grow."""
        heap = self._by_age
        while heap:
            age, number, tree, book = heap[0]
            oldest = book.oldest
            if oldest is None:
                book.queued = False
                heappop(heap)
            elif oldest > age:
                heapreplace(heap, (oldest, number, tree, book))
            else:
                return heap[0]
        return None

    def _sweep_gone(self, most: int) -> int:
        steps = 0
        while steps < most and self._gone:
            holder = self._gone[0]
            steps += self._strip(holder, most - steps)
            if holder.empty:
                self._gone.popleft()
                self.slots.free(holder.bit)
        while steps < most and self._gone_ledgers:
            ledger = self._gone_ledgers[0]
            steps += self.event_blocks.sweep(ledger, most - steps)
            if not ledger.places:
                self._gone_ledgers.popleft()
                self.ledger_slots.free(ledger.bit)
        return steps

    def _strip(self, holder: Holder, most: int) -> int:
        steps = 0
        for tree, book in (
            (self.text, holder.text), (self.blocks, holder.blocks), (self.predicted, holder.predicted),
        ):  # fmt: skip
            while steps < most and book.ends:
                tree.evict(book)
                steps += 1
        return steps

    def __repr__(self) -> str:
        share = self.used_bytes / self.settings.max_bytes
        return f"<PrefixStore [{share:.0%} of {self.settings.max_bytes} bytes | {self.to_sweep} to sweep]>"
