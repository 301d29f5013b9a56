"""A radix tree over bytes: which workers are believed to hold which prefix.

Separate because it does not know what its bytes mean: the text of prompts, for which it needs no tokenizer,
or the chained hashes of their token blocks. Bytes stay in one piece where nothing branches: a match costs a
comparison of memory per node visited, not a step per byte.

Laws of the tree:

- No two children of a node begin with the same byte, and only a root has an empty edge.
- Who holds a node holds its parent. A mask of bits per node says who; a worker that is gone keeps its bits
  until its book is swept, and readers mask them out.
- A worker holds a node because a prompt of its own ends there, or because it holds a child. Its book lists
  these ends, least recently used first. A parent counts as used when its last child was, so when a child is
  evicted its parent takes the child's place in the book: eviction is leaf first, in constant time.
- A node that nobody's prompt ends at, with one child held by the same workers, is joined with that child.
  Chains of turns therefore do not grow into chains of nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from router.core.errors import InternalError
from router.core.prompt_key import Partition

NODE_BYTES = 288
"""What a node takes beside its bytes: itself, its edge's header, its children's table, its place in its
parent's, a mask of up to 256 bits. Measured on CPython 3.11, with some margin for the allocator."""

END_BYTES = 224
"""What an end takes: itself, its time, its place in the book."""

Depths = list[tuple[int, int]]
"""(length, mask of the workers that hold exactly so much of a prompt), lengths rising, masks disjoint."""

LONGEST_PATH = 1_024
"""Nodes of one prompt that are looked at. Prompts of people and programs stand on tens; a client that makes
thousands of them share ever shorter prefixes must not slow down everybody."""

_FIRST_COMPARED = 64
_CHARACTER_BYTES = 4  # of a str, at most


# Nodes and ends hold no references that the garbage collector must see: the tree itself takes apart what it
# drops. Left out of its rounds, an index of a million nodes does not lengthen them.
class Node(msgspec.Struct, eq=False, gc=False):
    """What follows its parent's bytes, up to the next place where prompts part or end."""

    edge: bytes
    parent: Node | None
    children: dict[int, Node]
    mask: int = 0
    ends: int = 0  # books in which a prompt ends here


class Root(Node, eq=False, gc=False):
    """Where a partition begins. It stands while anything stands below it."""

    partition: Partition = Partition("", "", "")

    @property
    def used_bytes(self) -> int:
        return NODE_BYTES + _CHARACTER_BYTES * sum(map(len, self.partition))


class End(msgspec.Struct, eq=False, gc=False):
    """One worker's prompt that ends at a node.

    Attributes:
        node: None once it was evicted, withdrawn, or absorbed by a longer prompt.
        touched: when it was last dispatched or confirmed (s).
        pending: dispatches whose outcome is not known yet.
        sure: whether any outcome confirmed it.
    """

    node: Node | None
    touched: float
    pending: int = 0
    sure: bool = False


class Book:
    """The ends of one worker's incarnation, least recently used first. The tree alone writes it.

    Attributes:
        bit: its bit in the masks.
        held_bytes: lengths of all nodes that it holds.
    """

    __slots__ = ("bit", "ends", "held_bytes", "queued")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.ends: OrderedDict[Node, End] = OrderedDict()
        self.held_bytes = 0
        self.queued = False

    @property
    def oldest(self) -> float | None:
        """When its least recently used end was used, None when it holds nothing."""
        for end in self.ends.values():
            return end.touched
        return None

    def __repr__(self) -> str:
        return f"<Book {self.bit.bit_length() - 1} [{len(self.ends)} ends | {self.held_bytes} bytes]>"


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """What an insertion did, and what the worker was believed to hold before it.

    Attributes:
        end: to be confirmed or withdrawn.
        length: bytes that are believed now: all, unless the path was too long.
        held: bytes of the prompt that it was believed to hold.
        sure: bytes of the longest prefix that was a whole prompt of its own, confirmed and not in flight.
        sure_touched: when that one was last used (s).
    """

    end: End
    length: int
    held: int
    sure: int
    sure_touched: float


