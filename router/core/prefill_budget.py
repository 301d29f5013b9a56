"""Whether a prefill worker has room for another prompt, counting the KV that it still holds for hand-overs.

KV stays on the producer until a decode worker has read it, or until its lease there ends. Separate from the
mirror, which is sums over leases: KV that nobody will fetch any more has no lease here, and is held all the
same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from router.core.errors import InternalError
from router.core.worker import WorkerView

STALE_PERIODS = 3
"""So many periods after a scrape it says nothing more of how full a worker is."""


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """When a worker is saturated.

    Attributes:
        high: share of its KV in use above which a worker is saturated.
        low: share below which it is open again.
        stale_s: age of a scrape from which on it says nothing: `STALE_PERIODS` of 250 ms.
    """

    high: float = 0.85
    low: float = 0.75
    stale_s: float = STALE_PERIODS * 0.25


@dataclass(frozen=True, slots=True, order=True)
class Strand:
    """KV that a producer holds for nobody, until its lease ends at `until` (s)."""

    until: float
    number: int
    worker: str = field(compare=False)
    incarnation: int = field(compare=False)
    tokens: int = field(compare=False)


@dataclass(slots=True)
class _Stranded:
    """Of one incarnation of a worker; those that were recovered stay in the heap until their time."""

    incarnation: int
    held: dict[int, Strand] = field(default_factory=dict)
    by_end: list[Strand] = field(default_factory=list)
    tokens: int = 0

    def drop(self, number: int) -> int:
        """Takes one out, once; returns its tokens."""
        strand = self.held.pop(number, None)
        if strand is None:
            return 0
        self.tokens -= strand.tokens
        if self.tokens < 0:
            raise InternalError(f"stranded tokens of {strand.worker} fell below zero: {self.tokens}")
        return strand.tokens

    def end(self, now: float) -> int:
        """Takes out what has ended; returns its tokens."""
        freed = 0
        while self.by_end and self.by_end[0].until <= now:
            freed += self.drop(heapq.heappop(self.by_end).number)
        return freed


class PrefillBudget:
    """The budgets of all prefill workers of a pool.

    State: `_saturated`, one incarnation per worker that is over its budget; `_stranded`, per worker the KV
    that waits for the end of its lease there. Both are dropped with the incarnation.
    """

    def __init__(self, settings: BudgetSettings | None = None) -> None:
        self.settings = settings or BudgetSettings()
        self._saturated: dict[str, int] = {}
        self._stranded: dict[str, _Stranded] = {}
        self._next = 0

    # --- room --------------------------------------------------------------------------------------------

    def usage(self, worker: WorkerView, now: float) -> float | None:
        """Share of its KV in use: the larger of what it said lately and of what is known to be held there.

        None when neither is known. 0 to 1 by the scrape; the ledger may see more than fits.
        """
        stats, capacity = worker.stats, worker.kv_capacity_tokens
        usages = []
        if stats is not None and stats.kv_usage is not None and now - stats.taken <= self.settings.stale_s:
            usages.append(stats.kv_usage)
        if capacity:
            usages.append(self.held_tokens(worker, now) / capacity)
        return max(usages, default=None)

    def open(self, worker: WorkerView, now: float) -> bool:
        """Whether it may get another prompt.

        Between the two marks a worker stays what it was, so that it does not flap with every hand-over. One
        that holds nothing of ours is open whatever it says: a prompt that is larger than the budget must
        pass, and KV that others left there must not close it for good. Asked twice, it answers the same.
        """
        if not worker.in_flight and not self.stranded_tokens(worker.name, worker.incarnation, now):
            self._saturated.pop(worker.name, None)
            return True
        usage = self.usage(worker, now)
        was_saturated = self._saturated.get(worker.name) == worker.incarnation
        if usage is None or usage < self.settings.low or (usage <= self.settings.high and not was_saturated):
            self._saturated.pop(worker.name, None)
            return True
        self._saturated[worker.name] = worker.incarnation
        return False

    def held_tokens(self, worker: WorkerView, now: float) -> int:
        """KV tokens known to be held there: by leases, and for hand-overs that nobody will fetch."""
        return worker.kv_tokens + self.stranded_tokens(worker.name, worker.incarnation, now)

    # --- stranded hand-overs -----------------------------------------------------------------------------

    def strand(self, worker: str, incarnation: int, tokens: int, until: float) -> Strand:
        """Nobody will fetch this KV: it counts until the producer's lease ends at `until` (s)."""
        self._next += 1
        strand = Strand(until, self._next, worker, incarnation, tokens)
        there = self._stranded.get(worker)
        if there is None or there.incarnation < incarnation:
            there = self._stranded[worker] = _Stranded(incarnation)
        if there.incarnation == incarnation:
            there.held[strand.number] = strand
            heapq.heappush(there.by_end, strand)
            there.tokens += tokens
        return strand

    def recover(self, strand: Strand) -> bool:
        """The engine has let go of it early. False when it did not count any more."""
        there = self._stranded.get(strand.worker)
        if there is None or strand.number not in there.held:
            return False
        there.drop(strand.number)
        return True

    def sweep(self, now: float) -> int:
        """Drops what has ended; returns how many tokens that frees, over all workers."""
        freed = 0
        for name, there in list(self._stranded.items()):
            freed += there.end(now)
            if not there.held:
                del self._stranded[name]
        return freed

    def stranded_tokens(self, worker: str, incarnation: int, now: float) -> int:
        """Of one incarnation; what an earlier one held is gone with its process."""
        there = self._stranded.get(worker)
        if there is None:
            return 0
        there.end(now)
        if there.incarnation < incarnation or not there.held:
            del self._stranded[worker]
            return 0
        return there.tokens if there.incarnation == incarnation else 0

    def forget(self, worker: str) -> None:
        """A worker was removed."""
        self._saturated.pop(worker, None)
        self._stranded.pop(worker, None)

    # --- for metrics -------------------------------------------------------------------------------------

    def stranded(self) -> int:
        """Stranded tokens of all workers, as of the last sweep."""
        return sum(there.tokens for there in self._stranded.values())

    def held(self, workers: Iterable[WorkerView], now: float) -> int:
        """KV tokens known to be held by these workers, stranded ones included."""
        return sum(self.held_tokens(worker, now) for worker in workers)

    def is_saturated(self, worker: WorkerView) -> bool:
        """As it was when it was last asked whether it is open."""
        return self._saturated.get(worker.name) == worker.incarnation

    def __repr__(self) -> str:
        return (
            f"<PrefillBudget {self.settings.low:g}–{self.settings.high:g} "
            f"[{len(self._saturated)} saturated | {self.stranded()} tokens stranded]>"
        )
