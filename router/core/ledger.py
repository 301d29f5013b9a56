"""The accounts of one pool's workers: what is charged, how it moves on, and how it is settled.

Separate from the Pool, which decides: two pools that hand KV to each other settle each other's legs, and need
nothing else of one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from router.core.answer import Usage
from router.core.calibration_online import OnlineCalibration
from router.core.chooser import Chooser
from router.core.engine_stats import EngineStats
from router.core.forecasts import Forecasts, Foresees
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.pairs import Blame
from router.core.partners import Partners
from router.core.patience import Patience
from router.core.policy import Choice
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Role, Worker

_GOOD = frozenset({Outcome.OK, Outcome.CLIENT_ERROR})
_BAD = frozenset({Outcome.FAILED, Outcome.TIMEOUT})


class Ledger:
    """The only writer of leases and mirrors.

    State: `leases`; `other`, the ledger of those who prefill for this pool, and `partners`, what both share;
    `online`, what learns the workers' coefficients from what passes here, if anything does; `forecasts`, what
    is expected of each lease.
    """

    __slots__ = (
        "_chooser", "_patience", "_role", "_roster", "forecasts", "leases", "online", "other", "partners",
    )  # fmt: skip

    def __init__(
        self,
        role: Role,
        roster: Roster,
        chooser: Chooser,
        patience: Patience,
        expect: Callable[[Request], int],
    ) -> None:
        self._role = role
        self._roster = roster
        self._chooser = chooser
        self._patience = patience
        self.forecasts = Forecasts(expect)
        self.leases: set[Lease] = set()
        self.other: Ledger | None = None
        self.partners: Partners | None = None
        self.online: OnlineCalibration | None = None
        self.foresee()

    def foresee(self) -> None:
        """Gives the pool's policy the forecasts, if it wants to look ahead."""
        policy = self._chooser.policy
        if isinstance(policy, Foresees):
            policy.foresee(self.forecasts)
        else:
            self.forecasts.rest()

    def charge(
        self, request: Request, choice: Choice, name: str, now: float, *, transferring: bool = False
    ) -> Lease:
        """Charges one leg to a worker.

        Args:
            transferring: another worker prefills it, so no prompt waits here, but a transfer is under way.
        """
        worker = self._roster.workers[name]
        if not worker.mirror.working:
            worker.last_sign = now
        expected = 1 if self._role is Role.PREFILL else self.forecasts.placed(request, now)
        lease = Lease(
            request=request,
            worker=name,
            incarnation=worker.incarnation,
            granted=now,
            prompt_tokens=request.prompt_tokens,
            expected_tokens=expected,
            cost=choice.cost,
            reason=choice.reason,
            policy=self._chooser.seat(request).name,
            last_event=now,
            prefilled=transferring,
            prefill_only=self._role is Role.PREFILL and request.split,
            transferring=transferring,
        )
        worker.mirror.charge(lease)
        self.leases.add(lease)
        self.forecasts.granted(lease)
        if self.online is not None:
            self.online.charged(lease, worker)
        return lease

    def progress(
        self,
        lease: Lease,
        now: float,
        *,
        generated_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """An event of the lease was seen. Counts are absolute, so a repeated report does no harm.

        Args:
            generated_tokens: output tokens so far over all sequences; None when the event carried none.
            prompt_tokens: the true prompt length, when the engine has said it.
            cached_tokens: how much of it the engine found in its cache, when it has said that too.
        """
        if lease.outcome is not None:
            return
        before, lease.last_event = lease.last_event, now
        worker = self._holder(lease)
        if worker is None:
            return
        if prompt_tokens is not None:
            lease.prompt_known, lease.cached_tokens = True, cached_tokens
            worker.mirror.correct_prompt(lease, prompt_tokens)
        if not lease.prefilled:
            self._started(lease, worker, now)
        if lease.transferring:
            self._arrived(lease, worker, now)
        if generated_tokens is not None:
            if self.online is not None:
                self.online.advanced(lease, worker, generated_tokens, now - before, now)
            worker.mirror.generated(lease, generated_tokens)
        self._roster.show_progress(worker, now)

    def progress_all(self, name: str, counts: Sequence[tuple[Lease, int]], now: float) -> None:
        """Output tokens so far of many leases of one worker that have all begun: `progress` of each, for
        studies, in which nothing else would take as long."""
        worker = self._roster.workers.get(name)
        if worker is None:
            return
        held = [
            (lease, tokens)
            for lease, tokens in counts
            if lease.outcome is None and lease.incarnation == worker.incarnation
        ]
        if self.online is not None:
            for lease, tokens in held:
                self.online.advanced(lease, worker, tokens, now - lease.last_event, now)
                lease.last_event = now
        worker.mirror.generated_all(held)
        self._roster.show_progress(worker, now)

    def reported(self, lease: Lease, usage: Usage, now: float) -> None:
        """An engine told the usage of a lease, settled or not: nothing more of its prompt is to come."""
        worker = self._holder(lease)
        if worker is not None and self.online is not None:
            self.online.told(lease, worker, usage.cached_tokens, now)

    def observed(self, worker: Worker, stats: EngineStats) -> None:
        """An engine said something of itself."""
        if self.online is not None and stats.tokens_per_step is not None:
            self.online.speculates(worker, stats.tokens_per_step)

    def _started(self, lease: Lease, worker: Worker, now: float) -> None:
        """The first output proves the prefill."""
        worker.mirror.prefilled(lease)
        if self.online is not None:
            self.online.started(lease, worker, now)
        self._chooser.started(lease, now)

    def presume(self, now: float) -> None:
        """Takes transfers for done that must be by now, of answers that show nothing before their end."""
        partners, other = self.partners, self.other
        if partners is None or other is None:
            return
        since = now - partners.presumed_s
        for lease in self.leases:
            if not lease.transferring or lease.request.stream or _prefilled_at(lease) > since:
                continue
            worker = self._holder(lease)
            if worker is not None:
                worker.mirror.transferred(lease)
                if lease.prefill is not None:
                    other.settle(lease.prefill, Outcome.OK, now)

    def _arrived(self, lease: Lease, worker: Worker, now: float) -> None:
        """The first output proves the hand-over: the producer is done with it."""
        worker.mirror.transferred(lease)
        if self.online is not None:
            self.online.arrived(lease, worker, _prefilled_at(lease), now)
        if self.partners is not None and lease.request.stream:
            self.partners.timed(now - lease.granted)
        self._chooser.started(lease, now)
        if self.partners is not None and self.other is not None and lease.prefill is not None:
            self.partners.now = now
            self.partners.transferred(lease)
            self.other.settle(lease.prefill, Outcome.OK, now)

    def settle(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Gives one leg back. A second call changes nothing; the first outcome stands."""
        if lease.outcome is not None:
            return
        lease.outcome = outcome
        self.leases.discard(lease)
        if outcome is Outcome.OK and lease.transferring and self.partners is not None:
            self.partners.now = now
            self.partners.transferred(lease)  # an answer in one piece proves the hand-over with its end
        worker = self._holder(lease)
        if worker is not None:
            patience_s = self._patience.of(worker) if outcome is Outcome.TIMEOUT else 0.0
            worker.mirror.settle(lease)
            if self.online is not None:
                self.online.settled(lease, worker, now)
            silent_s = now - max(lease.granted, worker.last_sign)
            # Clients choose how long they wait, so a deadline alone is no verdict on the worker: it must
            # have been silent for as long as a healthy one may be.
            if outcome is not Outcome.TIMEOUT or silent_s > patience_s:
                self._judge(worker, outcome, now, reason)
        if outcome is Outcome.HANDOVER:
            self._blame(lease, now)
        self.forecasts.settled(lease, outcome, now)
        self._chooser.settled(lease, outcome, now)

    def _blame(self, lease: Lease, now: float) -> None:
        """A hand-over failed: counts it for the pair, and for the one of both that is to blame, if any is."""
        if self.partners is None or self.other is None or lease.prefill is None:
            return
        self.partners.now = now
        blame = self.partners.failed(lease)
        ledger, guilty = (self, lease) if blame is Blame.DECODE else (self.other, lease.prefill)
        if blame is not Blame.NOBODY:
            ledger.accuse(guilty, now)

    def accuse(self, lease: Lease, now: float) -> None:
        """A worker's hand-overs fail whoever is at the other end: counts one against it."""
        worker = self._holder(lease)
        if worker is not None:
            self._judge(worker, Outcome.FAILED, now, "its hand-overs fail with several workers")

    def _judge(self, worker: Worker, outcome: Outcome, now: float, reason: str) -> None:
        if outcome in _GOOD:
            worker.health.request_succeeded()
            self._roster.show_progress(worker, now)
        elif outcome in _BAD and worker.health.request_failed(now):
            self._roster.sign(worker.name, Sign.BAD, now, reason or f"requests in a row: {outcome.value}")
        elif outcome is Outcome.UNREACHABLE and worker.state is not State.GONE:
            self._roster.sign(worker.name, Sign.REFUSED, now, reason or "refused a connection")

    def _holder(self, lease: Lease) -> Worker | None:
        """The worker that was charged; None when it is gone or has been born anew since."""
        worker = self._roster.workers.get(lease.worker)
        return worker if worker is not None and worker.incarnation == lease.incarnation else None

    def __repr__(self) -> str:
        return f"<Ledger of {self._role.value} workers [{len(self.leases)} leases]>"


def _prefilled_at(lease: Lease) -> float:
    """Since when its KV could be on its way (s): legs that run at the same time begin with the prefill."""
    prefill = lease.prefill
    if prefill is None:
        return lease.granted
    return max(lease.granted, prefill.last_event) if prefill.prefilled else math.inf
