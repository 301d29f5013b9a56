"""In which order waiting requests start at a worker, by how much of each is cached: Preble's priority groups.

Separate from any queue, as the rule is pure: those of a high hit ratio start sooner, and none waits for ever.
Source: Srivatsa et al., "Preble", ICLR 2025, arXiv 2407.00023, local scheduler.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

GROUPS = 10
"""P of the paper."""

T = TypeVar("T")


def group_of(cached_tokens: int, prompt_tokens: int, groups: int = GROUPS) -> int:
    """Its priority group, 0 to `groups` − 1: floor(P × hit ratio), so 63 tokens of 100 are group 6.

    To be asked when a request may start, not when it came: what is cached changes while it waits.
    """
    if prompt_tokens <= 0:
        return 0
    return min(max(cached_tokens, 0) * groups // prompt_tokens, groups - 1)


class Round:
    """The shares of the round that is under way; one for each queue.

    In a round each group g starts up to g + 1 of its oldest, the highest group first. With ten full groups a
    round is 10 + 9 + … + 1 = 55, and the lowest group still has its share of one. When all groups that wait
    have had theirs, the next round begins.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started: Counter[int] = Counter()

    def take(self, waiting: Sequence[T], group: Callable[[T], int], count: int) -> list[T]:
        """The `count` requests to start next, of those that wait, oldest first."""
        by_group: dict[int, deque[T]] = {}
        for one in waiting:
            by_group.setdefault(group(one), deque()).append(one)
        chosen: list[T] = []
        while by_group and len(chosen) < count:
            open_to = [number for number in by_group if self._started[number] <= number]
            if not open_to:
                self._started.clear()
                continue
            number = max(open_to)
            self._started[number] += 1
            chosen.append(by_group[number].popleft())
            if not by_group[number]:
                del by_group[number]
        return chosen

    def __repr__(self) -> str:
        return f"<Round [{self._started.total()} started]>"
