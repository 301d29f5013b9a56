"""What follows when a leg failed before its answer began: the twin of the loops in `router.proxy` and
`router.split`.

Separate from the courses, which send and hear. The tables of tries, who is avoided and the budget that all
requests share are the live router's own.
"""

from __future__ import annotations

from router.core.budget import Budget, RetryBudget
from router.core.pool import Pool
from router.core.request import Request
from router.core.retry import Again, Failure, Leg, SplitTries, Tries, elsewhere
from router.core.splitting import Splitting
from router.studies.simulation.fleet import Patience
from router.studies.simulation.life import Failed, Life


class Trying:
    """Grants further tries. State: the budget of all that are under way."""

    def __init__(self, patience: Patience, in_flight: Budget) -> None:
        self._tries = patience.tries
        self.budget = RetryBudget(in_flight, share=patience.budget_share, floor=patience.budget_min)

    def whole(self, life: Life, failed: Failed, pool: Pool) -> Request | None:
        """The request as it is tried at another worker of its pool; None: it is not."""
        if life.tries is None:
            life.tries = Tries(allowed=self._tries)
        request = elsewhere(life.request, failed.failure, failed.worker, pool.roster)
        if not pool.candidates(request) or not life.tries.another(failed.failure) or not self._take(life):
            return None
        return request

    def split(self, life: Life, failed: Failed, splitting: Splitting, *, late: bool) -> Request | None:
        """The request as it begins again with a prefill; None: it does not.

        Args:
            late: its own time is over.
        """
        leg, failure = failed.half, failed.failure
        pool = splitting.prefill if leg is Leg.PREFILL else splitting.decode
        request = elsewhere(life.request, failure, failed.worker, pool.roster)
        others = splitting.others_for(request, leg)
        again = self.after(life, leg, failure)
        if late or (failure is Failure.TOO_LONG and not others) or again is Again.GIVE_UP:
            return None
        if not self._take(life):
            return None
        return splitting.again(
            life.request, request, others=others or leg is Leg.PREFILL, producer=failed.producer
        )

    def after(self, life: Life, leg: Leg, failure: Failure) -> Again:
        """What the table says; counts the try."""
        if life.split_tries is None:
            life.split_tries = SplitTries(allowed=self._tries)
        return life.split_tries.after(leg, failure)

    def at_another_decoder(self, life: Life) -> bool:
        """Whether a hand-over that nobody was shown may go to another decode worker."""
        return self.after(life, Leg.DECODE, Failure.NEVER_SENT) is not Again.GIVE_UP and self._take(life)

    def goes_whole(self, life: Life) -> None:
        """It is not split any more, and has tries of its own from here on."""
        life.split_tries, life.failed = None, None
        self.give_back(life)

    def give_back(self, life: Life) -> None:
        """All its tries are over."""
        for _ in range(life.taken):
            self.budget.give()
        life.taken = 0

    def _take(self, life: Life) -> bool:
        if not self.budget.take():
            return False
        life.taken += 1
        life.record.tries += 1
        return True

    def __repr__(self) -> str:
        return f"<Trying {self.budget!r}>"
