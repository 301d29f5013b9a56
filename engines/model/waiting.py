"""Orders in which jobs wait: first come first served, and by priority.

Separate from the scheduler, which only ever looks at the head. Both drop a job in constant or logarithmic
time, since clients leave from anywhere in the queue.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Protocol

from engines.model.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences that wait to be admitted."""

    def add(self, sequence: Sequence) -> None:
        """A new arrival."""

    def put_back(self, sequence: Sequence) -> None:
        """One that was taken before: it comes before every new arrival of its kind."""

    def look(self) -> None:
        """What is cached is another than before: orders that go by it see anew."""

    def head(self) -> Sequence | None:
        """The next one, left in place."""

    def take(self) -> Sequence:
        """Remove and return the head.

        Raises:
            IndexError: when nobody waits.
        """

    def discard(self, sequence: Sequence) -> None:
        """Drop one from anywhere; nothing happens when it does not wait."""

    def __len__(self) -> int: ...


class ArrivalQueue:
    """First come, first served; a preempted sequence goes to the front."""

    def __init__(self) -> None:
        self._queue: OrderedDict[int, Sequence] = OrderedDict()

    def add(self, sequence: Sequence) -> None:
        self._queue[sequence.order] = sequence

    def put_back(self, sequence: Sequence) -> None:
        self.add(sequence)
        self._queue.move_to_end(sequence.order, last=False)

    def look(self) -> None:
        return

    def head(self) -> Sequence | None:
        return next(iter(self._queue.values()), None)

    def take(self) -> Sequence:
        if not self._queue:
            raise IndexError("nobody waits")
        return self._queue.popitem(last=False)[1]

    def discard(self, sequence: Sequence) -> None:
        self._queue.pop(sequence.order, None)

    def __len__(self) -> int:
        return len(self._queue)


class PriorityQueue:
    """Lowest priority value first, ties by arrival; a preempted sequence keeps its rank."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self._members: set[int] = set()

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self._members.add(sequence.order)

    def put_back(self, sequence: Sequence) -> None:
        self.add(sequence)

    def look(self) -> None:
        return

    def head(self) -> Sequence | None:
        while self._heap and self._heap[0][1].order not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def take(self) -> Sequence:
        sequence = self.head()
        if sequence is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        self.discard(sequence)
        return sequence

    def discard(self, sequence: Sequence) -> None:
        if sequence.order in self._members:
            self._members.remove(sequence.order)
            if len(self._heap) > 2 * len(self._members) + 16:
                self._sweep()

    def _sweep(self) -> None:
        # Those who left stay in the heap until they surface; without this, ones deep down would pile up.
        self._heap = [entry for entry in self._heap if entry[1].order in self._members]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._members)
