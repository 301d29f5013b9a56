"""Laws of the radix tree of prefixes."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.errors import InternalError
from router.core.prefix_tree import (
    END_BYTES,
    LONGEST_PATH,
    NODE_BYTES,
    Book,
    End,
    Node,
    PrefixTree,
    Root,
    common_length,
)
from router.core.prompt_key import Partition

PART = Partition("model", "", "")
OTHER = Partition("model", "", "salt")
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


# --- matching ----------------------------------------------------------------------------------------


def test_every_holder_is_found_with_its_own_length() -> None:
    tree, one, two, three = PrefixTree(), Book(1), Book(2), Book(4)
    sure(tree, one, b"system: be kind. user: hello")
    sure(tree, two, b"system: be kind. user: what")
    sure(tree, three, b"system: be brief.")
    assert held_by(tree, b"system: be kind. user: hello there") == {1: 28, 2: 23, 4: 11}
    assert held_by(tree, b"nothing") == {}
    assert held_by(tree, b"") == {}


def test_workers_that_are_gone_are_masked_out() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abc")
    sure(tree, two, b"abc")
    assert held_by(tree, b"abc", live=2) == {2: 3}
    assert held_by(tree, b"abc", live=0) == {}


def test_partitions_share_nothing() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc")
    assert held_by(tree, b"abc", OTHER) == {}


def test_a_prompt_within_a_longer_one_is_held_whole() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abcdef")
    assert held_by(tree, b"abc") == {1: 3}
    assert tree.nodes == 1


def test_bytes_are_the_unit_of_every_text() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, "größer".encode())
    assert held_by(tree, "größte".encode()) == {1: len("größ".encode())}


def test_nobody_holds_an_empty_text() -> None:
    with pytest.raises(InternalError, match="nothing cannot"):
        PrefixTree().insert(PART, b"", Book(1), 0.0)


@given(
    shared=st.binary(max_size=400),
    one=st.binary(max_size=20),
    other=st.binary(max_size=400),
    at=st.integers(0, 9),
)
def test_common_length_is_that_of_a_byte_by_byte_comparison(
    shared: bytes, one: bytes, other: bytes, at: int
) -> None:
    data, edge = bytes(at) + shared + one, shared + other
    slow = common(data[at:], edge)
    assert common_length(data, at, edge) == slow


# --- outcomes ----------------------------------------------------------------------------------------


def test_a_dispatched_prompt_is_believed_at_once() -> None:
    tree, book = PrefixTree(), Book(1)
    tree.insert(PART, b"abc", book, 0.0)
    assert held_by(tree, b"abcd") == {1: 3}


def test_a_withdrawn_prompt_leaves_what_was_there_before() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"system. first")
    tree.withdraw(tree.insert(PART, b"system. second", book, 1.0).end, book)
    assert held_by(tree, b"system. second") == {1: 8}
    assert held_by(tree, b"system. first") == {1: 13}
    assert tree.nodes == 1


def test_a_withdrawn_prompt_stays_while_another_of_the_same_text_runs() -> None:
    tree, book = PrefixTree(), Book(1)
    first, second = (tree.insert(PART, b"abc", book, 0.0).end for _ in range(2))
    tree.withdraw(first, book)
    assert held_by(tree, b"abc") == {1: 3}
    tree.withdraw(second, book)
    assert held_by(tree, b"abc") == {}
    assert tree.used_bytes == 0


def test_a_prompt_that_was_confirmed_once_is_not_withdrawn_by_a_later_failure() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc")
    tree.withdraw(tree.insert(PART, b"abc", book, 1.0).end, book)
    assert held_by(tree, b"abc") == {1: 3}


def test_an_outcome_after_eviction_changes_nothing() -> None:
    tree, book = PrefixTree(), Book(1)
    kept, lost = (tree.insert(PART, text, book, 0.0).end for text in (b"abc", b"xyz"))
    tree.evict(book)
    tree.evict(book)
    tree.confirm(kept, book, 1.0)
    tree.withdraw(lost, book)
    assert tree.extend(kept, b"d", book, 1.0) is None
    assert tree.used_bytes == book.held_bytes == 0


def test_an_outcome_that_comes_twice_is_a_bug() -> None:
    tree, book = PrefixTree(), Book(1)
    end = sure(tree, book, b"abc")
    with pytest.raises(InternalError, match="more often"):
        tree.confirm(end, book, 1.0)
    with pytest.raises(InternalError, match="more often"):
        tree.withdraw(end, book)


def test_an_answer_continues_the_text_of_its_prompt() -> None:
    tree, book = PrefixTree(), Book(1)
    end = sure(tree, book, b"question ")
    sure(tree, Book(2), b"question also asked")  # splits nothing away from under the end
    longer = tree.extend(end, b"answer", book, 1.0)
    assert longer is not None
    tree.confirm(longer.end, book, 1.0)
    assert held_by(tree, b"question answer next") == {1: 15, 2: 10}


def test_an_insertion_says_what_was_held_before_it() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"turn one.", now=5.0)
    found = tree.insert(PART, b"turn one. turn two.", book, 6.0)
    assert (found.held, found.sure, found.sure_touched) == (9, 9, 5.0)
    again = tree.insert(PART, b"turn one. turn two or three.", book, 7.0)
    assert (again.held, again.sure, again.sure_touched) == (18, 9, 5.0)


def test_a_prefix_in_flight_is_held_but_not_sure() -> None:
    tree, book = PrefixTree(), Book(1)
    tree.insert(PART, b"abc", book, 0.0)
    found = tree.insert(PART, b"abcd", book, 0.0)
    assert (found.held, found.sure) == (3, 0)


# --- shape -------------------------------------------------------------------------------------------


def test_the_turns_of_a_conversation_become_one_node() -> None:
    tree, book, text = PrefixTree(), Book(1), b""
    for turn in range(20):
        text += b"turn %d. " % turn
        sure(tree, book, text, now=turn)
    assert tree.nodes == 1
    assert len(book.ends) == 1
    assert held_by(tree, text) == {1: len(text)}


def test_a_node_is_joined_again_when_its_branch_is_gone() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"abc-one")
    for number in range(50):
        tree.withdraw(tree.insert(PART, b"abc-%d" % number, book, 1.0).end, book)
        assert tree.nodes == 1


def test_a_node_that_others_hold_apart_is_not_joined() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abcdef")
    sure(tree, two, b"abc")
    assert held_by(tree, b"abcdef") == {1: 6, 2: 3}
    assert tree.nodes == 2


# --- eviction ----------------------------------------------------------------------------------------


def test_the_least_recently_used_end_goes_first() -> None:
    tree, book = PrefixTree(), Book(1)
    for now, text in enumerate((b"first", b"second", b"third", b"first")):
        sure(tree, book, text, now=now)
    tree.evict(book)
    assert held_by(tree, b"second") == {}
    assert held_by(tree, b"first") == {1: 5}
    assert book.oldest == 2


def test_eviction_takes_leaves_before_what_they_stand_on() -> None:
    tree, book = PrefixTree(), Book(1)
    sure(tree, book, b"system. one", now=0.0)
    sure(tree, book, b"system. two", now=1.0)
    tree.evict(book)
    assert held_by(tree, b"system. one") == {1: 8}
    tree.evict(book)
    assert tree.used_bytes == 0


def test_a_prefix_is_as_old_as_its_youngest_continuation() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    for book in (two, one):
        sure(tree, book, b"system. one", now=0.0)
        sure(tree, book, b"system. two", now=1.0)
    sure(tree, one, b"other", now=2.0)
    tree.evict(one)
    tree.evict(one)
    assert (held_by(tree, b"system. two"), one.oldest) == ({1: 8, 2: 11}, 1.0)
    tree.evict(one)
    assert (held_by(tree, b"system. two"), one.oldest) == ({2: 11}, 2.0)


def test_evicting_one_worker_leaves_the_text_to_the_others() -> None:
    tree, one, two = PrefixTree(), Book(1), Book(2)
    sure(tree, one, b"abc")
    sure(tree, two, b"abc")
    tree.evict(one)
    assert held_by(tree, b"abc") == {2: 3}
    assert one.held_bytes == 0


# --- against a naive model ---------------------------------------------------------------------------

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


# --- memory ------------------------------------------------------------------------------------------


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


# --- bounds of one step ------------------------------------------------------------------------------


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
