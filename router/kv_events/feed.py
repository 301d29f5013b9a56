"""One pool's prefix index as the listener of one worker sees it.

Separate from the index because listeners run beside it: between two of their turns the pool may have closed
its index or admitted another incarnation, and what an old listener still says must then reach nobody. And
because whoever was answered from the index has to be told that it changed.
"""

from __future__ import annotations

from router.core.kv_event import KvEvent
from router.core.prefix_ledger import Fit
from router.core.prefixes import PoolPrefixes
from router.core.trust import TrustSignal


class Feed:
    """Feeds events of one incarnation of a worker into the prefixes of its pool."""

    def __init__(self, prefixes: PoolPrefixes, incarnation: int) -> None:
        self.prefixes = prefixes
        self.incarnation = incarnation

    def follow(self, worker: str, *, counts_only: bool = False) -> None:
        if self._knows(worker):
            self.prefixes.index.follow(worker, counts_only=counts_only)
            self.prefixes.changed()

    def apply(self, worker: str, event: KvEvent) -> Fit:
        if not self._knows(worker):
            return Fit.WELL
        fit = self.prefixes.index.apply(worker, event)
        self.prefixes.changed()
        return fit

    def stream(self, worker: str, signal: TrustSignal) -> None:
        if self._knows(worker):
            self.prefixes.index.stream(worker, signal)
            self.prefixes.changed()

    def _knows(self, worker: str) -> bool:
        holder = self.prefixes.index.holder(worker)
        return holder is not None and holder.incarnation == self.incarnation

    def __repr__(self) -> str:
        return f"<Feed {self.incarnation} {self.prefixes!r}>"
