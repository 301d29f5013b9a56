"""Queue, placement and accounts of the workers of one role.

The Pool is the only place where a request is charged to a worker, and the only writer of mirrors and leases.
It is synchronous and idempotent at its edges: releasing twice, withdrawing what is gone or reporting progress
of a settled lease changes nothing. After every lease has ended it shows zero everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from router.core.binding import Binding, Mode
from router.core.chooser import Chooser
from router.core.drift import Balance
from router.core.eligibility import Eligibility
from router.core.engine_stats import EngineStats
from router.core.errors import InternalError, NoWorker, QueueFull, RouterError
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.ledger import Ledger
from router.core.lives import Verdict
from router.core.local_queue import LocalQueue
from router.core.offer import Placed
from router.core.partners import Partners
from router.core.patience import Patience
from router.core.placement import Placement
from router.core.policy import AnyPolicy
from router.core.pool_rules import PoolBudgets, PoolRules
from router.core.queue import UNKNOWN, Queue, Waiting
from router.core.request import Request
from router.core.roster import Roster
from router.core.split_eligibility import DecodeEligibility, PrefillEligibility
from router.core.worker import Role, Worker

__all__ = ["Pool", "PoolBudgets", "PoolRules"]


class Pool:
    """One role's workers and the requests that wait for them.

    Mutable state: the queue, `_leases`, and the roster with its mirrors.
    """

    def __init__(
        self,
        rules: PoolRules,
        policy: AnyPolicy,
        budgets: PoolBudgets,
        expect: Callable[[Request], int],
        roster: Roster | None = None,
    ) -> None:
        self.rules = rules
        self.roster = roster if roster is not None else Roster()
        self.binding = Binding(rules.mode)
        self.eligible: Eligibility = Eligibility(self.roster, late_binding=self.binding.late)
        self.partner: Pool | None = None
        """The pool whose workers prefill what is decoded here."""
        self.partners: Partners | None = None
        """What this pool shares with the one at the other end of its hand-overs."""
        self.chooser = Chooser(rules.name, self.roster, policy, rules.policy, rules.prefix_index)
        self.local = LocalQueue(rules.local, policy, rules.prefix_index)
        self.placement = Placement(self.chooser, self.eligible)
        self._budgets = budgets
        self._queue = Queue(rules.max_queued, budgets.queued_bytes)
        self._patience = Patience(rules.stall_min_s, rules.stall_max_s)
        self.ledger = Ledger(rules.role, self.roster, self.chooser, self._patience, expect)

    def use(self, policy: AnyPolicy, name: str, mode: Mode | None = None) -> None:
        """Decides by `policy` from now on. Requests that wait and leases that are held stay as they are; what
        waits should be looked at again.

        Args:
            mode: when workers are chosen from now on; None: as before.

        Raises:
            InternalError: it is none of the three shapes of a policy.
        """
        self.chooser.use(policy, name)
        self.ledger.foresee()
        self.local.follow(policy)
        if mode is not None and mode is not self.binding.mode:
            self.binding = Binding(mode)
            self.eligible.late_binding = self.binding.late

    @property
    def policy(self) -> AnyPolicy:
        return self.chooser.policy

    @property
    def policy_name(self) -> str:
        return self.chooser.name

    @property
    def decides_by_batch(self) -> bool:
        """Whether the policy sees the whole queue; placed as they come, it may be able to choose for each."""
        return self.chooser.by_batch and (self.eligible.late_binding or not self.chooser.one_by_one)

    def join(self, prefill: Pool, partners: Partners) -> None:
        """Makes this pool decode what `prefill` prefills."""
        rules = self.rules
        self.partner, self.partners = prefill, partners
        self.ledger.other, self.ledger.partners = prefill.ledger, partners
        self.eligible = DecodeEligibility(self.roster, partners, max_transfers=rules.max_transfers)
        self.eligible.late_binding = self.binding.late
        prefill.partners = partners
        prefill.eligible = PrefillEligibility(prefill.roster, partners)
        for placement, eligible in ((self.placement, self.eligible), (prefill.placement, prefill.eligible)):
            placement.eligible = eligible
        self.placement.producers, self.placement.partners = prefill.eligible, partners
        self.placement.prefill_chooser = prefill.chooser
        self.chooser.choose_with(prefill.chooser)

    # --- requests ------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return len(self.ledger.leases)

    def waits(self) -> Iterator[tuple[str, float, bool]]:
        """(model, since when, whether it is prefilled already) of every waiting request."""
        return (
            (waiting.request.model, waiting.since, waiting.request.handover is not None)
            for waiting in self._queue
        )

    def submit(self, request: Request, now: float) -> None:
        """Puts a request into the queue; `assign` takes it out.

        Raises:
            NoWorker: nobody can take it, now or soon.
            QueueFull: too many requests or bytes wait already.
            InternalError: one of the same id waits already.
        """
        self._tell_time(now)
        if self._in_vain(request):
            raise NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        lane = request.model if self.roster.serves(request.model) else UNKNOWN
        # One that was prefilled is inside already, and so is bounded by the requests in flight.
        full = self._queue.full(lane) and request.handover is None
        if full and not self._starts_at_once(request):
            raise QueueFull(f"too many requests for `{request.model}` are waiting", retry_after_s=1.0)
        self._queue.put(request, lane, now)

    def _starts_at_once(self, request: Request) -> bool:
        """Whether it only passes through the queue, so that a pool whose queue is 0 long can take it."""
        return self._may_start(request) and not len(self._queue) and bool(self.eligible.open_to(request))

    def withdraw(self, request_id: str) -> bool:
        """The client left while waiting. False when the request does not wait (any more)."""
        return self._queue.take(request_id)

    # --- placement -----------------------------------------------------------------------------------

    def place_now(self, request: Request, now: float) -> Lease | None:
        """Places a request that comes while nobody waits, without a way through the queue.

        None when it has to wait, if it may at all: `submit` decides that. Where a policy sees the whole queue
        at once it decides in rounds, so there every request waits for one.

        Raises like `assign`; nothing stays charged then.
        """
        if self.decides_by_batch or len(self._queue) or not self._may_start(request):
            return None
        self._look(now)
        workers = self.eligible.open_to(request)
        if not workers:
            return None
        self.roster.warm(now)
        choice = self.placement.choose(request, workers, now)
        if choice is None:
            return None
        return self._place(Placed(request, choice, self.placement.offer(request, workers)), now)

    def assign(self, now: float) -> list[Lease]:
        """Places what can be placed of what waits, oldest first.

        A request that is blocked only by its own constraints (its model, its pin, workers to avoid) does not
        hold up the ones behind it.

        Raises whatever a policy raises, and InternalError for a choice that was not offered. What was placed
        before that reaches nobody, so it is given back.
        """
        if not len(self._queue):
            return []
        self._look(now)
        self.roster.warm(now)
        leases: list[Lease] = []
        waiting = [waiting.request for waiting in self._queue]
        choices = self.placement.by_batch if self.decides_by_batch else self.placement.one_by_one
        deciding = ""
        try:
            # Choices come one by one; each is charged before the next is made.
            for placed in choices(waiting, self._may_start, now):
                deciding = placed.request.id
                lease = self._place(placed, now)
                deciding = ""
                if lease is not None:
                    self._queue.take(lease.request.id)
                    leases.append(lease)
        except BaseException:
            self._queue.take(deciding)  # the policy failed on this one; it must not fail on it again
            with ExitStack() as undo:
                for lease in leases:
                    undo.callback(self.release, lease, Outcome.CANCELLED, now)
            raise
        return leases

    def _may_start(self, request: Request) -> bool:
        """Whether the bound on requests in flight lets it in; one that was prefilled is inside already."""
        in_flight = self._budgets.in_flight
        return _is_inside(request) or in_flight.used < in_flight.limit

    def _tell_time(self, now: float) -> None:
        """Back-offs of pairs and budgets of producers are judged by the time it is."""
        if self.partners is not None:
            self.partners.now = now

    def _look(self, now: float) -> None:
        """Before anybody is offered: what time it is, and whether what waits asks for another binding."""
        self._tell_time(now)
        if self.binding.adaptive:
            ready = [w for w in self.roster if w.state is State.READY]
            free = [w.free_slots for w in ready]
            known = None if None in free else sum(slots for slots in free if slots is not None)
            self.eligible.late_binding = self.binding.update(len(self._queue), known, len(ready), now)

    def _place(self, placed: Placed, now: float) -> Lease | None:
        """Charges a choice, all of it or nothing: a policy that fails when it is told leaves no lease. None
        when two legs run at the same time and the prefill side leaves it queued."""
        request, choice = placed.request, placed.choice
        handover = request.handover
        beside = self.placement.beside(placed, self.roster.workers[choice.worker], now)
        if beside is None and handover is None and request.split and self.rules.role is Role.DECODE:
            return None
        considered = self.chooser.consider(placed, now)
        inside = _is_inside(request)
        if not inside and not self._budgets.in_flight.take():
            raise InternalError("a request was placed beyond the limit of requests in flight")
        try:
            transferring = handover is not None or beside is not None
            lease = self.ledger.charge(request, choice, choice.worker, now, transferring=transferring)
        except BaseException:
            if not inside:
                self._budgets.in_flight.give()
            raise
        lease.counted = True
        try:
            if handover is not None:
                # From here on this lease stands for the request among those in flight.
                handover.prefill.counted = False
                lease.prefill = handover.prefill
            elif beside is not None:
                self._charge_beside(lease, beside, now)
            self.chooser.placed(lease, placed, considered, now)
        except BaseException:
            self.release(lease, Outcome.CANCELLED, now)
            raise
        return lease

    def _charge_beside(self, lease: Lease, beside: Placed, now: float) -> None:
        """The other leg, which the pool of the prefill workers keeps the account of."""
        request, choice = beside.request, beside.choice
        partner = self.partner
        if partner is None:
            return
        name = choice.prefill_worker
        considered = None if name is not None else partner.chooser.consider(beside, now)
        lease.prefill = partner.ledger.charge(request, choice, name or choice.worker, now)
        if name is not None:
            lease.prefill.policy = lease.policy
        partner.chooser.placed_beside(lease.prefill, beside, considered, now)

    # --- the end of a lease ------------------------------------------------------------------------------

    def progress(
        self,
        lease: Lease,
        now: float,
        *,
        generated_tokens: int | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """An event of the lease was seen; see `Ledger.progress`."""
        self.ledger.progress(
            lease,
            now,
            generated_tokens=generated_tokens,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )

    def release(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Settles a lease once; a second call changes nothing. The first outcome stands."""
        if lease.outcome is not None:
            return
        if lease.counted:
            lease.counted = False
            self._budgets.in_flight.give()
        try:
            self.ledger.settle(lease, outcome, now, reason)
        finally:
            if lease.prefill is not None and self.partner is not None:
                # What became of the decode leg says nothing about who prefilled for it, but that it is done;
                # KV that did not come over does not even say that.
                done = outcome is Outcome.OK or lease.prefill.prefilled
                good = done and outcome is not Outcome.HANDOVER
                self.partner.ledger.settle(lease.prefill, Outcome.OK if good else Outcome.CANCELLED, now)

    def hand_back(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Settles the lease of a decode worker to which nothing was sent, and leaves the hand-over as it was:
        another one may have it."""
        prefill = lease.prefill
        if lease.request.handover is not None and prefill is not None and lease.outcome is None:
            lease.prefill = None
            if prefill.outcome is None:
                prefill.counted, lease.counted = lease.counted, False
        self.release(lease, outcome, now, reason)

    def observe(self, name: str, stats: EngineStats, now: float) -> Verdict:
        """Takes in what an engine said of itself, and compares it with the account."""
        verdict = self.roster.observe(name, stats, now)
        worker = self.roster.workers.get(name)
        if worker is not None and worker.stats is stats:
            partners, mirror = self.partners, worker.mirror
            stranded = 0
            if partners is not None:
                stranded = partners.budget.stranded_tokens(name, worker.incarnation, now)
            sent = mirror.kv_tokens - self.local.tokens(name)
            balance = Balance(sent, stranded, mirror.sequences, worker.kv_capacity_tokens)
            worker.drift.observe(stats, balance)
            self.ledger.observed(worker, stats)
            self.chooser.joined(worker)
        return verdict

    # --- time ----------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[tuple[str, RouterError]]:
        """Takes out of the queue what has waited too long or in vain, and looks for stalled workers.

        Returns the request ids with the error each waiter should get.
        """
        self._look(now)
        self.chooser.sweep(now)
        self.local.sweep(self.roster.workers, now)
        if self.partners is not None:
            self.partners.budget.sweep(now)
            self.ledger.presume(now)
        failed: list[tuple[str, RouterError]] = []
        for waiting in list(self._queue):
            error = self._overdue(waiting, now)
            if error is not None:
                self.withdraw(waiting.request.id)
                failed.append((waiting.request.id, error))
        for worker in self.roster:
            worker.drift.lapse(now)
            if worker.state is State.READY and self._patience.exhausted(worker, now):
                silent_s = now - worker.last_sign
                self.roster.sign(worker.name, Sign.STALLED, now, f"no progress for {silent_s:.0f} s")
        return failed

    def _overdue(self, waiting: Waiting, now: float) -> RouterError | None:
        request = waiting.request
        if self._in_vain(request):
            return NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        return waiting.overdue(self.rules.max_wait_s, now)

    def candidates(self, request: Request) -> Sequence[Worker]:
        """Workers that the request itself allows, whether they have room or not."""
        return self.eligible.candidates(request)

    def _in_vain(self, request: Request) -> bool:
        """Whether waiting cannot help; legs that run at the same time need somebody on both sides."""
        if self.eligible.in_vain(request):
            return True
        both = request.split and request.handover is None
        return both and self.partner is not None and self.partner.eligible.in_vain(request)

    def __repr__(self) -> str:
        states = [w.state for w in self.roster]
        out = ", ".join(
            f"{states.count(state)} {state.value}"
            for state in State
            if state is not State.READY and states.count(state)
        )
        return (
            f"<Pool {self.rules.name} [{self.queued} queued | {self.in_flight} in flight | "
            f"{len(states)} workers{', ' + out if out else ''}]>"
        )


def _is_inside(request: Request) -> bool:
    """Whether its prefill lease stands for it among the requests in flight."""
    return request.handover is not None and request.handover.prefill.counted
