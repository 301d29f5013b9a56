"""What is told of a decision to whoever keeps it: the choice, whose it was, and what was compared.

Separate from the chooser, which makes it, and from the records, which are files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from router.core.explain import Table, picks
from router.core.least_running import running_table
from router.core.offer import Placed
from router.core.rounds import MadeRound
from router.core.seat import Seat
from router.core.shadows import Opinion

P = ParamSpec("P")
T = TypeVar("T")


class Considered(NamedTuple):
    """What was thought of a choice before it was charged.

    Attributes:
        opinions: of the shadows.
        table: what its policy compared, when somebody records it and the policy can tell.
    """

    opinions: Sequence[Opinion]
    table: Table | None


class Decision(NamedTuple):
    """A choice that was charged at the time `now` (s), and whose it was."""

    pool: str
    seat: Seat
    placed: Placed
    table: Table | None
    now: float


class Records(Protocol):
    """Keeps decisions."""

    def decided(self, decision: Decision) -> tuple[tuple[str, float], ...]:
        """Takes one; returns the best that were not chosen, each with what it would have cost."""
        ...

    def round(self, made: MadeRound) -> None:
        """Takes a round of a batch policy, before the first of its choices is charged."""
        ...


class Recording:
    """Tells somebody of every decision, and never harms one: whoever fails is told of nothing any more.

    State: `records`, None after that.
    """

    __slots__ = ("_on_broken", "records")

    def __init__(self, records: Records, on_broken: Callable[[Exception], None]) -> None:
        self.records: Records | None = records
        self._on_broken = on_broken

    def compared(self, seat: Seat, placed: Placed, now: float) -> Table | None:
        """What was compared for a choice that is not charged yet, as far as it can be told."""
        return self._told(_compared, seat, placed, now)

    def decided(self, decision: Decision) -> tuple[tuple[str, float], ...]:
        """Tells of a choice; returns the best others."""
        return () if self.records is None else self._told(self.records.decided, decision) or ()

    def round(self, made: MadeRound) -> None:
        """Tells of a round."""
        if self.records is not None:
            self._told(self.records.round, made)

    def _told(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.records is None:
            return None
        try:
            return act(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - told to `on_broken`; whatever it is, requests go on
            self.records = None
            self._on_broken(error)
            return None

    def __repr__(self) -> str:
        return f"<Recording {self.records!r}>"


def _compared(seat: Seat, placed: Placed, now: float) -> Table | None:
    request, choice, offer = placed.request, placed.choice, placed.offer
    table = seat.explain(request, offer, now)
    if choice.reason == "bypass" and (table is None or not picks(table, choice)):
        return running_table(request, offer.workers)
    return table
