"""How long things are: distributions of token counts, given by the moments that papers print."""

from __future__ import annotations

import math
import random
from bisect import bisect
from itertools import accumulate


def lognormal(mean: float, sd: float, chance: random.Random) -> float:
    """A sample of the lognormal distribution with this mean and standard deviation."""
    squared = math.log1p((sd / mean) ** 2)
    return chance.lognormvariate(math.log(mean) - squared / 2, math.sqrt(squared))


def tokens(value: float, least: int = 1, most: int = 1_000_000) -> int:
    """A whole number of tokens within bounds."""
    return min(max(round(value), least), most)


class Zipf:
    """Which of `count` things is asked for: the k-th with a chance proportional to 1 / k^exponent."""

    __slots__ = ("_sums",)

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(accumulate(1.0 / rank**exponent for rank in range(1, count + 1)))

    def draw(self, chance: random.Random) -> int:
        """From 0 on, the most popular first."""
        return bisect(self._sums, chance.random() * self._sums[-1])

    def shares(self) -> list[float]:
        """The chance of each."""
        total, before, shares = self._sums[-1], 0.0, []
        for each in self._sums:
            shares.append((each - before) / total)
            before = each
        return shares
