"""When a worker is chosen: as a request comes, or when a slot is free.

Early binding has no wait of its own, and the transfer of KV overlaps with what the worker is doing. Late
binding sees the whole pool and packs better, but KV waits at its producer meanwhile. Which is better depends
on the load, so a pool may change between them. Separate from eligibility, which only reads the answer.
"""

from __future__ import annotations

import enum

from router.core.errors import InternalError


class Mode(enum.Enum):
    """How a pool is configured to bind."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    EARLY = "early"
    LATE = "late"
    ADAPTIVE = "adaptive"
    """Early while little waits and many slots are free, late otherwise."""


class Binding:
    """The binding of one pool, and how it got there.

    State: `late`, what is in force; since when the load has asked for the other (None: it does not);
    `switches`, how often it has changed.
    """

    __slots__ = ("_hold_s", "_other_since", "late", "mode", "switches")

    def __init__(self, mode: Mode, *, hold_s: float = 5.0) -> None:
        """`hold_s`: how long the load must ask for the other binding, without a break, before it is used."""
        self.mode = mode
        self.late = mode is Mode.LATE
        self.switches = 0
        self._hold_s = hold_s
        self._other_since: float | None = None

    @property
    def adaptive(self) -> bool:
        return self.mode is Mode.ADAPTIVE

    def update(self, depth: int, free_slots: int | None, workers: int, now: float) -> bool:
        """Looks at the load; returns whether binding is late from now on.

        Where slots are unknown, nobody can tell when one is free, and an adaptive pool binds early at once.

        Args:
            depth: requests that wait in the pool.
            free_slots: of all workers together, None when one of them did not say.
            workers: that may be chosen. With more free slots than that, BalanceRoute places greedily, so
                waiting for a better choice gains nothing.
        """
        if self.mode is not Mode.ADAPTIVE:
            return self.late
        if free_slots is None:
            self._change(False)
            return False
        if depth < 0 or free_slots < 0:
            raise InternalError(f"a pool cannot hold {depth} requests and have {free_slots} free slots")
        wants_late = depth > 1 or free_slots <= workers
        if wants_late is self.late:
            self._other_since = None
        elif self._other_since is None:
            self._other_since = now
        elif now - self._other_since >= self._hold_s:
            self._change(wants_late)
        return self.late

    def _change(self, late: bool) -> None:
        self.switches += late is not self.late
        self.late = late
        self._other_since = None

    def __repr__(self) -> str:
        state = "late" if self.late else "early"
        doubt = ", the load asks for the other" if self._other_since is not None else ""
        return f"<Binding {self.mode.value} [{state}{doubt} | {self.switches} switches]>"
