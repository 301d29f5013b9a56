"""Two orders that look at how much of each waiting prompt is cached: Preble's priority groups, longest first.

Separate from the orders that do not: what is cached changes while a prompt waits, so these look again in each
step, and only then.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from engines.model.sequence import Sequence
from engines.model.waiting import ArrivalQueue

GROUPS = 10
"""P of the Preble paper."""

CachedTokens = Callable[[Sequence], int]
"""Tokens of a prompt that are in the prefix cache now."""


def group_of(cached_tokens: int, prompt_tokens: int, groups: int = GROUPS) -> int:
    """The priority group of a prompt, 0 to `groups` − 1: floor(P × hit ratio), so 63 of 100 are group 6."""
    return min(cached_tokens * groups // prompt_tokens, groups - 1)


class PriorityGroups:
    """Preble's local order: prompts of a high hit ratio start sooner, and none waits for ever.

    In rounds: from the highest group down, group g starts up to g + 1 of its oldest. A full round of ten
    groups is 10 + 9 + … + 1 = 55. A round goes on through as many steps as it takes; a new one begins when no
    group has both a share left and somebody who waits.
    Source: Srivatsa et al., "Preble", ICLR 2025, arXiv 2407.00023, local scheduler.

    Args:
        cached_tokens: asked once in each step, and for each that comes.
    """

    def __init__(self, cached_tokens: CachedTokens, groups: int = GROUPS) -> None:
        self._cached_tokens = cached_tokens
        self._groups: list[OrderedDict[int, Sequence]] = [OrderedDict() for _ in range(groups)]
        self._group_of: dict[int, int] = {}
        self._left = self._shares()
        self._returned = ArrivalQueue()

    def look(self) -> None:
        """A new step: every prompt joins the group that its hit ratio has now."""
        members = [sequence for group in self._groups for sequence in group.values()]
        members.sort(key=lambda sequence: sequence.order)
        for group in self._groups:
            group.clear()
        for sequence in members:
            self._join(sequence)

    def add(self, sequence: Sequence) -> None:
        self._join(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self._returned.put_back(sequence)

    def head(self) -> Sequence | None:
        returned = self._returned.head()
        if returned is not None or not self._group_of:
            return returned
        return next(iter(self._groups[self._turn()].values()))

    def take(self) -> Sequence:
        if len(self._returned):
            return self._returned.take()
        if not self._group_of:
            raise IndexError("nobody waits")
        number = self._turn()
        if not self._left[number]:
            self._left = self._shares()
        self._left[number] -= 1
        order, sequence = self._groups[number].popitem(last=False)
        del self._group_of[order]
        return sequence

    def discard(self, sequence: Sequence) -> None:
        number = self._group_of.pop(sequence.order, None)
        if number is None:
            self._returned.discard(sequence)
        else:
            del self._groups[number][sequence.order]

    def __len__(self) -> int:
        return len(self._group_of) + len(self._returned)

    def _join(self, sequence: Sequence) -> None:
        number = group_of(self._cached_tokens(sequence), sequence.length, len(self._groups))
        self._groups[number][sequence.order] = sequence
        self._group_of[sequence.order] = number

    def _turn(self) -> int:
        """The group that starts its oldest next: the highest with a share left, or else the highest, in a new
        round. Somebody waits."""
        numbers = [number for number in range(len(self._groups) - 1, -1, -1) if self._groups[number]]
        return next((number for number in numbers if self._left[number]), numbers[0])

    def _shares(self) -> list[int]:
        return [number + 1 for number in range(len(self._groups))]

    def __repr__(self) -> str:
        return f"<PriorityGroups {[len(group) for group in self._groups]}, {len(self._returned)} returned>"


class LongestPrefix:
    """The longest cached prefix first, ties by arrival: SGLang's order. Prompts that hit little may starve.

    Args:
        cached_tokens: asked once in each step, and for each that comes.
    """

    def __init__(self, cached_tokens: CachedTokens) -> None:
        self._cached_tokens = cached_tokens
        self._waiting: dict[int, Sequence] = {}
        self._ranked: list[tuple[int, int]] = []
        self._returned = ArrivalQueue()

    def look(self) -> None:
        """A new step: rank them by what is cached now."""
        self._ranked = sorted(self._rank(sequence) for sequence in self._waiting.values())

    def add(self, sequence: Sequence) -> None:
        self._waiting[sequence.order] = sequence
        insort(self._ranked, self._rank(sequence))

    def put_back(self, sequence: Sequence) -> None:
        self._returned.put_back(sequence)

    def head(self) -> Sequence | None:
        returned = self._returned.head()
        if returned is not None:
            return returned
        while self._ranked and -self._ranked[-1][1] not in self._waiting:
            self._ranked.pop()
        return self._waiting[-self._ranked[-1][1]] if self._ranked else None

    def take(self) -> Sequence:
        sequence = self.head()
        if sequence is None:
            raise IndexError("nobody waits")
        self.discard(sequence)
        return sequence

    def discard(self, sequence: Sequence) -> None:
        if self._waiting.pop(sequence.order, None) is None:
            self._returned.discard(sequence)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._returned)

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """The best is last: the most cached, and of those the one that came first."""
        return self._cached_tokens(sequence), -sequence.order

    def __repr__(self) -> str:
        return f"<LongestPrefix {len(self._waiting)} waiting, {len(self._returned)} returned>"
