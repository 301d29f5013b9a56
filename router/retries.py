"""How often requests may be tried again, by the settings and by the budget that all of them share, and where.

Separate from the tables of `core.retry`, which know of one request, and from the two ways in which a request
is served, whole and split, which both ask here.
"""

from __future__ import annotations

from collections.abc import Callable

from router.admission import Job
from router.core.budget import RetryBudget
from router.core.request import Request
from router.core.retry import Failure, elsewhere
from router.core.roster import Roster
from router.sending import LegFailed
from router.settings.timeouts import RetrySettings


class Retries:
    """Reads the settings, takes from the budget."""

    def __init__(self, settings: RetrySettings, budget: RetryBudget) -> None:
        self._settings = settings
        self.budget = budget
        self.on_model_unknown: Callable[[str], None] = _nobody
        """Told the name of a worker that does not serve a model that it was believed to serve."""

    def allowed(self, job: Job) -> int | None:
        """Tries of this request in all; None leaves it to the kinds of failure."""
        return self._settings.allowed if job.repeatable else 0

    def take(self) -> bool:
        """One more try, to be given back with `give`. False when too many are under way."""
        return self.budget.take()

    def give(self, tries: int) -> None:
        """So many tries of a request are over."""
        for _ in range(tries):
            self.budget.give()

    def elsewhere(self, request: Request, failed: LegFailed, roster: Roster) -> Request:
        """The same request for other workers of this roster than the one that failed, and than those that
        would fail alike."""
        if failed.failure is Failure.MODEL_UNKNOWN:
            roster.lose_model(failed.worker, request.model)
            self.on_model_unknown(failed.worker)
        return elsewhere(request, failed.failure, failed.worker, roster)


def _nobody(worker: str) -> None:
    """Nobody listens yet."""
