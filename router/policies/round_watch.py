"""Who watches rounds as they are made, with a clock that policies do not have.

Separate from the round so that whoever measures needs nothing of how it is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from router.core.policy import Choice

STAGES = ("state", "greedy", "subset")
"""What is over when `RoundWatch.stage_ended` is called: loads and margins, stage 1, stage 2."""


class RoundResult(NamedTuple):
    """What one round did.

    Attributes:
        waiting: requests that it was about.
        gained: sum of F over the sets that entered with F above 0, in the policy's unit of cost.
        lost: the same of those below 0, as a number above 0: the price of leaving no slot empty.
        fallback: why the horizon was of no use; None: it was used, or the policy has none.
    """

    waiting: int
    choices: Sequence[Choice]
    gained: float
    lost: float
    fallback: str | None = None


class RoundWatch(Protocol):
    """Told of each round, in this order."""

    def began(self) -> None: ...

    def stage_ended(self, stage: str) -> None:
        """One of `STAGES` is over."""
        ...

    def ended(self, result: RoundResult) -> None: ...


@runtime_checkable
class Watched(Protocol):
    """Of a policy that decides in rounds."""

    watch: RoundWatch


class Unwatched:
    """Nobody measures."""

    def began(self) -> None:
        """Nobody hears it."""

    def stage_ended(self, stage: str) -> None:
        """Nobody hears it."""

    def ended(self, result: RoundResult) -> None:
        """Nobody hears it."""

    def __repr__(self) -> str:
        return "<Unwatched>"
