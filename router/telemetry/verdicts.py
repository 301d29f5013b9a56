"""Whether recorded decisions lead to the same choices when they are made again.

Separate from the making (`recompute`) because this is about many records: how many could be made again, and
which of them differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from router.core.explain import picks
from router.core.policy import Choice
from router.telemetry.decision import DecisionRecord, Record, RoundRecord
from router.telemetry.recompute import made_again, picked_again


@dataclass(slots=True)
class Verdicts:
    """What came of making them again.

    Attributes:
        decisions: by pool, policy and reason.
        whole, rounds: that were kept whole, and so were made again.
        differ: sentences about those that led to another choice.
    """

    decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    whole: int = 0
    rounds: int = 0
    differ: list[str] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Takes one record in. Raises PolicyError for a round that this version knows no policy for."""
        if isinstance(record, RoundRecord):
            self.rounds += 1
            if made_again(record) != list(record.choices):
                self.differ.append(
                    f"round {record.number} of pool {record.pool} places others when made again"
                )
            return
        self.decisions[record.pool, record.policy, record.reason] += 1
        if record.table is not None:
            self.whole += 1
            if not same_pick(record):
                row = picked_again(record)
                found = "nobody" if row is None else row.worker
                self.differ.append(f"{record.id} was given {record.worker}, and its table picks {found}")


def verdicts_on(records: Iterable[Record]) -> Verdicts:
    """All of them."""
    verdicts = Verdicts()
    for record in records:
        verdicts.add(record)
    return verdicts


def same_pick(record: DecisionRecord) -> bool:
    """Whether the table of a record leads to what was chosen, at the same cost."""
    if record.table is None:
        return False
    choice = Choice(record.id, record.worker, prefill_worker=record.prefill_worker)
    row = picked_again(record)
    return row is not None and picks(record.table, choice) and row.total == record.cost
