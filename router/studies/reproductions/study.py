"""What a reproduction is: parts to run, figures to hold beside the published ones, and claims about them.

Separate from the studies themselves so that the command, the page and the tests treat all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Measures = dict[str, float]
"""Figures of one part, by name; times in s unless the name says otherwise."""
Part = Callable[[], Measures]
"""One run. A `functools.partial` of a function of a module, so that any process can do it."""
Results = Mapping[str, Measures]
"""Figures of every part, by its label."""


class Size(StrEnum):
    """How much is run: `small` takes seconds and is what tests judge, `full` is near the published size."""

    SMALL = "small"
    FULL = "full"

    def pick(self, small: int, full: int) -> int:
        """One of two numbers."""
        return small if self is Size.SMALL else full


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside the published one; None where none is published."""

    what: str
    ours: float
    published: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the published one; None where that is absent or 0."""
        return None if not self.published else self.ours / self.published


@dataclass(frozen=True, slots=True)
class Claim:
    """What must be so, in the small version too: a value within a band."""

    text: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the value lies within."""
        return self.least <= self.value <= self.most


@dataclass(frozen=True, slots=True)
class Findings:
    """What came out of a study."""

    rows: Sequence[Row]
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One published experiment.

    Attributes:
        name: on the command line, and of its file of results.
        source: where it was published: a heading of the page.
        setting: fleet, calls and rate.
        parts: what is to be run in a size.
        find: figures and claims from the results of all parts.
        word: how ours and theirs compare, and why they differ where they do.
    """

    name: str
    title: str
    source: str
    setting: str
    parts: Callable[[Size], dict[str, Part]]
    find: Callable[[Results], Findings]
    word: str


def present(results: Results, label: str) -> bool:
    """Whether this label was run: the small size leaves some out."""
    return f"{label}/1" in results


def over(results: Results, label: str, figure: str) -> list[float]:
    """One figure of a label under every seed: of the parts `label/1`, `label/2` and so on."""
    return [each[figure] for name, each in results.items() if name.rpartition("/")[0] == label]


def mean(results: Results, label: str, figure: str) -> float:
    """The mean of that. Raises ValueError when there is no such part."""
    values = over(results, label, figure)
    if not values:
        raise ValueError(f"no part {label}/1 among {', '.join(results)}")
    return math.fsum(values) / len(values)
