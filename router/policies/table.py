"""What the tables of the load policies have in common: the terms of a worker, and how equals are told apart.

Separate from the loads themselves, which every pick pays for; a table is built only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.explain import Row, Table
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.load import draw_sequence


def drawn_table(unit: str, seed: int, request: Request, rows: Sequence[Row]) -> Table:
    """A table whose equals are drawn among, as `least` does."""
    return Table(unit=unit, seed=seed, sequence=draw_sequence(request), rows=list(rows), drawn=True)


def request_terms(worker: WorkerView) -> dict[str, float]:
    """What `request_loads` is made of: (in flight + 1) × warm-up / capacity."""
    return {"in_flight_requests": worker.in_flight, **_speed(worker)}


def token_terms(worker: WorkerView, tokens: int) -> dict[str, float]:
    """What `token_loads` is made of: (held + new) × warm-up / capacity, and the room that there is."""
    terms = {"kv_tokens": worker.kv_tokens, "new_tokens": tokens, **_speed(worker)}
    if worker.kv_capacity_tokens is not None:
        terms["kv_capacity_tokens"] = worker.kv_capacity_tokens
    return terms


def load_rows(costs: Sequence[float], workers: Sequence[WorkerView], reason: str) -> list[Row]:
    """Rows of workers that are compared by their loads of requests alone."""
    return [
        Row(worker=w.name, total=cost, terms=request_terms(w), reason=reason)
        for w, cost in zip(workers, costs, strict=True)
    ]


def _speed(worker: WorkerView) -> dict[str, float]:
    return {"warmup": worker.warmup, "capacity": worker.capacity}
