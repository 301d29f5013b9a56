"""A policy that sees workers as they were some time ago.

Separate from the studies that use it: it is how polled loads differ from a ledger, for any policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.policy import Choice, Policy
from router.core.request import Request
from router.core.worker import WorkerView
from router.core.worker_copy import WorkerCopy


class Stale:
    """Asks another policy about workers as they were at the last look; looks every `period_s`.

    That is what polling is: between two looks every decision is made on the same numbers.
    """

    def __init__(self, policy: Policy, period_s: float) -> None:
        self._policy = policy
        self._period_s = period_s
        self._looked = float("-inf")
        self._seen: dict[str, WorkerCopy] = {}

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        if now - self._looked >= self._period_s:
            self._looked = now
            self._seen = {worker.name: WorkerCopy.of(worker) for worker in workers}
        seen = [self._seen.get(worker.name) or WorkerCopy.of(worker) for worker in workers]
        return self._policy.pick(request, seen, now)

    def __repr__(self) -> str:
        return f"<Stale {self._policy!r} every {self._period_s} s>"
