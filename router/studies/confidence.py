"""Means over seeds and how sure they are; differences between policies on the same arrivals.

Separate from the comparison because any list of numbers can be asked. Paired differences say more than two
means: what all policies have in common, a hard or an easy seed, falls out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 97.5 % for 1 to 30 degrees of freedom."""
_NORMAL = 1.960


class Estimate(msgspec.Struct, frozen=True):
    """A mean with the half width of its 95 % confidence interval; None with fewer than two values, or where
    one of them is not finite."""

    mean: float
    half: float | None

    @property
    def certain_sign(self) -> int:
        """1 or -1 when the interval leaves 0 out, else 0."""
        if self.half is None or abs(self.mean) <= self.half:
            return 0
        return 1 if self.mean > 0 else -1

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.half is None else f"{self.mean:.4g} ± {self.half:.2g}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values. Raises ValueError when there are none."""
    if not values:
        raise ValueError("no values, so no mean")
    count = len(values)
    if not all(map(math.isfinite, values)):
        return Estimate(sum(values) / count, None)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    return Estimate(mean, quantile * math.sqrt(variance / count))


def paired(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """The mean of the differences of pairs. Raises ValueError for lists of different lengths, or none."""
    return estimate([one - other for one, other in zip(values, baseline, strict=True)])