class PrefixTree:
    """All partitions' trees.

    Attributes:
        used_bytes: what nodes, edges and ends take, by `NODE_BYTES` and `END_BYTES`.
    """

    __slots__ = ("_roots", "nodes", "used_bytes")

    def __init__(self) -> None:
        self._roots: dict[Partition, Root] = {}
        self.used_bytes = 0
        self.nodes = 0

    # --- reading -------------------------------------------------------------------------------------

    def root(self, partition: Partition) -> Node | None:
        return self._roots.get(partition)

    def match(self, partition: Partition, data: bytes, live: int) -> Depths:
        """How much of `data` each worker of the mask `live` holds; who holds nothing is left out."""
        depths: Depths = []
        node: Node | None = self._roots.get(partition)
        at, held, size, steps = 0, live, len(data), LONGEST_PATH
        while node is not None and at < size and steps:
            steps -= 1
            child = node.children.get(data[at])
            mask = 0 if child is None else child.mask & held
            if mask != held:
                if at:
                    depths.append((at, held ^ mask))
                held = mask
            if child is None or not mask:
                break
            if not data.startswith(child.edge, at):
                at += common_length(data, at, child.edge)
                break
            at += len(child.edge)
            node = child
        if held and at:
            depths.append((at, held))
        return depths

    # --- writing -------------------------------------------------------------------------------------

    def insert(self, partition: Partition, data: bytes, book: Book, now: float) -> Inserted:
        """Believes that the worker of `book` will hold `data`, until the outcome says otherwise.

        Raises InternalError for empty data, which nobody can hold.
        """
        return self._insert_below(self._roots.get(partition) or self._plant(partition), data, book, now)

    def extend(self, end: End, tail: bytes, book: Book, now: float) -> Inserted | None:
        """Like `insert`, for the data of `end` and `tail` behind it. None when that is held no more."""
        return None if end.node is None else self._insert_below(end.node, tail, book, now)

    def confirm(self, end: End, book: Book, now: float) -> None:
        """The outcome says that the worker holds it. Shorter prompts of its own on the way are absorbed."""
        _settle(end)
        node = end.node
        if node is None:
            return
        end.sure, end.touched = True, now
        book.ends.move_to_end(node)
        above, steps = node.parent, LONGEST_PATH
        while above is not None and steps:
            node, above, steps = above, above.parent, steps - 1
            shorter = book.ends.get(node)
            if shorter is not None and shorter.sure and not shorter.pending:
                self._forget(shorter, node, book)
            self._join(node)

    def withdraw(self, end: End, book: Book) -> None:
        """The outcome says that the worker never came to hold it. What others support stays."""
        _settle(end)
        node = end.node
        if node is None or end.pending or end.sure:
            return
        self._forget(end, node, book)
        parent = node.parent
        while parent is not None and not _supported(node, book):
            self._leave(node, book)
            node, parent = parent, parent.parent
        self._join(node)

    def evict(self, book: Book) -> None:
        """Drops the least recently used node of a book that is not empty; its end where a child is held."""
        node, end = next(iter(book.ends.items()))
        self._forget(end, node, book)
        parent = node.parent
        if parent is None or _holds_a_child(node, book.bit):
            self._join(node)
            return
        self._leave(node, book)
        if parent.parent is None or _supported(parent, book):
            self._join(parent)
            return
        self._put(End(parent, end.touched, sure=True), parent, book)
        book.ends.move_to_end(parent, last=False)

    def expire(self, book: Book, before: float, now: float, most: int) -> int:
        """Evicts what was last used at `before` or earlier. Looks at `most` ends; returns at how many it did.

        A prompt in flight was dispatched long ago and is used all the same: it counts as used now.
        """
        for looked in range(most):
            end = next(iter(book.ends.values()), None)
            if end is None or end.node is None or end.touched > before:
                return looked
            if end.pending:
                end.touched = now
                book.ends.move_to_end(end.node)
            else:
                self.evict(book)
        return most

    # --- the parts -----------------------------------------------------------------------------------

    def _insert_below(self, node: Node, data: bytes, book: Book, now: float) -> Inserted:
        if not data:
            raise InternalError("nothing cannot be inserted into the prefix index")
        at, size, bit, steps = 0, len(data), book.bit, LONGEST_PATH
        held, sure, sure_touched = 0, 0, 0.0
        while at < size and steps:
            steps -= 1
            child = self._next(node, data, at)
            at += len(child.edge)
            if child.mask & bit:
                held = at
                end = book.ends.get(child)
                if end is not None and end.sure and not end.pending:
                    sure, sure_touched = at, end.touched
            else:
                child.mask |= bit
                book.held_bytes += len(child.edge)
            node = child
        return Inserted(self._touch(node, book, now), at, held, sure, sure_touched)

    def _touch(self, node: Node, book: Book, now: float) -> End:
        end = book.ends.get(node)
        if end is None:
            end = End(node, now)
            self._put(end, node, book)
        else:
            end.touched = now
            book.ends.move_to_end(node)
        end.pending += 1
        return end

    def _next(self, node: Node, data: bytes, at: int) -> Node:
        """The child of `node` whose whole edge stands in `data` at `at`, made if it has to be."""
        child = node.children.get(data[at])
        if child is None:
            child = node.children[data[at]] = Node(data[at:], node, {})
            self._count(1, len(child.edge))
            return child
        if data.startswith(child.edge, at):
            return child
        return self._split(child, common_length(data, at, child.edge))

    def _split(self, node: Node, length: int) -> Node:
        """Cuts the edge of `node` after `length` bytes and returns the new node above it.

        The lower one stays the same object: ends and claims that point at it remain true.
        """
        edge, parent = node.edge, _parent(node)
        upper = Node(edge[:length], parent, {edge[length]: node}, node.mask)
        parent.children[edge[0]] = upper
        node.edge, node.parent = edge[length:], upper
        self._count(1, 0)
        return upper

    def _join(self, node: Node) -> None:
        """Merges `node` into its only child when nothing tells the two apart. The child stays the object."""
        parent = node.parent
        if parent is None or node.ends or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.mask != node.mask:
            return
        child.edge, child.parent = node.edge + child.edge, parent
        parent.children[child.edge[0]] = child
        node.children.clear()
        self._count(-1, 0)

    def _leave(self, node: Node, book: Book) -> None:
        """Takes a worker off a node that it holds; its parent is left to the caller."""
        node.mask ^= book.bit
        book.held_bytes -= len(node.edge)
        if node.mask:
            self._join(node)
            return
        parent = _parent(node)
        del parent.children[node.edge[0]]
        self._count(-1, -len(node.edge))
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.partition]
            self.used_bytes -= parent.used_bytes

    def _plant(self, partition: Partition) -> Root:
        root = self._roots[partition] = Root(b"", None, {}, partition=partition)
        self.used_bytes += root.used_bytes
        return root

    def _put(self, end: End, node: Node, book: Book) -> None:
        book.ends[node] = end
        node.ends += 1
        self.used_bytes += END_BYTES

    def _forget(self, end: End, node: Node, book: Book) -> None:
        del book.ends[node]
        end.node = None
        node.ends -= 1
        self.used_bytes -= END_BYTES

    def _count(self, nodes: int, edges: int) -> None:
        self.nodes += nodes
        self.used_bytes += nodes * NODE_BYTES + edges

    def __iter__(self) -> Iterator[Node]:
        """Every node, parents before children; for audits, never on the way of a request."""
        stack: list[Node] = [*self._roots.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __repr__(self) -> str:
        return f"<PrefixTree [{len(self._roots)} partitions | {self.nodes} nodes | {self.used_bytes} bytes]>"


def common_length(data: bytes, at: int, edge: bytes) -> int:
    """How many bytes `edge` and `data` from `at` on share at their beginning."""
    low, high, step = 0, min(len(edge), len(data) - at), _FIRST_COMPARED
    while low < high:  # in growing steps: most prompts part early or not at all
        to = min(low + step, high)
        if not data.startswith(edge[low:to], at + low):
            high = to
            break
        low, step = to, step * 4
    while high - low > 1:
        middle = (low + high) // 2
        if data.startswith(edge[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low


def _settle(end: End) -> None:
    if not end.pending:
        raise InternalError("a prefix was confirmed or withdrawn more often than it was dispatched")
    end.pending -= 1


def _supported(node: Node, book: Book) -> bool:
    return node in book.ends or _holds_a_child(node, book.bit)


def _holds_a_child(node: Node, bit: int) -> bool:
    # A byte has 256 values, so this is bounded.
    return any(child.mask & bit for child in node.children.values())


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise InternalError("the root of a prefix tree was treated as a node")
    return node.parent
