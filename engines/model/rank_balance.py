"""Which data-parallel rank takes a request that names none.

Separate from the ranks because it sees them as the front of an engine does: its own count is exact, the rest
is a snapshot that may be a tenth of a second old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

SNAPSHOT_S = 0.1
"""Age at which a snapshot of the ranks is taken anew: the interval of vLLM's coordinator."""
KV_PRESSURE = 6.0
"""Weight of a waiting request on a rank whose KV cache fills up (vLLM)."""
KV_EASE = 0.5
"""Share of KV in use up to which a waiting request weighs no more than another."""


class RankLoad(Protocol):
    """What a rank shows of itself."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...


class LeastLoaded:
    """vLLM's internal balancing (since 0.28): the lowest score takes the request.

        score = max(in flight, waiting + running) + waiting · 6 · max(0, KV usage − 0.5)

    In flight is this front's own count; the others are of the latest snapshot, to whose waiting each choice
    is added. The scan begins one rank later each time, so ties favour nobody.
    """

    def __init__(self, ranks: Sequence[RankLoad]) -> None:
        self._ranks = tuple(ranks)
        self._start = 0
        self._seen_s: float | None = None
        self._waiting = [0] * len(self._ranks)
        self._running = [0] * len(self._ranks)
        self._usage = [0.0] * len(self._ranks)

    def pick(self, in_flight: Sequence[int], now: float) -> int:
        """The rank that takes the next request.

        Args:
            in_flight: requests that were given to each rank and have not ended.
        """
        if self._seen_s is None or now - self._seen_s >= SNAPSHOT_S:
            self._look(now)
        count = len(self._ranks)
        order = [(self._start + offset) % count for offset in range(count)]
        chosen = min(order, key=lambda rank: self._score(rank, in_flight[rank]))
        self._waiting[chosen] += 1
        self._start = (self._start + 1) % count
        return chosen

    def _score(self, rank: int, in_flight: int) -> float:
        waiting = self._waiting[rank]
        pressure = KV_PRESSURE * max(0.0, self._usage[rank] - KV_EASE)
        return max(in_flight, waiting + self._running[rank]) + waiting * pressure

    def _look(self, now: float) -> None:
        self._seen_s = now
        for index, rank in enumerate(self._ranks):
            self._waiting[index] = rank.waiting
            self._running[index] = rank.running
            self._usage[index] = rank.kv_usage

    def __repr__(self) -> str:
        return f"<LeastLoaded of {len(self._ranks)} ranks, seen at {self._seen_s}>"


class RoundRobin:
    """SGLang's default: one rank after the other, whatever their load."""

    def __init__(self, ranks: Sequence[RankLoad]) -> None:
        self._count = len(ranks)
        self._next = 0

    def pick(self, in_flight: Sequence[int], now: float) -> int:
        """The rank that takes the next request."""
        chosen, self._next = self._next, (self._next + 1) % self._count
        return chosen

    def __repr__(self) -> str:
        return f"<RoundRobin of {self._count} ranks>"
