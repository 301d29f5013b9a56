"""The worker with the least to do, for what must go although no policy has a place for it.

Separate from the chooser because it is a rule of its own, and is recorded as such.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.errors import InternalError
from router.core.explain import Row, Table, decide
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView


def least_running(request: Request, workers: Sequence[WorkerView]) -> Choice:
    """Who has the least to do. Raises InternalError when nobody was offered."""
    best = decide(running_table(request, workers))
    if best is None:
        raise InternalError(f"nobody was offered for request {request.id}")
    return Choice(request.id, best.worker, cost=best.total, reason=best.reason)


def running_table(request: Request, workers: Sequence[WorkerView]) -> Table:
    """What is compared: requests that run there or are on their way, over its speed."""
    rows = [
        Row(
            worker=w.name,
            total=(w.in_flight + 1) * w.warmup / w.capacity,
            terms={"in_flight_requests": w.in_flight, "warmup": w.warmup, "capacity": w.capacity},
            reason="bypass",
        )
        for w in workers
    ]
    return Table(unit="requests in flight, this one included", seed=0, sequence=request.sequence, rows=rows)
