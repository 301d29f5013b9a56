"""Queue, placement and accounts of the workers of one role.

The Pool is the only place where a request is charged to a worker, and the only writer of mirrors and leases.
It is synchronous and idempotent at its edges: releasing twice, withdrawing what is gone or reporting progress
of a settled lease changes nothing. After every lease has ended it shows zero everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from router.core.eligibility import Eligibility
from router.core.errors import InternalError, NoWorker, QueueFull, RouterError
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.patience import Patience
from router.core.policy import AnyPolicy, BatchPolicy, Choice, Commits, PairPolicy, Policy, Settles
from router.core.pool_rules import PoolBudgets, PoolRules
from router.core.queue import UNKNOWN, Queue, Waiting
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker

__all__ = ["Pool", "PoolBudgets", "PoolRules"]

_GOOD = frozenset({Outcome.OK, Outcome.CLIENT_ERROR})
_BAD = frozenset({Outcome.FAILED, Outcome.TIMEOUT})


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
        self.eligible = Eligibility(self.roster, late_binding=rules.late_binding)
        self.partner: Pool | None = None
        """The prefill pool that a PairPolicy picks from."""
        self.use(policy, rules.policy)
        self._budgets = budgets
        self._expect = expect
        self._queue = Queue(rules.max_queued, budgets.queued_bytes)
        self._patience = Patience(rules.stall_min_s, rules.stall_max_s)
        self._leases: set[Lease] = set()

    def use(self, policy: AnyPolicy, name: str) -> None:
        """Decides by `policy` from now on. Requests that wait and leases that are held stay as they are.

        Raises InternalError for an object that is none of the three shapes of a policy.
        """
        if not isinstance(policy, BatchPolicy | PairPolicy | Policy):
            raise InternalError(f"{policy!r} has none of the methods of a policy")
        self.policy = policy
        self.policy_name = name
        # Which shape it has is asked once: protocol checks are too slow for every request.
        self._batch = policy if isinstance(policy, BatchPolicy) else None
        self._pair = policy if isinstance(policy, PairPolicy) else None
        self._single = policy if isinstance(policy, Policy) else None
        self._commits = policy if isinstance(policy, Commits) else None
        self._settles = policy if isinstance(policy, Settles) else None

    @property
    def decides_by_batch(self) -> bool:
        """Whether the policy wants to see the whole queue at once."""
        return self._batch is not None

    # --- requests ------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def waits(self) -> Iterator[tuple[str, float]]:
        """(model, since when) of every waiting request."""
        return ((waiting.request.model, waiting.since) for waiting in self._queue)

    def submit(self, request: Request, now: float) -> None:
        """Puts a request into the queue; `assign` takes it out.

        Raises:
            NoWorker: nobody can take it, now or soon.
            QueueFull: too many requests or bytes wait already.
            InternalError: one of the same id waits already.
        """
        if self._in_vain(request):
            raise NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        lane = request.model if self.roster.serves(request.model) else UNKNOWN
        if self._queue.full(lane) and not self._starts_at_once(request):
            raise QueueFull(f"too many requests for `{request.model}` are waiting", retry_after_s=1.0)
        self._queue.put(request, lane, now)

    def _starts_at_once(self, request: Request) -> bool:
        """Whether it only passes through the queue, so that a pool whose queue is 0 long can take it."""
        in_flight = self._budgets.in_flight
        return (
            in_flight.used < in_flight.limit and not len(self._queue) and bool(self.eligible.open_to(request))
        )

    def withdraw(self, request_id: str) -> bool:
        """The client left while waiting. False when the request does not wait (any more)."""
        return self._queue.take(request_id)

    # --- placement -----------------------------------------------------------------------------------

    def place_now(self, request: Request, now: float) -> Lease | None:
        """Places a request that comes while nobody waits, without a way through the queue.

        None when it has to wait, if it may at all: `submit` decides that. A policy that sees the whole queue
        at once decides in rounds, so there every request waits for one.

        Raises like `assign`; nothing stays charged then.
        """
        in_flight = self._budgets.in_flight
        if self._batch is not None or len(self._queue) or in_flight.used >= in_flight.limit:
            return None
        workers = self.eligible.open_to(request)
        if not workers:
            return None
        self.roster.warm(now)
        choice = self._choose(request, workers, now)
        return None if choice is None else self._place(request, choice, now)

    def assign(self, now: float) -> list[Lease]:
        """Places what can be placed of what waits, oldest first.

        A request that is blocked only by its own constraints (its model, its pin, workers to avoid) does not
        hold up the ones behind it.

        Raises whatever a policy raises, and InternalError for a choice that was not offered. What was placed
        before that reaches nobody, so it is given back.
        """
        in_flight = self._budgets.in_flight
        if not len(self._queue) or in_flight.used >= in_flight.limit:
            return []
        self.roster.warm(now)
        leases: list[Lease] = []
        try:
            for request, choice in self._decisions(now):
                self._queue.take(request.id)
                leases.append(self._place(request, choice, now))
                if in_flight.used >= in_flight.limit:
                    break
        except BaseException:
            with ExitStack() as undo:
                for lease in leases:
                    undo.callback(self.release, lease, Outcome.CANCELLED, now)
            raise
        return leases

    def _decisions(self, now: float) -> Iterator[tuple[Request, Choice]]:
        """Choices one by one; each is charged before the next is made."""
        return self._one_by_one(now) if self._batch is None else self._by_batch(self._batch, now)

    def _one_by_one(self, now: float) -> Iterator[tuple[Request, Choice]]:
        full: set[str] = set()
        for waiting in list(self._queue):
            request = waiting.request
            if request.model in full and request.pinned is None:
                continue
            workers = self.eligible.open_to(request)
            if workers:
                choice = self._choose(request, workers, now)
                if choice is not None:
                    yield request, choice
            elif self.eligible.full(request.model):
                full.add(request.model)  # a long queue is not held against every worker, one by one

    def _choose(self, request: Request, workers: Sequence[Worker], now: float) -> Choice | None:
        if self._single is not None:
            choice = self._single.pick(request, workers, now)
        elif self._pair is None or self.partner is None:
            raise InternalError(f"pool {self.rules.name} decides by pairs and has no prefill pool")
        else:
            prefills = self.partner.eligible.open_to(request)
            choice = self._pair.pick_pair(request, prefills, workers, now) if prefills else None
            if choice is not None:
                self._check_offered(choice.prefill_worker, prefills, self.partner.roster)
        if choice is not None:
            if choice.request_id != request.id:
                raise self._bug(f"placed request {choice.request_id}, which was not offered")
            self._check_offered(choice.worker, workers, self.roster)
        return choice

    def _by_batch(self, policy: BatchPolicy, now: float) -> Iterator[tuple[Request, Choice]]:
        """Lets the policy see all that may go to the same workers at once, and the rest one by one: what a
        request may not have (a worker to avoid, one that is too small) is not offered with it."""
        groups: dict[tuple[Worker, ...], list[Request]] = {}
        for waiting in self._queue:
            groups.setdefault(tuple(self.eligible.suited_to(waiting.request)), []).append(waiting.request)
        for suited, requests in groups.items():
            workers = self.eligible.with_room(suited)
            if not workers:
                continue
            wanted = {request.id: request for request in requests}
            for choice in policy.admit(requests, workers, now):
                request = wanted.pop(choice.request_id, None)
                if request is None:
                    raise self._bug(f"placed request {choice.request_id} twice, or it was not offered")
                self._check_offered(choice.worker, workers, self.roster)
                # The first of a batch may have filled the worker that a later one was meant for.
                if self.eligible.with_room((self.roster.workers[choice.worker],), request.sequences):
                    yield request, choice

    def _check_offered(self, name: str | None, offered: Sequence[Worker], roster: Roster) -> None:
        worker = roster.workers.get(name) if name is not None else None
        if worker is None or worker not in offered:
            raise self._bug(f"chose {name!r}, which was not offered")

    def _bug(self, what: str) -> InternalError:
        return InternalError(f"policy {self.policy_name} of pool {self.rules.name} {what}")

    def _place(self, request: Request, choice: Choice, now: float) -> Lease:
        """Charges a choice, all of it or nothing: a policy that fails when it is told leaves no lease."""
        if not self._budgets.in_flight.take():
            raise InternalError("a request was placed beyond the limit of requests in flight")
        lease = self.charge(request, choice, choice.worker, now)
        try:
            if choice.prefill_worker is not None and self.partner is not None:
                lease.prefill = self.partner.charge(request, choice, choice.prefill_worker, now)
            if self._commits is not None:
                self._commits.committed(request, choice, now, retry=request.attempt > 0)
        except BaseException:
            self.release(lease, Outcome.CANCELLED, now)
            raise
        return lease

    def charge(self, request: Request, choice: Choice, name: str, now: float) -> Lease:
        """Charges one leg to a worker. Outside this class only the partner pool of a pair calls it."""
        worker = self.roster.workers[name]
        if worker.mirror.idle:
            worker.last_sign = now
        lease = Lease(
            request=request,
            worker=name,
            incarnation=worker.incarnation,
            granted=now,
            prompt_tokens=request.prompt_tokens,
            expected_tokens=max(self._expect(request), 1),
            cost=choice.cost,
            reason=choice.reason,
            last_event=now,
        )
        worker.mirror.charge(lease)
        self._leases.add(lease)
        return lease

    def progress(
        self,
        lease: Lease,
        now: float,
        *,
        generated_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """An event of the lease was seen. Counts are absolute, so a repeated report does no harm.

        Args:
            generated_tokens: output tokens so far over all sequences; None when the event carried none.
            prompt_tokens: the true prompt length, when the engine has said it.
        """
        if lease.outcome is not None:
            return
        lease.last_event = now
        worker = self._holder(lease)
        if worker is None:
            return
        if prompt_tokens is not None and prompt_tokens != lease.prompt_tokens:
            worker.mirror.correct_prompt(lease, prompt_tokens)
        if not lease.prefilled:
            worker.mirror.prefilled(lease)
        if generated_tokens is not None:
            worker.mirror.generated(lease, generated_tokens)
        worker.last_sign = now
        if worker.health.state is State.SUSPECT:
            self.roster.show_progress(worker, now)

    def release(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Settles a lease once; a second call changes nothing. The first outcome stands."""
        if lease.outcome is not None:
            return
        self._budgets.in_flight.give()
        try:
            self.settle(lease, outcome, now, reason)
        finally:
            if lease.prefill is not None and self.partner is not None:
                self.partner.settle(lease.prefill, outcome, now, reason)

    def settle(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Gives one leg back. Outside this class only the partner pool of a pair calls it."""
        lease.outcome = outcome
        self._leases.discard(lease)
        worker = self._holder(lease)
        if worker is not None:
            patience_s = self._patience.of(worker) if outcome is Outcome.TIMEOUT else 0.0
            worker.mirror.settle(lease)
            silent_s = now - max(lease.granted, worker.last_sign)
            # Clients choose how long they wait, so a deadline alone is no verdict on the worker: it must
            # have been silent for as long as a healthy one may be.
            if outcome is not Outcome.TIMEOUT or silent_s > patience_s:
                self._judge(worker, outcome, now, reason)
        if self._settles is not None:
            self._settles.settled(lease, outcome, now)

    def _judge(self, worker: Worker, outcome: Outcome, now: float, reason: str) -> None:
        if outcome in _GOOD:
            worker.health.request_succeeded()
            self.roster.show_progress(worker, now)
        elif outcome in _BAD and worker.health.request_failed(now):
            self.roster.sign(worker.name, Sign.BAD, now, reason or f"requests in a row: {outcome.value}")
        elif outcome is Outcome.UNREACHABLE and worker.state is not State.GONE:
            self.roster.sign(worker.name, Sign.REFUSED, now, reason or "refused a connection")

    def _holder(self, lease: Lease) -> Worker | None:
        """The worker that was charged; None when it is gone or has been born anew since."""
        worker = self.roster.workers.get(lease.worker)
        return worker if worker is not None and worker.incarnation == lease.incarnation else None

    # --- time ----------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[tuple[str, RouterError]]:
        """Takes out of the queue what has waited too long or in vain, and looks for stalled workers.

        Returns the request ids with the error each waiter should get.
        """
        failed: list[tuple[str, RouterError]] = []
        for waiting in list(self._queue):
            error = self._overdue(waiting, now)
            if error is not None:
                self.withdraw(waiting.request.id)
                failed.append((waiting.request.id, error))
        for worker in self.roster:
            if worker.state is State.READY and self._patience.exhausted(worker, now):
                silent_s = now - worker.last_sign
                self.roster.sign(worker.name, Sign.STALLED, now, f"no progress for {silent_s:.0f} s")
        return failed

    def _overdue(self, waiting: Waiting, now: float) -> RouterError | None:
        request = waiting.request
        if self._in_vain(request):
            return NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        limit = waiting.since + self.rules.max_wait_s
        if request.deadline is not None:
            limit = min(limit, request.deadline)
        if now < limit:
            return None
        return QueueFull(
            f"waited {now - waiting.since:.0f} s for a worker for `{request.model}`", retry_after_s=5.0
        )

    def candidates(self, request: Request) -> Sequence[Worker]:
        """Workers that the request itself allows, whether they have room or not."""
        return self.eligible.candidates(request)

    def _in_vain(self, request: Request) -> bool:
        """Whether waiting cannot help; a pair needs somebody on both sides."""
        if self.eligible.in_vain(request):
            return True
        return self._pair is not None and self.partner is not None and self.partner.eligible.in_vain(request)

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
