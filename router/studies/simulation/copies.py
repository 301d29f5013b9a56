"""On how many workers a cached block lies: the replication factor of the fleet.

Separate from the engines, each of which knows its own cache alone. A policy that sends what begins alike to
one place keeps it at 1; one that spreads it pays with room in every cache.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

QUARTERS = 4


@dataclass(slots=True)
class Copies:
    """Samples, one whenever another quarter of the calls is over: while few of them have come caches hold
    little, and a look at all of them takes milliseconds.

    Attributes:
        samples: of each, blocks in all caches over distinct ones; caches without any are no sample.
    """

    samples: list[float] = field(default_factory=list)

    def look(self, caches: Iterable[Collection[Hashable]]) -> None:
        """Takes one sample.

        Args:
            caches: hashes of the blocks at each worker.
        """
        known = list(caches)
        distinct = len(set().union(*known))
        if distinct:
            self.samples.append(sum(map(len, known)) / distinct)

    @property
    def mean(self) -> float | None:
        """Workers that hold a block, on average over blocks and samples; None where nothing is cached."""
        return math.fsum(self.samples) / len(self.samples) if self.samples else None
