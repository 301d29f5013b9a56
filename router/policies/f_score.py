"""The F-score: by how much an admission reduces the idle work of a barrier group.

Source: BalanceRoute, arXiv 2605.06113. All quantities are in KV tokens of the worker at hand. Both scores are
concave in the admitted tokens z (a line less convex hinges), so over any set of reachable sums the best is
next to `best_tokens`, the maximiser over the real numbers, on one side of it or the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    With H = 0, α = 1 and β = G this is `Hinge`. A round asks for the maximiser and for two values, so margins
    are not sorted unless the maximiser lies far up: with a large β the few smallest decide.

    Args:
        margins: m_h to the predicted envelope, one for each step, before what `taken` says.
        discounts: d_h = γ^h, as many.
        fill, overflow: α and β.
        taken: tokens by which every margin is smaller than it was given.
    """

    __slots__ = ("_discounts", "_gain", "_least", "_margins", "_overflow", "_taken", "best_tokens")

    def __init__(
        self,
        margins: Sequence[float],
        discounts: Sequence[float],
        *,
        fill: float,
        overflow: float,
        taken: float = 0.0,
    ) -> None:
        self._margins = margins
        self._discounts = discounts
        self._least = min(margins)
        self._gain = fill * sum(discounts)
        self._overflow = overflow
        self._taken = taken
        self.best_tokens = self._maximiser()

    def _maximiser(self) -> float:
        """The margin at which the discounts of the margins up to it outweigh the gain."""
        if self._overflow <= 0.0:
            return math.inf
        wanted = self._gain / self._overflow
        if wanted <= 0.0:
            return 0.0
        first = self._margins.index(self._least)
        if self._discounts[first] >= wanted:
            return self._least - self._taken
        passed = 0.0
        order = sorted(range(len(self._margins)), key=self._margins.__getitem__)
        for step in order:
            passed += self._discounts[step]
            if passed >= wanted:
                return self._margins[step] - self._taken
        return math.inf

    @property
    def least_margin(self) -> float:
        """Up to here no step has a new highest."""
        return self._least - self._taken

    def value(self, tokens: float) -> float:
        gain, reach = self._gain * tokens, tokens + self._taken
        if reach <= self._least:
            return gain
        over = [
            discount * (reach - margin)
            for margin, discount in zip(self._margins, self._discounts, strict=True)
            if margin < reach
        ]
        return gain - self._overflow * sum(over)

    def __repr__(self) -> str:
        return f"<Hinges over {len(self._margins)} steps, best at {self.best_tokens:.0f} tokens>"
