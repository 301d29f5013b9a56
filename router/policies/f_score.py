"""The F-score: by how much an admission reduces the idle work of a barrier group.

Source: BalanceRoute, arXiv 2605.06113. All quantities are in KV tokens of the worker at hand. Both scores are
concave in the admitted tokens z (a line less convex hinges), so over any set of reachable sums the best is
next to `best_tokens`, the maximiser over the real numbers, on one side of it or the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Protocol


class Score(Protocol):
    """Value of admitting z tokens to one worker, 0 for z = 0."""

    @property
    def best_tokens(self) -> float:
        """The smallest z beyond which the value no longer grows; infinite when it always does."""
        ...

    def value(self, tokens: float) -> float: ...


class Hinge:
    """BR-0: F(z) = z − G (z − m)⁺, the fall of I = G max L − Σ L when z tokens go to a worker.

    Up to the margin m every token fills a gap; beyond it each makes G − 1 others wait.
    """

    __slots__ = ("best_tokens", "group_size")

    def __init__(self, group_size: int, margin: float) -> None:
        self.group_size = group_size
        self.best_tokens = margin
        """The margin m = max L − L of the worker."""

    def value(self, tokens: float) -> float:
        over = tokens - self.best_tokens
        return tokens - self.group_size * over if over > 0.0 else tokens

    def __repr__(self) -> str:
        return f"<Hinge of {self.group_size} workers at {self.best_tokens:.0f} tokens>"


class Hinges:
    """BR-H: F(z) = α z Σ d_h − β Σ d_h (z − m_h)⁺ over the steps h = 0 … H ahead.

    With H = 0, α = 1 and β = G this is `Hinge`. The margins are sorted once and their discounts summed up, so
    that a value costs one binary search instead of H + 1 comparisons.

    Args:
        margins: m_h to the predicted envelope, one for each step, before what `taken` says.
        discounts: d_h = γ^h, as many.
        fill, overflow: α and β.
        taken: tokens by which every margin is smaller than it was given.
    """

    __slots__ = ("_gain", "_margins", "_overflow", "_taken", "_weighted", "_weights", "best_tokens")

    def __init__(
        self,
        margins: Sequence[float],
        discounts: Sequence[float],
        *,
        fill: float,
        overflow: float,
        taken: float = 0.0,
    ) -> None:
        order = sorted(range(len(margins)), key=margins.__getitem__)
        self._margins = [margins[step] for step in order]
        ordered = [discounts[step] for step in order]
        self._weights: list[float] = list(accumulate(ordered, initial=0.0))
        self._weighted: list[float] = list(accumulate(map(mul, self._margins, ordered), initial=0.0))
        self._gain = fill * self._weights[-1]
        self._overflow = overflow
        self._taken = taken
        self.best_tokens = self._maximiser()

    def _maximiser(self) -> float:
        """The margin at which the discounts of the margins up to it outweigh the gain."""
        if self._overflow <= 0.0:
            return math.inf
        passed = bisect_left(self._weights, self._gain / self._overflow)
        if passed >= len(self._weights):
            return math.inf
        return self._margins[passed - 1] - self._taken if passed else 0.0

    @property
    def least_margin(self) -> float:
        """Up to here no step has a new highest."""
        return self._margins[0] - self._taken

    def value(self, tokens: float) -> float:
        reach = tokens + self._taken
        passed = bisect_left(self._margins, reach)
        overflow = reach * self._weights[passed] - self._weighted[passed]
        return self._gain * tokens - self._overflow * overflow

    def __repr__(self) -> str:
        return f"<Hinges over {len(self._margins)} steps, best at {self.best_tokens:.0f} tokens>"
