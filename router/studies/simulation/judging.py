"""A policy that looks at every decision of another one and says what it cost by its own reckoning.

Separate from the run, which is the same with a judge and without. The judge is a shadow, as in the live
router: it sees what the router sees at that moment, and is told of what really happened. One that reckons in
seconds from the steps' own laws (`calibrated`, `joint`) comes nearest to what a decision truly costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn

from router.core.errors import InternalError
from router.core.pool import Pool
from router.core.seat import Seat
from router.core.shadows import Shadow, Verdict
from router.policies import POLICIES, build
from router.studies.simulation.record import RegretRecord


class JudgeFailed(RuntimeError):
    """A bug of the judge. Not an error of the router, which would be the end of one call only."""


class Judges:
    """One policy as the judge of every pool that it is for. State: its shadows, by pool."""

    def __init__(self, judge: str, pools: Iterable[Pool], seed: int) -> None:
        """Raises InternalError when it fits no pool; whoever asks checks that before."""
        spec = POLICIES[judge]
        self._shadows: dict[str, Shadow] = {}
        for pool in pools:
            if spec.fits(pool.rules.role):
                shadow = Shadow(Seat(judge, build(judge, {}, seed)), spec.cost_unit)
                pool.chooser.on_dropped = _failed
                pool.chooser.shadow([shadow], 1.0)
                self._shadows[pool.rules.name] = shadow
        if not self._shadows:
            raise InternalError(f"{judge} fits no pool, so it can judge none")

    def regrets(self) -> dict[str, RegretRecord]:
        """What they say so far; nothing of a pool where they could compare nothing."""
        return {name: record for name, record in self._records() if record.decisions}

    def _records(self) -> Iterator[tuple[str, RegretRecord]]:
        for name, shadow in self._shadows.items():
            verdicts = shadow.verdicts
            yield (
                name,
                RegretRecord(
                    judge=shadow.seat.name,
                    unit=shadow.unit,
                    decisions=verdicts.total() - verdicts[Verdict.REFUSED],
                    total=shadow.regret,
                    agreed=verdicts[Verdict.AGREED] + verdicts[Verdict.EQUAL],
                    ranked=verdicts[Verdict.OUTRANKED],
                ),
            )

    def __repr__(self) -> str:
        return f"<Judges {self._shadows}>"


def _failed(name: str, error: Exception) -> NoReturn:
    """The live router goes on without a shadow that failed; a study would be silently less than was asked."""
    raise JudgeFailed(f"the judge {name} failed: {error}") from error
