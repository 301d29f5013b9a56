"""Queue, placement and accounts of the workers of one role.

The Pool is the only place where a request is charged to a worker, and the only writer of mirrors and leases.
It is synchronous and idempotent at its edges: releasing twice, withdrawing what is gone or reporting progress
of a settled lease changes nothing. After every lease has ended it shows zero everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from router.core.budget import Budget
from router.core.errors import InternalError, NoWorker, QueueFull, RouterError
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.policy import AnyPolicy, BatchPolicy, Choice, Commits, PairPolicy, Policy, Settles
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Role, Worker

_GOOD = frozenset({Outcome.OK, Outcome.CLIENT_ERROR})
_BAD = frozenset({Outcome.FAILED, Outcome.TIMEOUT})
# Until a worker is calibrated, a prefill is assumed to take at most this long per token (slow end of the
# GPUs in the specs table); it only widens the patience with a silent worker.
_PREFILL_PRIOR_S = 0.3e-3


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How one pool binds and waits.

    Attributes:
        policy: name of the policy it starts with, for logs and metrics.
        late_binding: requests wait here until a worker has a free slot, instead of in the engines.
        max_queued: waiting requests per model; max_wait_s: how long one may wait.
        stall_min_s, stall_max_s: bounds of the patience with a worker that shows no progress.
    """

    name: str
    policy: str = ""
    role: Role = Role.BOTH
    late_binding: bool = False
    max_queued: int = 256
    max_wait_s: float = 30.0
    stall_min_s: float = 10.0
    stall_max_s: float = 120.0


@dataclass(frozen=True, slots=True)
class PoolBudgets:
    """Accounts that all pools of a process share."""

    in_flight: Budget
    queued_bytes: Budget


@dataclass(slots=True)
class _Waiting:
    request: Request
    since: float


