"""Asking a policy where requests should go, and holding it to what it was offered.

Separate from the Pool, which charges: what a policy may be, and what it may answer, is checked in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.core.answer import Usage
from router.core.errors import InternalError
from router.core.lease import Lease, Outcome
from router.core.policy import (
    AnyPolicy,
    BatchPolicy,
    Choice,
    Commits,
    PairPolicy,
    Policy,
    Settles,
    Starts,
    tie_break,
)
from router.core.prefixes import Binds, PoolPrefixes
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker


class Chooser:
    """One pool's policy. Which shape it has is asked once: protocol checks are too slow for every request.

    `prefixes`: what the pool's workers hold, kept while the policy asks for it, and None otherwise.
    """

    __slots__ = (
        "_batch", "_commits", "_pair", "_pool", "_roster", "_settles", "_single", "_starts", "name", "policy",
        "prefixes",
    )  # fmt: skip

    def __init__(self, pool: str, roster: Roster, policy: AnyPolicy, name: str) -> None:
        self._pool = pool
        self._roster = roster
        self.prefixes: PoolPrefixes | None = None
        self.use(policy, name)

    def use(self, policy: AnyPolicy, name: str) -> None:
        """Asks `policy` from now on. Raises InternalError for an object that is none of the three shapes."""
        if not isinstance(policy, BatchPolicy | PairPolicy | Policy):
            raise InternalError(f"{policy!r} has none of the methods of a policy")
        self.policy = policy
        self.name = name
        self._batch = policy if isinstance(policy, BatchPolicy) else None
        self._pair = policy if isinstance(policy, PairPolicy) else None
        self._single = policy if isinstance(policy, Policy) else None
        self._commits = policy if isinstance(policy, Commits) else None
        self._settles = policy if isinstance(policy, Settles) else None
        self._starts = policy if isinstance(policy, Starts) else None
        self._bind(policy)

    def _bind(self, policy: AnyPolicy) -> None:
        """What workers hold outlives a change between two policies that both ask for it."""
        if isinstance(policy, Binds):
            if self.prefixes is None:
                self.prefixes = PoolPrefixes()
            policy.bind(self.prefixes)
        elif self.prefixes is not None:
            self.prefixes.close()
            self.prefixes = None

    @property
    def by_batch(self) -> bool:
        """Whether it wants to see all that wait at once."""
        return self._batch is not None

    @property
    def one_by_one(self) -> bool:
        """Whether it can choose for one request without a look at the others that wait."""
        return self._single is not None

    @property
    def by_pairs(self) -> bool:
        """Whether it can only choose two workers together."""
        return self._pair is not None and self._single is None

    def one(self, request: Request, workers: Sequence[Worker], now: float) -> Choice | None:
        """One worker for one request; None leaves it queued."""
        if self._single is None:
            raise InternalError(f"pool {self._pool} decides by pairs and has no prefill pool")
        choice = self._single.pick(request, workers, now)
        if choice is not None:
            self._check_own(choice, request)
            self._check_offered(choice.worker, workers)
        return choice

    def pair(
        self, request: Request, prefills: Sequence[Worker], decodes: Sequence[Worker], now: float
    ) -> Choice | None:
        """Two workers for one request; None leaves it queued."""
        if self._pair is None:
            raise InternalError(f"policy {self.name} of pool {self._pool} does not choose pairs")
        choice = self._pair.pick_pair(request, prefills, decodes, now)
        if choice is not None:
            self._check_own(choice, request)
            if choice.prefill_worker not in [worker.name for worker in prefills]:
                raise self._not_offered(choice.prefill_worker)
            self._check_offered(choice.worker, decodes)
        return choice

    def batch(
        self, requests: Sequence[Request], workers: Sequence[Worker], now: float
    ) -> Iterator[tuple[Request, Choice]]:
        """Workers for some of many requests; the rest stays queued."""
        if self._batch is None:
            raise InternalError(f"policy {self.name} of pool {self._pool} does not choose for many at once")
        wanted = {request.id: request for request in requests}
        for choice in self._batch.admit(requests, workers, now):
            request = wanted.pop(choice.request_id, None)
            if request is None:
                raise self._bug(f"placed request {choice.request_id} twice, or it was not offered")
            self._check_offered(choice.worker, workers)
            yield request, choice

    def bypass(self, request: Request, workers: Sequence[Worker], now: float) -> Choice:
        """A worker for what must go now. A policy of batches that can also choose for one request does; where
        it finds no room, and for any other, it is the worker with the least to do: requests that run there or
        are on their way, over its speed."""
        choice = self.one(request, workers, now) if self.by_batch and self.one_by_one else None
        return choice if choice is not None else self._least_running(request, workers)

    @staticmethod
    def _least_running(request: Request, workers: Sequence[Worker]) -> Choice:
        cost, _, name = min(
            ((w.in_flight + 1) * w.warmup / w.capacity, tie_break(0, request.sequence, w.name), w.name)
            for w in workers
        )
        return Choice(request.id, name, cost=cost, reason="bypass")

    # --- what the policy is told, and the prefixes it asks for ---------------------------------------

    def joined(self, worker: Worker) -> None:
        """A worker was seen: it may be new, another incarnation, or of another KV capacity."""
        if self.prefixes is not None:
            self.prefixes.joined(worker)

    def sweep(self, now: float) -> None:
        """Upkeep, to be called again and again."""
        if self.prefixes is not None:
            self.prefixes.sweep(self._roster, now)

    def placed(self, lease: Lease, choice: Choice, now: float) -> None:
        """A choice of the policy was charged."""
        self.charged(lease, now)
        self.committed(lease.request, choice, now)

    def charged(self, lease: Lease, now: float) -> None:
        """A lease was granted, whoever chose its worker."""
        if self.prefixes is not None:
            self.prefixes.charged(lease, self._roster.workers[lease.worker], now)

    def started(self, lease: Lease, now: float) -> None:
        """The first output of a lease was seen."""
        if self.prefixes is not None:
            self.prefixes.started(lease, now)
        if self._starts is not None:
            self._starts.started(lease, now)

    def committed(self, request: Request, choice: Choice, now: float) -> None:
        if self._commits is not None:
            self._commits.committed(request, choice, now, retry=request.attempt > 0)

    def reported(self, lease: Lease, usage: Usage) -> None:
        """An engine told the usage of a lease, settled or not."""
        if self.prefixes is not None:
            self.prefixes.reported(lease, usage)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if self.prefixes is not None:
            self.prefixes.settled(lease, now)
        if self._settles is not None:
            self._settles.settled(lease, outcome, now)

    def _check_own(self, choice: Choice, request: Request) -> None:
        if choice.request_id != request.id:
            raise self._bug(f"placed request {choice.request_id}, which was not offered")

    def _check_offered(self, name: str, offered: Sequence[Worker]) -> None:
        worker = self._roster.workers.get(name)
        if worker is None or worker not in offered:
            raise self._not_offered(name)

    def _not_offered(self, name: str | None) -> InternalError:
        return self._bug(f"chose {name!r}, which was not offered")

    def _bug(self, what: str) -> InternalError:
        return InternalError(f"policy {self.name} of pool {self._pool} {what}")

    def __repr__(self) -> str:
        return f"<Chooser {self.name} of pool {self._pool}>"
