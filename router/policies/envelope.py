"""The loads of a barrier group and the highest of them, now or over some steps ahead.

Separate from the scores because it is what a round changes: an admission raises one worker's load, and the
envelope only where that worker now exceeds it; everybody's margin follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add, sub
from typing import NamedTuple, Protocol

from router.policies.barrier import Group
from router.policies.f_score import Hinge, Hinges, Score


class Envelope(Protocol):
    """Loads by the index of a member, in the unit of the group."""

    def load(self, member: int) -> float:
        """Its load now."""
        ...

    def score(self, member: int, load_per_token: float) -> Score:
        """F of admissions to it, in its own tokens."""
        ...

    def raise_by(self, member: int, load: float) -> None:
        """It was given so much more."""
        ...


class Present:
    """BR-0: the loads at this step. A worker that came back lately looks `warmup` times as loaded to itself;
    the others do not wait longer for it."""

    __slots__ = ("_loads", "_peak", "_size")

    def __init__(self, group: Group) -> None:
        loads = [
            unit.load(member.kv_tokens, member.sequences)
            for member, unit in zip(group.members, group.units, strict=True)
        ]
        self._size = group.size
        self._peak = max(loads)
        self._loads = [load * member.warmup for load, member in zip(loads, group.members, strict=True)]

    def load(self, member: int) -> float:
        return self._loads[member]

    def score(self, member: int, load_per_token: float) -> Hinge:
        margin = (self._peak - self._loads[member]) / load_per_token
        return Hinge(self._size, margin if margin > 0.0 else 0.0)

    def raise_by(self, member: int, load: float) -> None:
        raised = self._loads[member] = self._loads[member] + load
        self._peak = max(self._peak, raised)

    def __repr__(self) -> str:
        return f"<Present of {self._size} workers, highest {self._peak:g}>"


_NEGLIGIBLE = 1e-2


@lru_cache(maxsize=64)
def discounts(discount: float, horizon: int) -> tuple[float, ...]:
    """γ^h of the steps 0 to H. The last ones that together weigh less than a hundredth are one with the step
    before them: at γ = 0.86 and H = 80 that leaves 31 of 81."""
    weights = [discount**step for step in range(horizon + 1)]
    tail, least = 0.0, _NEGLIGIBLE * sum(weights)
    while len(weights) > 1 and tail + weights[-1] < least:
        tail += weights.pop()
    weights[-1] += tail
    return tuple(weights)


class Weights(NamedTuple):
    """The discounts γ^h of the steps, and α and β of the score."""

    discounts: Sequence[float]
    fill: float
    overflow: float


class Horizon:
    """BR-H: the loads at the steps ahead, as projected. What is admitted stays as it is over all of them, so
    it is kept as one number beside the projection of its worker.

    Args:
        loads: for each member of the group its load at each step.
        warmups: of the members, as in `Present`.
        weights: for as many steps.
    """

    __slots__ = ("_admitted", "_envelope", "_free", "_loads", "_warm", "_weights")

    def __init__(self, loads: Sequence[Sequence[float]], warmups: Sequence[float], weights: Weights) -> None:
        self._envelope = list(map(max, *loads)) if len(loads) > 1 else list(loads[0])
        self._loads = [
            steps if warmup == 1.0 else [load * warmup for load in steps]
            for steps, warmup in zip(loads, warmups, strict=True)
        ]
        self._warm = [warmup != 1.0 for warmup in warmups]
        self._admitted = [0.0] * len(loads)
        self._free = [0.0] * len(loads)
        """Load that a member can take for certain without a new highest; margins only grow otherwise."""
        self._weights = weights

    def load(self, member: int) -> float:
        return self._loads[member][0] + self._admitted[member]

    def score(self, member: int, load_per_token: float) -> Hinges:
        gaps: Iterable[float] = map(sub, self._envelope, self._loads[member])
        taken = self._admitted[member]
        if self._warm[member]:  # it may look higher to itself than the envelope is
            gaps = [max(gap, taken) for gap in gaps]
        if load_per_token != 1.0:
            gaps = [gap / load_per_token for gap in gaps]
            taken /= load_per_token
        weights = self._weights
        score = Hinges(
            list(gaps), weights.discounts, fill=weights.fill, overflow=weights.overflow, taken=taken
        )
        self._free[member] = score.least_margin * load_per_token
        return score

    def raise_by(self, member: int, load: float) -> None:
        admitted = self._admitted[member] = self._admitted[member] + load
        self._free[member] -= load
        if self._free[member] >= 0.0:
            return
        raised = map(add, self._loads[member], repeat(admitted))
        self._envelope = list(map(max, self._envelope, raised))

    def __repr__(self) -> str:
        return f"<Horizon of {len(self._loads)} workers over {len(self._envelope)} steps>"
