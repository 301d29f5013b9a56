"""What is told of a decision to whoever keeps it: the choice, whose it was, and what was compared.

Separate from the chooser, which makes it, and from the records, which are files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from router.core.explain import Table
from router.core.offer import Placed
from router.core.rounds import MadeRound
from router.core.seat import Seat
from router.core.shadows import Opinion


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
