"""How often requests may be tried again: by the settings, and by the budget that all of them share."""

from __future__ import annotations

from contextlib import ExitStack

from router.admission import Job
from router.core.budget import RetryBudget
from router.settings.timeouts import RetrySettings


class Retries:
    """Reads the settings, takes from the budget."""

    def __init__(self, settings: RetrySettings, budget: RetryBudget) -> None:
        self._settings = settings
        self.budget = budget

    def allowed(self, job: Job) -> int | None:
        """Tries of this request in all; None leaves it to the kinds of failure."""
        return self._settings.allowed if job.repeatable else 0

    def take(self, taken: ExitStack) -> bool:
        """One more try, given back when `taken` is closed. False when too many are under way."""
        if not self.budget.take():
            return False
        taken.callback(self.budget.give)
        return True
