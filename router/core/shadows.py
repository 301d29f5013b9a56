"""Policies that decide without effect beside the one that decides: how often they agree, and what it costs.

Separate from the chooser because nothing here may touch a request: a shadow that fails is dropped, and what
it would have done is only counted.

A shadow is asked after the decision and before its charge, so it sees what the policy saw. It is told of what
really happened: the worker that was chosen, at the cost that the shadow itself gives to it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

from msgspec import structs

from router.core.errors import InternalError
from router.core.explain import Row, Table, decide
from router.core.lease import Lease, Outcome
from router.core.offer import Placed
from router.core.policy import Choice, tie_break
from router.core.seat import Seat

P = ParamSpec("P")
T = TypeVar("T")

MAX_SHADOWS = 4


class Verdict(enum.Enum):
    """What a shadow says of a decision."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    AGREED = "agreed"
    """It would have chosen the same."""
    EQUAL = "equal"
    """Another one at the same cost."""
    DEARER = "dearer"
    """What was chosen costs more than its own choice; the difference is the regret."""
    OUTRANKED = "outranked"
    """Another one before all costs, so there is no difference to tell."""
    REFUSED = "refused"
    """It would not have had that worker at all, or nobody yet, or it compares fewer pairs than there are."""


class Opinion(NamedTuple):
    """What one shadow says of one decision.

    Attributes:
        choice: the one that was made, at the shadow's own cost and for its own reason.
        regret: in the shadow's unit; None where costs do not compare.
    """

    shadow: Shadow
    verdict: Verdict
    choice: Choice
    regret: float | None


class Shadow:
    """One policy and what it said so far. State: `verdicts`, `regret` (a sum in its own unit), `busy_s`."""

    __slots__ = ("busy_s", "regret", "seat", "unit", "verdicts")

    def __init__(self, seat: Seat, unit: str) -> None:
        """`unit`: of its costs. Raises InternalError for a policy that cannot explain itself."""
        if not seat.explains:
            raise InternalError(f"{seat!r} has no table to compare with")
        self.seat = seat
        self.unit = unit
        self.verdicts: Counter[Verdict] = Counter()
        self.regret = 0.0
        self.busy_s = 0.0

    def judge(self, placed: Placed, now: float) -> Opinion:
        """What it says of a decision that is not charged yet. Changes nothing."""
        choice = placed.choice
        table = self.seat.explain(placed.request, placed.offer, now)
        best = None if table is None else decide(table)
        taken = None if table is None else _row_of(table, choice)
        if best is None or taken is None or taken.tier is None or best.tier is None:
            return Opinion(self, Verdict.REFUSED, choice, None)
        own = structs.replace(choice, cost=taken.total, reason=taken.reason)
        if (best.worker, best.prefill_worker) == (taken.worker, taken.prefill_worker):
            return Opinion(self, Verdict.AGREED, own, 0.0)
        if taken.tier > best.tier:
            return Opinion(self, Verdict.OUTRANKED, own, None)
        verdict = Verdict.EQUAL if taken.total == best.total else Verdict.DEARER
        return Opinion(self, verdict, own, taken.total - best.total)

    def take(self, opinion: Opinion) -> None:
        """Counts an opinion on what was charged."""
        self.verdicts[opinion.verdict] += 1
        self.regret += opinion.regret or 0.0

    def __repr__(self) -> str:
        judged = self.verdicts.total()
        return f"<Shadow {self.seat.name} [{judged} judged | regret {self.regret:.6g} {self.unit}]>"


def _row_of(table: Table, choice: Choice) -> Row | None:
    """The row of what was chosen. A shadow of single workers knows one side of a pair only."""
    for row in table.rows:
        if row.worker == choice.worker and row.prefill_worker in (None, choice.prefill_worker):
            return row
    return None


def _still() -> float:
    """No time passes where nobody measures it."""
    return 0.0


class Shadows:
    """The shadows of one pool. State: which there are.

    Attributes:
        sample: share of the decisions that they are asked about; they are told of all.
        clock: seconds, to measure what they cost; no decision depends on it.
        on_dropped: told of one that failed.
    """

    __slots__ = ("_shadows", "clock", "on_dropped", "sample")

    def __init__(self, on_dropped: Callable[[str, Exception], None]) -> None:
        self._shadows: dict[str, Shadow] = {}
        self.sample = 1.0
        self.clock: Callable[[], float] = _still
        self.on_dropped = on_dropped

    def use(self, shadows: Sequence[Shadow], sample: float) -> None:
        """Replaces all of them. Raises InternalError when they are too many."""
        if len(shadows) > MAX_SHADOWS:
            raise InternalError(f"{len(shadows)} shadows are more than {MAX_SHADOWS}")
        self._shadows = {shadow.seat.name: shadow for shadow in shadows}
        self.sample = sample

    def __len__(self) -> int:
        return len(self._shadows)

    def __iter__(self) -> Iterator[Shadow]:
        return iter(list(self._shadows.values()))

    def opinions(self, placed: Placed, now: float) -> Sequence[Opinion]:
        """What they say of a decision that is about to be charged; of one that is not sampled, nothing."""
        sequence = placed.request.sequence
        if self.sample < 1.0 and tie_break(0, sequence, "shadow") >= self.sample * 2.0**64:
            return ()
        found = [self._ask(shadow, shadow.judge, placed, now) for shadow in self]
        return [opinion for opinion in found if opinion is not None]

    def committed(self, placed: Placed, opinions: Sequence[Opinion], now: float) -> None:
        """What was decided was charged."""
        own = {opinion.shadow: opinion for opinion in opinions}
        for shadow in self:
            opinion = own.get(shadow)
            if opinion is not None:
                shadow.take(opinion)
            choice = placed.choice if opinion is None else opinion.choice
            self._ask(shadow, shadow.seat.committed, placed.request, choice, now)

    def started(self, lease: Lease, now: float) -> None:
        for shadow in self:
            self._ask(shadow, shadow.seat.started, lease, now)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        for shadow in self:
            self._ask(shadow, shadow.seat.settled, lease, outcome, now)

    def _ask(self, shadow: Shadow, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Has a shadow do something, and measures it. One that fails is dropped: no request asked for it."""
        began = self.clock()
        try:
            return act(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - told to `on_dropped`; whatever it is, requests go on
            if self._shadows.get(shadow.seat.name) is shadow:
                del self._shadows[shadow.seat.name]
            self.on_dropped(shadow.seat.name, error)
            return None
        finally:
            shadow.busy_s += max(self.clock() - began, 0.0)

    def __repr__(self) -> str:
        return f"<Shadows {', '.join(self._shadows) or 'none'} [{self.sample:.0%} of decisions]>"
