"""Measures the rounds of one pool: the clock that its policy does not have.

Separate from the metrics because it is handed to a policy, which tells it of every stage.
"""

from __future__ import annotations

from collections.abc import Callable

from router.policies.round_watch import STAGES, RoundResult
from router.telemetry.round_families import RoundFamilies
from router.telemetry.series import Counter

_NO_FALLBACK = "none"


class RoundMeter:
    """State: when the stage that runs began (s)."""

    def __init__(self, families: RoundFamilies, pool: str, clock: Callable[[], float]) -> None:
        self._families = families
        self._pool = pool
        self._clock = clock
        self._since = 0.0
        self._stages = {stage: families.round_stage.series(pool, stage) for stage in STAGES}
        self._size = families.round_size.series(pool)
        self._gained = families.round_gain.series(pool, "gained")
        self._lost = families.round_gain.series(pool, "lost")
        self._reasons: dict[str, Counter] = {}

    def began(self) -> None:
        self._since = self._clock()

    def stage_ended(self, stage: str) -> None:
        now = self._clock()
        self._stages[stage].observe(now - self._since)
        self._since = now

    def ended(self, result: RoundResult) -> None:
        self._families.rounds.series(self._pool, result.fallback or _NO_FALLBACK).add()
        self._size.observe(result.waiting)
        self._gained.add(result.gained)
        self._lost.add(result.lost)
        for choice in result.choices:
            counter = self._reasons.get(choice.reason)
            if counter is None:
                counter = self._families.round_admitted.series(self._pool, choice.reason)
                self._reasons[choice.reason] = counter
            counter.add()

    def __repr__(self) -> str:
        return f"<RoundMeter of {self._pool}>"
