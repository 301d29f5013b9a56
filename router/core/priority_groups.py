"""In which order waiting requests start at a worker, by how much of each is cached: Preble's priority groups.

Separate from any queue, as the rule is pure: those of a high hit ratio start sooner, and none waits for ever.
Source: Srivatsa et al., "Preble", ICLR 2025, arXiv 2407.00023, local scheduler.
"""

from __future__ import annotations

from collections import deque
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


def next_to_start(waiting: Sequence[T], group: Callable[[T], int], count: int) -> list[T]:
    """The `count` requests to start next, of those that wait, oldest first.

    In rounds: from the highest group down, each group g gives up to g + 1 of its oldest. With ten full groups
    a round is 10 + 9 + … + 1 = 55, and the lowest group still has its share of one.
    """
    by_group: dict[int, deque[T]] = {}
    for one in waiting:
        by_group.setdefault(group(one), deque()).append(one)
    chosen: list[T] = []
    while by_group and len(chosen) < count:
        for number in sorted(by_group, reverse=True):
            queue = by_group[number]
            share = min(number + 1, len(queue), count - len(chosen))
            chosen.extend(queue.popleft() for _ in range(share))
            if not queue:
                del by_group[number]
    return chosen
