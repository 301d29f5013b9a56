"""A round of a batch policy, as it was before anything of it was charged: enough to make it again.

Separate from the policies because whoever writes rounds down knows none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from router.core.policy import Choice
from router.core.request import Request
from router.core.seat import Seat
from router.core.worker import WorkerView


class RoundMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a policy remembers that a round depends on, beside the requests and the workers.

    Attributes:
        overtakings: (came, placed) of recent placements (s).
        fallback: why the horizon was of no use; None: it was used, or there is none.
        discount: γ of the steps ahead.
        loads_ahead: by the name of a worker its projected load at each step, in the unit of its group.
    """

    overtakings: list[tuple[float, float]] = []
    fallback: str | None = None
    discount: float | None = None
    loads_ahead: dict[str, list[float]] = {}


@runtime_checkable
class Remembers(Protocol):
    """Optional, of a policy that decides in rounds."""

    def memory(self, workers: Sequence[WorkerView]) -> RoundMemory:
        """What its next round among these workers would depend on. Changes nothing."""
        ...

    def recall(self, memory: RoundMemory) -> None:
        """Decides by this from now on, and learns nothing any more."""
        ...


class MadeRound(NamedTuple):
    """One round, made at `now` (s) and not charged yet."""

    pool: str
    seat: Seat
    waiting: Sequence[Request]
    workers: Sequence[WorkerView]
    choices: Sequence[Choice]
    now: float
