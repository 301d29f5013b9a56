"""Why a request would go where: every term of every candidate, and the rule that picks from them.

Separate from the policies because the rule must be applied without one: a table that was written down yields
the same pick offline, years later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from router.core.policy import tie_breaks
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
    """

    unit: str
    seed: int
    sequence: int
    rows: list[Row]


def decide(table: Table) -> Row | None:
    """The row that the table's own rule picks: lowest tier, total, order, hash. None when there is none."""
    rows = [row for row in table.rows if row.tier is not None]
    hashes = tie_breaks(table.seed, table.sequence, _names(rows))
    ranked = [((row.tier, row.total, row.order, tie), row) for row, tie in zip(rows, hashes, strict=True)]
    return min(ranked, key=lambda entry: entry[0])[1] if ranked else None


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
