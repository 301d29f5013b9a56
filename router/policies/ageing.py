"""Who was passed over too long: the bound on what a search for the best fit may cost one request.

Separate from the round because it is the only memory of a BalanceRoute policy. Source of the need: the
starvation guard of arXiv 2605.06113 lets somebody in, not a given request: without margin the smallest prompt
of the window wins every time. The rule is ours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from router.core.request import Request

_REMEMBERED = 4
"""Placements remembered, as a multiple of the count that makes a request aged. While a request is the oldest
all placements overtake it, so the bound holds with 1; before that, placements of older ones lie between."""


def waits_since(request: Request) -> float:
    """When it came into the queue of its pool (s): when it was prefilled elsewhere, else when it arrived."""
    return request.arrived if request.handover is None else request.handover.ready


@dataclass(slots=True)
class Overtakings:
    """Recent placements of requests that came later than some which still wait.

    A request is aged once somebody younger was placed `age_s` ago, or `most` younger ones were. Plain waiting
    does not count: when all wait longer than `age_s`, nothing but first come, first served would be left.
    """

    age_s: float
    most: int
    placed: deque[tuple[float, float]] = field(default_factory=deque, repr=False)
    """(came, placed) of each, s; at most `_REMEMBERED` times `most`."""

    def record(self, request: Request, now: float) -> None:
        if len(self.placed) >= self.most * _REMEMBERED:
            self.placed.popleft()
        self.placed.append((waits_since(request), now))

    def aged(self, request: Request, now: float) -> bool:
        """Whether it goes before all others now."""
        since = waits_since(request)
        overtaken = [placed for came, placed in self.placed if came > since]
        return bool(overtaken) and (len(overtaken) >= self.most or now - overtaken[0] >= self.age_s)