class Pool:
    """One role's workers and the requests that wait for them.

    Mutable state: `_waiting` (oldest first), `_queued_by_model`, `_leases`, and the roster with its mirrors.
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
        self.partner: Pool | None = None
        """The prefill pool that a PairPolicy picks from."""
        self.use(policy, rules.policy)
        self._budgets = budgets
        self._expect = expect
        self._waiting: dict[str, _Waiting] = {}
        self._queued_by_model: dict[str, int] = {}
        self._leases: set[Lease] = set()

    def use(self, policy: AnyPolicy, name: str) -> None:
        """Decides by `policy` from now on. Requests that wait and leases that are held stay as they are."""
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
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def waits(self) -> Iterator[tuple[str, float]]:
        """(model, since when) of every waiting request."""
        return ((waiting.request.model, waiting.since) for waiting in self._waiting.values())

    def submit(self, request: Request, now: float) -> None:
        """Puts a request into the queue; `assign` takes it out.

        Raises:
            NoWorker: nobody can take it, now or soon.
            QueueFull: too many requests or bytes wait already.
        """
        if not self.candidates(request) and not self._hope(request):
            raise NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        queued = self._queued_by_model.get(request.model, 0)
        full = queued >= self.rules.max_queued and not self._starts_at_once(request)
        if full or not self._budgets.queued_bytes.take(request.body_bytes):
            raise QueueFull(f"too many requests for `{request.model}` are waiting", retry_after_s=1.0)
        self._queued_by_model[request.model] = queued + 1
        self._waiting[request.id] = _Waiting(request, now)

    def _starts_at_once(self, request: Request) -> bool:
        """Whether it only passes through the queue, so that a pool whose queue is 0 long can take it."""
        in_flight = self._budgets.in_flight
        has_room = in_flight.used < in_flight.limit and bool(self._open(self.candidates(request), request))
        return has_room and not self._waiting

    def withdraw(self, request_id: str) -> bool:
        """The client left while waiting. False when the request does not wait (any more)."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return False
        model = waiting.request.model
        self._budgets.queued_bytes.give(waiting.request.body_bytes)
        self._queued_by_model[model] -= 1
        if not self._queued_by_model[model]:
            del self._queued_by_model[model]
        return True

    def assign(self, now: float) -> list[Lease]:
        """The one decision point: places what can be placed, oldest first.

        A request that is blocked only by its own constraints (its model, its pin, workers to avoid) does not
        hold up the ones behind it.
        """
        if not self._waiting:
            return []
        self.roster.warm(now)
        if self._batch is not None:
            return self._assign_batch(self._batch, now)
        leases = []
        for waiting in list(self._waiting.values()):
            if self._budgets.in_flight.used >= self._budgets.in_flight.limit:
                break
            choice = self._choose(waiting.request, now)
            if choice is not None:
                leases.append(self._place(waiting.request, choice, now))
        return leases

    def _choose(self, request: Request, now: float) -> Choice | None:
        workers = self._open(self.candidates(request), request)
        if not workers:
            return None
        if self._single is not None:
            return self._single.pick(request, workers, now)
        if self._pair is None or self.partner is None:
            raise InternalError(f"pool {self.rules.name} has no policy that fits its shape")
        prefills = self.partner.candidates(request)
        return self._pair.pick_pair(request, prefills, workers, now) if prefills else None

    def _assign_batch(self, policy: BatchPolicy, now: float) -> list[Lease]:
        leases: list[Lease] = []
        for model in list(self._queued_by_model):
            workers = self._room(self.roster.ready(model))
            waiting = [w.request for w in self._waiting.values() if w.request.model == model]
            if not workers or not waiting:
                continue
            for choice in policy.admit(waiting, workers, now):
                entry = self._waiting.get(choice.request_id)
                if entry is None or self._budgets.in_flight.used >= self._budgets.in_flight.limit:
                    continue
                # The batch saw the common candidates; a pin or a worker to avoid is the request's own.
                if any(
                    w.name == choice.worker for w in self._open(self.candidates(entry.request), entry.request)
                ):
                    leases.append(self._place(entry.request, choice, now))
        return leases

    def _place(self, request: Request, choice: Choice, now: float) -> Lease:
        if not self.withdraw(request.id):
            raise InternalError(f"request {request.id} was placed twice")
        if not self._budgets.in_flight.take():
            raise InternalError("a request was placed beyond the limit of requests in flight")
        lease = self.charge(request, choice, choice.worker, now)
        if choice.prefill_worker is not None and self.partner is not None:
            lease.prefill = self.partner.charge(request, choice, choice.prefill_worker, now)
        if self._commits is not None:
            self._commits.committed(request, choice, now, retry=request.attempt > 0)
        return lease

    def charge(self, request: Request, choice: Choice, name: str, now: float) -> Lease:
        """Charges one leg to a worker. Outside this class only the partner pool of a pair calls it."""
        worker = self.roster.workers.get(name)
        if worker is None:
            raise InternalError(f"the policy of pool {self.rules.name} chose {name!r}, which was not offered")
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
        self.settle(lease, outcome, now, reason)
        if lease.prefill is not None and self.partner is not None:
            self.partner.settle(lease.prefill, outcome, now, reason)

    def settle(self, lease: Lease, outcome: Outcome, now: float, reason: str = "") -> None:
        """Gives one leg back. Outside this class only the partner pool of a pair calls it."""
        lease.outcome = outcome
        self._leases.discard(lease)
        worker = self._holder(lease)
        if worker is not None:
            worker.mirror.settle(lease)
            self._judge(worker, outcome, now, reason)
        if self._settles is not None:
            self._settles.settled(lease, outcome, now)

    def _judge(self, worker: Worker, outcome: Outcome, now: float, reason: str) -> None:
        if outcome in _GOOD:
            worker.health.request_succeeded()
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
        for waiting in list(self._waiting.values()):
            error = self._overdue(waiting, now)
            if error is not None:
                self.withdraw(waiting.request.id)
                failed.append((waiting.request.id, error))
        for worker in self.roster:
            if worker.state is State.READY and self._stalled(worker, now):
                silent_s = now - worker.last_sign
                self.roster.sign(worker.name, Sign.STALLED, now, f"no progress for {silent_s:.0f} s")
        return failed

    def _overdue(self, waiting: _Waiting, now: float) -> RouterError | None:
        request = waiting.request
        if not self.candidates(request) and not self._hope(request):
            return NoWorker(f"no worker can take a request for `{request.model}` now", retry_after_s=5.0)
        limit = waiting.since + self.rules.max_wait_s
        if request.deadline is not None:
            limit = min(limit, request.deadline)
        if now < limit:
            return None
        return QueueFull(
            f"waited {now - waiting.since:.0f} s for a worker for `{request.model}`", retry_after_s=5.0
        )

    def _stalled(self, worker: Worker, now: float) -> bool:
        # Without streams and without a progress counter, silence says nothing.
        counted = worker.stats is not None and worker.stats.generation_tokens is not None
        if worker.mirror.idle or not (worker.mirror.streams or counted):
            return False
        queued = worker.mirror.queued_tokens
        prefill_s = worker.step.prefill_s(queued) if worker.step else queued * _PREFILL_PRIOR_S
        patience_s = min(max(self.rules.stall_min_s, 3 * prefill_s), self.rules.stall_max_s)
        return now - worker.last_sign > patience_s

    # --- eligibility ---------------------------------------------------------------------------------

    def candidates(self, request: Request) -> Sequence[Worker]:
        """Ready workers that the request itself allows."""
        workers: Sequence[Worker] = self.roster.ready(request.model)
        if request.pinned is not None:
            workers = [w for w in workers if w.name == request.pinned]
        if request.avoid:
            workers = [w for w in workers if w.name not in request.avoid]
        return workers

    def _hope(self, request: Request) -> bool:
        """Whether waiting may help. A retry does not wait for a worker that is not there yet."""
        return request.attempt == 0 and request.pinned is None and self.roster.hopeful(request.model)

    def _open(self, workers: Sequence[Worker], request: Request) -> Sequence[Worker]:
        """Those of `workers` that have room for it and take its length."""
        fitting = [w for w in workers if w.fits(request.model, request.prompt_tokens)] or workers
        return self._room(fitting, request.sequences)

    def _room(self, workers: Sequence[Worker], sequences: int = 1) -> Sequence[Worker]:
        if not self.rules.late_binding:
            return workers
        return [w for w in workers if w.slots is None or w.slots - w.sequences >= min(sequences, w.slots)]

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
