"""A prefix tree against a naive model, and the bounds of its memory and of one step."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.prefix_tree import (
    END_BYTES,
    LONGEST_PATH,
    NODE_BYTES,
    Book,
    End,
    Node,
    PrefixTree,
    Root,
)
from tests.core.tree_examples import PART, common, held_by, sure


def path(node: Node | None) -> bytes:
    edges = []
    while node is not None:
        edges.append(node.edge)
        node = node.parent
    return b"".join(reversed(edges))


def audit(tree: PrefixTree, books: Iterable[Book]) -> None:
    """Every law of the tree that can be read off it, and the account against the sum over its parts."""
    books = list(books)
    nodes = list(tree)
    roots = [node for node in nodes if isinstance(node, Root)]
    total = sum(root.used_bytes for root in roots) + END_BYTES * sum(len(book.ends) for book in books)
    held: Counter[int] = Counter()
    ends: Counter[int] = Counter()
    for book in books:
        touched = [end.touched for end in book.ends.values()]
        assert touched == sorted(touched)
        for node, end in book.ends.items():
            assert end.node is node
            assert node.mask & book.bit
            ends[id(node)] += 1
    for node in nodes:
        assert all(child.edge[0] == first and child.parent is node for first, child in node.children.items())
        if node.parent is None:
            assert node.children
            assert not node.edge
            continue
        total += NODE_BYTES + len(node.edge)
        assert node.edge
        assert node.mask
        assert node.ends == ends[id(node)]
        assert node.parent.parent is None or not node.mask & ~node.parent.mask
        for book in books:
            if node.mask & book.bit:
                held[book.bit] += len(node.edge)
                assert node in book.ends or any(c.mask & book.bit for c in node.children.values())
    assert all(book.held_bytes == held[book.bit] for book in books)
    assert tree.used_bytes == total
    assert tree.nodes == len(nodes) - len(roots)


# --- against a naive model -------------------------------------------------------------------------------

TEXTS = st.text("ab", min_size=1, max_size=9).map(str.encode)


class Story(RuleBasedStateMachine):
    """Any order of dispatches, outcomes and evictions, beside plain sets of texts per worker."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.books = [Book(1 << n) for n in range(3)]
        self.sure: list[set[bytes]] = [set() for _ in self.books]
        self.pending: list[Counter[bytes]] = [Counter() for _ in self.books]
        self.claims: list[tuple[int, bytes, End]] = []
        self.now = 0.0

    @rule(worker=st.integers(0, 2), text=TEXTS)
    def dispatch(self, worker: int, text: bytes) -> None:
        self.now += 1.0
        before = self.naive(worker, text)
        found = self.tree.insert(PART, text, self.books[worker], self.now)
        assert found.held == before
        assert found.sure <= before
        self.pending[worker][text] += 1
        self.claims.append((worker, text, found.end))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), tail=TEXTS)
    def extend(self, data: st.DataObject, tail: bytes) -> None:
        worker, text, end = data.draw(st.sampled_from(self.claims))
        found = self.tree.extend(end, tail, self.books[worker], self.now)
        if found is not None:
            self.pending[worker][text + tail] += 1
            self.claims.append((worker, text + tail, found.end))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), well=st.booleans())
    def settle(self, data: st.DataObject, well: bool) -> None:
        self.now += 1.0
        index = data.draw(st.integers(0, len(self.claims) - 1))
        worker, text, end = self.claims.pop(index)
        believed = end.node is not None
        if well:
            self.tree.confirm(end, self.books[worker], self.now)
        else:
            self.tree.withdraw(end, self.books[worker])
        if believed:
            self.pending[worker][text] -= 1
            if well:
                self.sure[worker].add(text)

    @rule(worker=st.integers(0, 2))
    def evict(self, worker: int) -> None:
        book = self.books[worker]
        if not book.ends:
            return
        oldest = next(iter(book.ends))
        gone = path(oldest)
        before = {text: self.naive(worker, text) for text in self.held(worker)}
        self.tree.evict(book)
        # What the tree still lists as ends is what remains; nothing may appear that was not held.
        self.sure[worker] = {path(node) for node, end in book.ends.items() if end.sure}
        self.pending[worker] = Counter(
            {path(node): end.pending for node, end in book.ends.items() if end.pending}
        )
        for text, length in before.items():
            assert self.naive(worker, text) <= length
            assert self.naive(worker, text) == length or text.startswith(gone) or gone.startswith(text)

    def held(self, worker: int) -> set[bytes]:
        return self.sure[worker] | set(+self.pending[worker])

    def naive(self, worker: int, text: bytes) -> int:
        return max((common(text, held) for held in self.held(worker)), default=0)

    @invariant()
    def every_match_is_that_of_the_naive_model(self) -> None:
        for text in {held + b"a" for worker in range(3) for held in self.held(worker)} | {b"abab"}:
            expected = {1 << w: length for w in range(3) if (length := self.naive(w, text))}
            assert held_by(self.tree, text) == expected

    @invariant()
    def the_laws_of_the_tree_hold(self) -> None:
        audit(self.tree, self.books)

    def teardown(self) -> None:
        for book in self.books:
            while book.ends:
                self.tree.evict(book)
        assert self.tree.used_bytes == self.tree.nodes == 0


Story.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)

TestStory = Story.TestCase


# --- memory ----------------------------------------------------------------------------------------------


def test_the_account_is_an_upper_bound_of_the_memory_taken() -> None:
    texts = [b"system %d. " % (n % 7) + b"%d asks: " % (n * 7919 % 5_000) + bytes(50) for n in range(3_000)]
    tree, books = PrefixTree(), [Book(1 << n) for n in range(0, 64, 8)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, text in enumerate(texts):
            sure(tree, books[number % 8], text, now=float(number))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * tree.used_bytes < taken < tree.used_bytes


# --- bounds of one step ----------------------------------------------------------------------------------


def test_a_path_that_a_client_made_too_long_is_followed_so_far_and_no_further() -> None:
    tree, book, size = PrefixTree(), Book(1), LONGEST_PATH + 100
    sure(tree, book, b"a" * size)
    for length in range(size - 1, 0, -1):  # each splits off a shorter prefix, and stands on two nodes itself
        sure(tree, book, b"a" * length + b"b")
    assert held_by(tree, b"a" * size) == {1: LONGEST_PATH}
    found = tree.insert(PART, b"a" * size, book, 1.0)
    assert (found.held, found.length) == (LONGEST_PATH, LONGEST_PATH)
    tree.confirm(found.end, book, 1.0)
    audit(tree, [book])
    while book.ends:
        tree.evict(book)
    assert tree.used_bytes == 0
