"""What is known of one worker's blocks, as a table, and what the prefix index has to be told of it.

Separate from the listener because the listener meets a dozen situations, and the index must be told the truth
in all of them: the table says it once.
"""

from __future__ import annotations

import enum
from typing import Protocol

from router.core.errors import InternalError
from router.core.kv_event import KvEvent
from router.core.prefix_ledger import Fit
from router.core.trust import TrustSignal


class Followed(Protocol):
    """The part of the prefix index that follows events."""

    def follow(self, worker: str, *, counts_only: bool = False) -> None:
        """Begins a new record of the worker's blocks."""

    def apply(self, worker: str, event: KvEvent) -> Fit:
        """Takes in one event."""

    def stream(self, worker: str, signal: TrustSignal) -> None:
        """Learns how the stream is."""


class Known(enum.Enum):
    """How much of the worker's blocks the index knows of."""

    NOTHING = "nothing"
    """There was no room for its blocks; its events are not taken in."""
    PARTLY = "partly"
    """What was stored since some moment in the middle of its life."""
    WHOLLY = "wholly"
    """Everything since its beginning, or since it forgot everything."""
    PARTLY_STALE = "partly, stale"
    """As it was before events ceased to arrive."""
    WHOLLY_STALE = "wholly, stale"


class Learned(enum.Enum):
    """What changes that."""

    LOST = "lost"
    """Events are gone for good: the record is worth nothing and a new one begins."""
    WHOLE = "whole"
    """There is nothing that the record does not have."""
    SILENT = "silent"
    """Events do not arrive at present."""
    HEARD = "heard"
    """They arrive again, and none is missing in between."""
    FULL = "full"
    """The index had no room."""


_N, _P, _W, _PS, _WS = Known.NOTHING, Known.PARTLY, Known.WHOLLY, Known.PARTLY_STALE, Known.WHOLLY_STALE
_LOST, _COMPLETE, _SILENT = TrustSignal.LOST, TrustSignal.COMPLETE, TrustSignal.SILENT

KNOWLEDGE: dict[tuple[Known, Learned], tuple[Known, TrustSignal | None]] = {
    **{(known, Learned.LOST): (_P, _LOST) for known in Known},
    **{(known, Learned.FULL): (_N, None) for known in Known},
    (_N, Learned.WHOLE): (_N, None),
    (_P, Learned.WHOLE): (_W, _COMPLETE),
    (_W, Learned.WHOLE): (_W, None),
    (_PS, Learned.WHOLE): (_W, _COMPLETE),
    (_WS, Learned.WHOLE): (_W, _COMPLETE),
    (_N, Learned.SILENT): (_N, None),
    (_P, Learned.SILENT): (_PS, _SILENT),
    (_W, Learned.SILENT): (_WS, _SILENT),
    (_PS, Learned.SILENT): (_PS, None),
    (_WS, Learned.SILENT): (_WS, None),
    (_N, Learned.HEARD): (_N, None),
    (_P, Learned.HEARD): (_P, None),
    (_W, Learned.HEARD): (_W, None),
    # The index knows no way back for a record that was never complete: it has to prove itself anew.
    (_PS, Learned.HEARD): (_P, _LOST),
    (_WS, Learned.HEARD): (_W, _COMPLETE),
}


class Knowledge:
    """Of one worker, kept in step with the index: the only one who tells it of the stream.

    Args:
        counts_only: its prompts never come as token ids; blocks are only counted.
    """

    def __init__(self, index: Followed, worker: str, *, counts_only: bool = False) -> None:
        self._index = index
        self.worker = worker
        self._counts_only = counts_only
        self.known = Known.NOTHING

    def learn(self, learned: Learned) -> None:
        """Takes the step that the table gives. Raises InternalError if it has none: a bug."""
        step = KNOWLEDGE.get((self.known, learned))
        if step is None:
            raise InternalError(f"{self!r} cannot take {learned.value}")
        self.known, signal = step
        if signal is TrustSignal.LOST:
            self._index.follow(self.worker, counts_only=self._counts_only)
        elif signal is not None:
            self._index.stream(self.worker, signal)

    @property
    def absent(self) -> bool:
        return self.known is Known.NOTHING

    @property
    def stale(self) -> bool:
        return self.known in (Known.PARTLY_STALE, Known.WHOLLY_STALE)

    @property
    def whole(self) -> bool:
        return self.known in (Known.WHOLLY, Known.WHOLLY_STALE)

    def apply(self, event: KvEvent) -> Fit:
        """Hands an event to the index; without room there the record is gone."""
        fit = self._index.apply(self.worker, event)
        if fit is Fit.FULL:
            self.learn(Learned.FULL)
        return fit

    def __repr__(self) -> str:
        return f"<Knowledge {self.worker} {self.known.value}>"
