"""Which few of the waiting requests fit one worker best.

Separate from the score because it only needs its shape: the value of a subset depends on the sum of its
tokens alone (source: BalanceRoute, arXiv 2605.06113, subset-sum reduction) and is concave in it, so of all
reachable sums only the two next to the maximiser can be the best. That shortcut is ours; it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from router.policies.f_score import Score

ENUMERATED = 6
"""Up to so many candidates all subsets are listed, 63 of them; bit sets pay beyond."""


Candidate = tuple[int, int]
"""One waiting request: KV tokens that it brings, and slots that it takes (at least 1)."""


class Limits(NamedTuple):
    """What the worker can take.

    Attributes:
        slots: free ones; at least 1, may be infinite.
        kv_tokens: free ones; may be infinite.
        tokens_per_slot: what a sequence costs beside its KV, in tokens of the score.
        quantum_tokens: bit sets round lengths up to multiples of it.
    """

    slots: float = math.inf
    kv_tokens: float = math.inf
    tokens_per_slot: int = 0
    quantum_tokens: int = 1


class Subset(NamedTuple):
    """The chosen candidates, by index in ascending order, and the value of the score."""

    picked: tuple[int, ...]
    value: float


class _Sum(NamedTuple):
    """A reachable sum: tokens as the score sees them, slots, and the lowest mask that reaches it (bit i is
    candidate i). Of equal values the fewest slots win, then the lowest mask: the one without the youngest."""

    tokens: int
    slots: int
    mask: int


def best_single(candidates: Sequence[Candidate], limits: Limits, score: Score) -> Subset:
    """The best candidate alone, the oldest among equals. There is at least one, and each is within the
    limits by itself."""
    per_slot, target = limits.tokens_per_slot, score.best_tokens
    below = above = -1
    most, least = -1, math.inf  # the largest sum up to the target, the smallest above it
    for index, (tokens, slots) in enumerate(candidates):
        total = tokens + per_slot * slots
        if total <= target:
            if total > most:
                below, most = index, total
        elif total < least:
            above, least = index, total
    values = [(-score.value(total), index) for index, total in ((below, most), (above, least)) if index >= 0]
    value, index = min(values)
    tokens, slots = candidates[0]
    if index and -score.value(tokens + per_slot * slots) == value:
        index = 0  # one worker alone: all values are 0, and the shortest is no better than the oldest
    return Subset((index,), -value)


def best_subset(candidates: Sequence[Candidate], limits: Limits, score: Score) -> Subset:
    """The best subset of one or more within the limits. There is at least one candidate, and each is within
    the limits by itself.

    With more than `ENUMERATED` candidates lengths are rounded up to the quantum while searching, so limits
    hold, and the sum may miss the best by less than a quantum for each candidate.
    """
    if limits.slots < 2 or len(candidates) == 1:
        return best_single(candidates, limits, score)
    if len(candidates) <= ENUMERATED:
        sums = _listed(candidates, limits, score.best_tokens)
    else:
        sums = _reached(candidates, limits, score.best_tokens)
    ranked = [(-score.value(tokens), slots, mask) for tokens, slots, mask in sums]
    if not ranked:  # rounded up, not even one fits
        return best_single(candidates, limits, score)
    value, _, mask = min(ranked)
    return Subset(_bits(mask), -value)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple([index for index in range(mask.bit_length()) if mask >> index & 1])


def _listed(candidates: Sequence[Candidate], limits: Limits, target: float) -> Iterator[_Sum]:
    """The largest allowed sum up to the target and the smallest above it, by listing all subsets."""
    tokens, slots = [0], [0]
    for more, wide in candidates:  # the index in the lists is the mask
        tokens += [known + more for known in tokens]
        slots += [known + wide for known in slots]
    below: _Sum | None = None
    above: _Sum | None = None
    for mask in range(1, len(tokens)):
        if tokens[mask] > limits.kv_tokens or slots[mask] > limits.slots:
            continue
        total = tokens[mask] + limits.tokens_per_slot * slots[mask]
        if total <= target:
            if below is None or (-total, slots[mask]) < (-below.tokens, below.slots):
                below = _Sum(total, slots[mask], mask)
        elif above is None or (total, slots[mask]) < (above.tokens, above.slots):
            above = _Sum(total, slots[mask], mask)
    yield from [found for found in (below, above) if found is not None]


def _reached(candidates: Sequence[Candidate], limits: Limits, target: float) -> Iterator[_Sum]:
    """As `_listed`, by bit sets: bit s of `tables[i][j]` says that some of the first i candidates take j
    slots and s quanta."""
    quantum = limits.quantum_tokens
    sizes = [-(-tokens // quantum) for tokens, _ in candidates]
    room = _whole(limits.kv_tokens / quantum, sum(sizes))
    cap = _whole(limits.slots, sum(slots for _, slots in candidates))
    tables = _tables(candidates, sizes, cap)
    allowed = (1 << (room + 1)) - 1
    for slots in range(1, cap + 1):
        reached = tables[-1][slots] & allowed
        if not reached:
            continue
        turn = (target - limits.tokens_per_slot * slots) / quantum
        for quanta in _next_to(reached, turn):
            mask = _mask(tables, candidates, sizes, slots, quanta)
            exact = sum(tokens for i, (tokens, _) in enumerate(candidates) if mask >> i & 1)
            yield _Sum(exact + limits.tokens_per_slot * slots, slots, mask)


def _whole(limit: float, most: int) -> int:
    return most if limit >= most else int(limit)


def _tables(candidates: Sequence[Candidate], sizes: Sequence[int], cap: int) -> list[list[int]]:
    tables = [[1] + [0] * cap]
    for (_, wide), size in zip(candidates, sizes, strict=True):
        before = tables[-1]
        tables.append(
            [before[j] | before[j - wide] << size if j >= wide else before[j] for j in range(cap + 1)]
        )
    return tables


def _next_to(reached: int, turn: float) -> Iterator[int]:
    """The highest bit at or below `turn` and the lowest above it."""
    border = 0 if turn < 0 else _whole(turn, reached.bit_length()) + 1
    below, above = reached & ((1 << border) - 1), reached >> border
    if below:
        yield below.bit_length() - 1
    if above:
        yield border + (above & -above).bit_length() - 1


def _mask(
    tables: Sequence[Sequence[int]],
    candidates: Sequence[Candidate],
    sizes: Sequence[int],
    slots: int,
    quanta: int,
) -> int:
    """The lowest mask that reaches a sum: from the youngest on, each is left out where the rest can do it."""
    mask = 0
    for index in range(len(candidates) - 1, -1, -1):
        if not tables[index][slots] >> quanta & 1:
            mask |= 1 << index
            slots -= candidates[index][1]
            quanta -= sizes[index]
    return mask
