"""What would happen to a request if it came now: whom its policy would be offered, and what it compares.

Separate from the Pool because nothing here charges: a dry run leaves each account and policy as it was.
"""

from __future__ import annotations

from typing import NamedTuple

from router.core.explain import Row, Table, decide
from router.core.filtered import filtered_out
from router.core.offer import Offer
from router.core.pool import Pool
from router.core.request import Request


class DryRun(NamedTuple):
    """One pool before one request.

    Attributes:
        policy: name of the one that would decide.
        table: what it compares; None when nobody could be offered, or when it cannot tell.
        chosen: the row that would be picked.
        filtered: workers that it is not offered, each with the reason.
        by_batch: it decides on all that wait at once; the table says what it would do with this one alone.
    """

    policy: str
    table: Table | None
    chosen: Row | None
    filtered: list[tuple[str, str]]
    by_batch: bool


def dry_run(pool: Pool, request: Request, now: float) -> DryRun:
    """Asks without effect."""
    if pool.partners is not None:
        pool.partners.now = now
    workers = pool.eligible.open_to(request)
    offer: Offer = pool.placement.offer(request, workers)
    seat = pool.chooser.peek(request)
    table = seat.explain(request, offer, now) if workers and offer.prefills != [] else None
    return DryRun(
        policy=seat.name,
        table=table,
        chosen=None if table is None else decide(table),
        filtered=filtered_out(pool, request),
        by_batch=pool.decides_by_batch and pool.chooser.in_round(request),
    )
