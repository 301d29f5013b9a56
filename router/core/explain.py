"""Why a request would go where: every term of every candidate, and the rule that picks from them.

Separate from the policies because the rule must be applied without one: a table that was written down yields
the same pick offline, years later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import structs

from router.core.policy import Choice, draw, tie_breaks
from router.core.request import Request
from router.core.worker import WorkerView


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One candidate: a worker, or a pair of them.

    Attributes:
        worker: name of the worker (of the decode worker, for a pair).
        prefill_worker: name of the prefill worker, for a pair.
        terms: what `total` is made of and what was looked at besides, by name with the unit in it.
        total: what is compared, lower is better, in the unit of the table.
        tier: rows of a lower tier are preferred whatever their total; None is never chosen.
        order: breaks a tie of tier and total before the hash does, for policies whose ties are not even.
        reason: why it would be chosen if it were, or why it cannot be.
    """

    worker: str
    total: float
    prefill_worker: str | None = None
    terms: dict[str, float] = {}
    tier: int | None = 0
    order: float = 0.0
    reason: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy compared for one request.

    Attributes:
        unit: of the totals.
        seed, sequence: what ties are broken by, with the names.
        rows: in the order in which the workers were offered.
        drawn: of equals one is drawn, by one hash for all of them; otherwise the lowest of their hashes wins.
    """

    unit: str
    seed: int
    sequence: int
    rows: list[Row]
    drawn: bool = False


def decide(table: Table) -> Row | None:
    """The row that the table's own rule picks: lowest tier, total, order, then by hash. None when there is
    none."""
    ranked = [((row.tier, row.total, row.order), row) for row in table.rows if row.tier is not None]
    if not ranked:
        return None
    first = min([rank for rank, _ in ranked])
    best = [row for rank, row in ranked if rank == first]
    names = _names(best)
    if table.drawn:
        return best[draw(table.seed, table.sequence, names[0], len(best))]
    hashes = tie_breaks(table.seed, table.sequence, names)
    return best[hashes.index(min(hashes))]


def picks(table: Table, choice: Choice) -> bool:
    """Whether the table's own rule leads to this choice."""
    row = decide(table)
    return row is not None and (row.worker, row.prefill_worker) == (choice.worker, choice.prefill_worker)


def best_others(table: Table, chosen: Row | None, count: int) -> list[Row]:
    """The rows that come next after the one that was chosen, at most so many, the best first."""
    others = [row for row in table.rows if row.tier is not None and row is not chosen]
    return sorted(others, key=lambda row: (row.tier, row.total, row.order))[:count]


def without(table: Table, barred: Collection[tuple[str, str]]) -> Table:
    """The same, with these pairs of a prefill and a decode worker never chosen."""
    if not barred:
        return table
    rows = [
        structs.replace(row, tier=None, reason="pair set aside")
        if (row.prefill_worker, row.worker) in barred
        else row
        for row in table.rows
    ]
    return structs.replace(table, rows=rows)


def joined(tables: Sequence[Table]) -> Table | None:
    """Of tables that were made apart, one whose pick is the cheapest of theirs; None for no tables.

    Rows of the others are kept, and never chosen.
    """
    picks = [decide(table) for table in tables]
    found = [(row.total, index) for index, row in enumerate(picks) if row is not None]
    best = min(found, default=(0.0, 0))[1]
    rows = [
        row
        if index == best or row.tier is None
        else structs.replace(row, tier=None, reason="another revision")
        for index, table in enumerate(tables)
        for row in table.rows
    ]
    return structs.replace(tables[best], rows=rows) if tables else None


def _names(rows: Iterable[Row]) -> list[str]:
    """What each row is hashed by: the worker, or both names of a pair with a space between them."""
    return [f"{row.prefill_worker} {row.worker}" if row.prefill_worker else row.worker for row in rows]


@runtime_checkable
class Explains(Protocol):
    """Every policy that chooses one worker. Builds the table only when asked, and changes nothing.

    `decide` of the table is the worker that `pick` chooses for the same arguments; a batch policy tells what
    it would do if the request waited alone.
    """

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table: ...


@runtime_checkable
class ExplainsPairs(Protocol):
    """The same for a policy that chooses pairs."""

    def explain_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Table: ...
