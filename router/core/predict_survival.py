"""How many more tokens a request writes, given how many it has written: the survival of output lengths.

Separate because every predictor that has seen lengths rests on it, whatever it groups them by. Source of the
estimate: Survival of BalanceRoute, arXiv 2605.06113. Lengths that were cut (by the client's bound, or because
the client left) are not taken for ends but as "at least this long": Kaplan and Meier, "Nonparametric
estimation from incomplete observations", 1958. Without any cut length both are the same.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, islice
from operator import mul
from typing import NamedTuple

TABLE_SHIFT = 4
"""A table has an entry for every 16 tokens written."""

MAX_TABLE_TOKENS = 1 << 15
"""Beyond so many tokens written a table says what it says beyond the longest length seen."""

_MANY = 256
"""Lengths whose curve takes so long that it is made anew less often."""

MAX_HORIZON = 250
"""Most steps ahead, so that a table entry is a byte."""


class Length(NamedTuple):
    """One output length.

    Attributes:
        ended: the model ended it; False: it would have become longer.
        weight: above 0.
    """

    tokens: int
    ended: bool = True
    weight: float = 1.0


class SurvivalCurve:
    """P(length > a) from lengths seen, and what follows from it. Immutable.

    State: the distinct lengths at which something ended, ascending, and the cumulated probability of ending
    up to each (`_ended`) and of that times the length (`_moment`), both with a 0 in front.
    """

    __slots__ = ("_ended", "_moment", "_values")

    def __init__(self, lengths: Iterable[Length | tuple[int, bool, float]]) -> None:
        masses = _kaplan_meier(sorted(lengths))
        self._values = [tokens for tokens, _ in masses]
        probabilities = [mass for _, mass in masses]
        self._ended: list[float] = list(accumulate(probabilities, initial=0.0))
        self._moment: list[float] = list(accumulate(map(mul, self._values, probabilities), initial=0.0))

    def forecast(self, written: int, steps: int) -> tuple[float, float]:
        """(p, e) for a sequence that still runs after `written` tokens: p = P(ends within `steps` more), and
        e = E[min(rest, steps)] = (1 − p) steps + p × mean rest, in [0, steps].

        Beyond the longest length seen nothing is known, and it counts as staying: (0, `steps`).
        """
        values, ended, moment = self._values, self._ended, self._moment
        low = bisect_right(values, written)
        high = bisect_right(values, written + steps, low)
        if high == low:
            return 0.0, float(steps)
        ending = ended[high] - ended[low]
        share = ending / (1.0 - ended[low])
        rest = (moment[high] - moment[low]) / ending - written
        return share, (1.0 - share) * steps + share * rest

    def mean_length(self) -> float | None:
        """E[length]; what was longer than all that ended counts as the longest. None when nothing ended."""
        if not self._values:
            return None
        return self._moment[-1] + max(1.0 - self._ended[-1], 0.0) * self._values[-1]

    def table(self, horizon: int) -> bytes:
        """In how many of the `horizon` + 1 steps from now on it is still there, at least in this one.

        Entry i is for 16 i tokens written; there is none beyond the longest length seen, where it stays. A
        request whose expected steps reach the horizon stays in all of them: `horizon` + 1.

        Args:
            horizon: at least 1 and at most `MAX_HORIZON`.
        """
        if not self._values:
            return b""
        values, ended, moment = self._values, self._ended, self._moment
        last = min(values[-1], MAX_TABLE_TOKENS)
        entries = bytearray()
        low = high = 0
        # `forecast` of each entry, written out: both ends of its range only ascend.
        for written in range(0, last, 1 << TABLE_SHIFT):
            while values[low] <= written:
                low += 1
            while high < len(values) and values[high] <= written + horizon:
                high += 1
            steps = float(horizon)
            if high > low:
                going = ended[high] - ended[low]
                share = going / (1.0 - ended[low])
                rest = (moment[high] - moment[low]) / going - written
                steps = (1.0 - share) * horizon + share * rest
            entries.append(horizon + 1 if steps >= horizon else max(math.ceil(steps), 1))
        return bytes(entries)

    def __repr__(self) -> str:
        longest = self._values[-1] if self._values else 0
        return f"<SurvivalCurve [{len(self._values)} lengths up to {longest} tokens]>"


def _kaplan_meier(lengths: Sequence[tuple[int, bool, float]]) -> list[tuple[int, float]]:
    """Probability of ending at each length, of lengths in ascending order. A cut length gives its share to
    the longer ones; what is left over was cut beyond all ends."""
    if not lengths:
        return []
    at_risk = sum([weight for _, _, weight in lengths])
    surviving = 1.0
    masses: list[tuple[int, float]] = []
    ended = gone = 0.0
    following = chain(islice(lengths, 1, None), [(0, False, 0.0)])
    for (tokens, ends, weight), (next_tokens, _, _) in zip(lengths, following, strict=True):
        gone += weight
        if ends:
            ended += weight
        if tokens == next_tokens:
            continue
        if ended:
            # With the last one nothing stays at risk: the quotient is 1, and rounding must not exceed it.
            mass = surviving * min(ended / at_risk, 1.0)
            masses.append((tokens, mass))
            surviving -= mass
        at_risk -= gone
        ended = gone = 0.0
    return masses


class RecentLengths:
    """The last lengths of one kind of request; a length counts half after `half_life_s`.

    State: two rings of equal length (`_tokens`, negative for a cut one, and `_at`), the place of the next
    (`_next`), the decayed count `_weight` as of the newest, and the curve and table made last.
    """

    __slots__ = (
        "_at",
        "_curve",
        "_limit",
        "_new",
        "_newest",
        "_next",
        "_table",
        "_tokens",
        "_weight",
        "half_life_s",
    )

    def __init__(self, limit: int, half_life_s: float) -> None:
        self._limit = limit
        self.half_life_s = half_life_s
        self._tokens = array("q")
        self._at = array("d")
        self._next = 0
        self._weight = 0.0
        self._newest = 0.0
        self._new = 0  # since the curve was made
        self._curve: SurvivalCurve | None = None
        self._table: tuple[SurvivalCurve, int, bytes] | None = None

    def add(self, tokens: int, now: float, *, ended: bool) -> None:
        """Takes a length of at least 1."""
        signed = tokens if ended else -tokens
        if len(self._tokens) < self._limit:
            self._tokens.append(signed)
            self._at.append(now)
        else:
            self._tokens[self._next], self._at[self._next] = signed, now
            self._next = (self._next + 1) % self._limit
        self._weight = min(self.weight(now) + 1.0, self._limit)
        self._newest = now
        self._new += 1

    def weight(self, now: float) -> float:
        """How many lengths of this instant it is worth."""
        return self._weight * self._decay(now - self._newest)

    def curve(self) -> SurvivalCurve:
        """The curve, made anew when an eighth of the lengths are new; of many lengths, a quarter."""
        parts = 8 if len(self._tokens) < _MANY else 4
        if self._curve is None or self._new * parts >= len(self._tokens):
            newest, per_s = self._newest, -1.0 / self.half_life_s
            # As `_decay`, without a call for each.
            halvings = [(newest - at) * per_s for at in self._at]
            if min(halvings, default=0.0) < -60.0 or max(halvings, default=0.0) > 0.0:
                halvings = [max(min(count, 0.0), -60.0) for count in halvings]
            weights = map(math.exp2, halvings)
            tokens = self._tokens
            self._curve = SurvivalCurve(
                zip(map(abs, tokens), [length > 0 for length in tokens], weights, strict=True)
            )
            self._new = 0
        return self._curve

    def table(self, horizon: int) -> bytes:
        """The table of the curve; see there."""
        curve = self.curve()
        if self._table is None or self._table[:2] != (curve, horizon):
            self._table = (curve, horizon, curve.table(horizon))
        return self._table[2]

    def copy(self) -> RecentLengths:
        """The same lengths, with a future of their own; its curve is made when somebody asks."""
        twin = RecentLengths(self._limit, self.half_life_s)
        twin._tokens, twin._at = self._tokens[:], self._at[:]
        twin._next, twin._weight, twin._newest = self._next, self._weight, self._newest
        return twin

    def lengths(self, now: float, most: int | None = None) -> list[tuple[int, float]]:
        """(tokens, age in s) of each, oldest first; tokens are negative for a cut one.

        Args:
            most: only so many of the newest, at least 1; None: all.
        """
        start = self._next
        tokens, at = self._tokens[start:] + self._tokens[:start], self._at[start:] + self._at[:start]
        if most is not None:
            tokens, at = tokens[-most:], at[-most:]
        return [(length, now - then) for length, then in zip(tokens, at, strict=True)]

    def _decay(self, age_s: float) -> float:
        return math.exp2(-max(age_s, 0.0) / self.half_life_s) if age_s < 60 * self.half_life_s else 2.0**-60

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<RecentLengths [{len(self._tokens)} of {self._limit}]>"
