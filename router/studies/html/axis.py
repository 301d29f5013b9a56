"""An axis of a plot: where a value stands, and which values are written beside it.

Separate from the plots, which only draw lines between places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_WANTED_TICKS = 5
_LEAST_TICKS = 3
_WIDEST_LOG = 3.0
"""Decades above which a logarithmic axis writes powers of ten alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from `low` to `high`.

    Attributes:
        label: what they are, with the unit.
        log: equal factors are equal distances; `low` is above 0.
    """

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at `low`, 1 at `high`; values beyond stand at the ends."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(max(part, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values, about five."""
        return self._log_ticks() if self.log else self._even_ticks()

    def _even_ticks(self) -> list[float]:
        step = _round_up((self.high - self.low) / _WANTED_TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = math.log10(self.high / self.low)
        factors = (1.0,) if decades > _WIDEST_LOG else (1.0, 2.0, 5.0)
        found = [
            factor * 10.0**power
            for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factor in factors
        ]
        seen = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
        return seen if len(seen) >= _LEAST_TICKS else self._even_ticks()


def _round_up(width: float) -> float:
    """The next round number of at least `width`."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in _STEPS if step * power >= width * 0.999)


def from_zero(label: str, values: Iterable[float]) -> Axis:
    """An axis from 0 to a little above the largest value."""
    high = max((value for value in values if math.isfinite(value)), default=0.0)
    return Axis(label=label, low=0.0, high=high * 1.05 if high > 0 else 1.0)


def around(label: str, values: Iterable[float]) -> Axis:
    """An axis that begins and ends a little beyond the values."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(label=label, low=low - margin, high=high + margin)


def shares(label: str) -> Axis:
    """0 to 100 %."""
    return Axis(label=label, low=0.0, high=100.0)


def by_factors(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis around the values above 0; an even one where they hardly differ."""
    known = [value for value in values if 0 < value < math.inf]
    low, high = min(known, default=1.0), max(known, default=10.0)
    if high / low < 1.5:
        return around(label, known)
    return Axis(label=label, low=low / 1.05, high=high * 1.05, log=True)


def written(value: float) -> str:
    """A tick as people write it: 0.05, 20, 5k, 1.5M."""
    for size, word in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 if word == "M" else 10):
            return f"{value / size:.4g}{word}"
    return f"{value:.4g}" if abs(value) >= 1e-9 else "0"
