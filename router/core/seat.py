"""One policy with what a pool must know of it: its name, its shape, and what it wants to be told.

Separate from the chooser because a pool may hold several: its own, those that single requests ask for, and
those that decide in its shadow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from router.core.errors import InternalError
from router.core.explain import Explains, ExplainsPairs, Table, joined, without
from router.core.lease import Lease, Outcome
from router.core.offer import Offer
from router.core.policy import AnyPolicy, BatchPolicy, Choice, Commits, PairPolicy, Policy, Settles, Starts
from router.core.prefix_match import Match
from router.core.prefix_portion import Portion
from router.core.prefix_settings import TreeBound
from router.core.prefixes import Binds, Prefixes
from router.core.request import Request
from router.core.worker import WorkerView


class Seat:
    """A policy and its shape. Which one it has is asked once: protocol checks are too slow for every request.

    Attributes:
        single, pair, batch: the policy itself, as far as it has that shape.
        binds: it asks about prefixes.
    """

    __slots__ = (
        "_commits", "_explains", "_explains_pairs", "_settles", "_starts", "batch", "binds",
        "binds_producers", "name", "pair", "policy", "single",
    )  # fmt: skip

    def __init__(self, name: str, policy: AnyPolicy) -> None:
        """Raises InternalError for an object that has none of the three shapes."""
        if not isinstance(policy, BatchPolicy | PairPolicy | Policy):
            raise InternalError(f"{policy!r} has none of the methods of a policy")
        self.name = name
        self.policy = policy
        self.batch = policy if isinstance(policy, BatchPolicy) else None
        self.pair = policy if isinstance(policy, PairPolicy) else None
        self.single = policy if isinstance(policy, Policy) else None
        self.binds = policy if isinstance(policy, Binds) else None
        self._explains = policy if isinstance(policy, Explains) else None
        self._explains_pairs = policy if isinstance(policy, ExplainsPairs) else None
        self.binds_producers = policy if isinstance(policy, BindsProducers) else None
        self._commits = policy if isinstance(policy, Commits) else None
        self._settles = policy if isinstance(policy, Settles) else None
        self._starts = policy if isinstance(policy, Starts) else None

    def by_pairs(self, request: Request) -> bool:
        """Whether it chooses two workers together: where two are wanted at once, whoever can, and otherwise
        who can do nothing else."""
        if self.pair is None:
            return False
        return self.single is None or (request.split and request.handover is None)

    @property
    def explains(self) -> bool:
        """Whether it can tell what it compares."""
        return self._explains is not None or self._explains_pairs is not None

    def explain(self, request: Request, offer: Offer, now: float) -> Table | None:
        """What it compares for this offer, in the way it would be asked; None when it cannot tell."""
        if offer.prefills is not None and self._explains_pairs is not None:
            return self._explain_pairs(self._explains_pairs, request, offer, now)
        return None if self._explains is None else self._explains.explain(request, offer.workers, now)

    @staticmethod
    def _explain_pairs(policy: ExplainsPairs, request: Request, offer: Offer, now: float) -> Table | None:
        """Pairs inside one revision are compared by the policy; of its tables the one with the cheapest pick
        counts. Pairs that are set aside are never chosen."""
        prefills = offer.prefills or ()
        tables = [
            policy.explain_pair(
                request,
                [w for w in prefills if w.revision == revision],
                [w for w in offer.workers if w.revision == revision],
                now,
            )
            for revision in sorted({w.revision for w in prefills} & {w.revision for w in offer.workers})
        ]
        return joined([without(table, offer.barred) for table in tables])

    def committed(self, request: Request, choice: Choice, now: float) -> None:
        """A choice was charged, whoever made it."""
        if self._commits is not None:
            self._commits.committed(request, choice, now, retry=request.attempt > 0)

    def started(self, lease: Lease, now: float) -> None:
        if self._starts is not None:
            self._starts.started(lease, now)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if self._settles is not None:
            self._settles.settled(lease, outcome, now)

    def __repr__(self) -> str:
        return f"<Seat {self.name} {self.policy!r}>"


@runtime_checkable
class BindsProducers(Protocol):
    """Optional, for a policy that chooses pairs: told what the prefill workers hold, None while nobody keeps
    that."""

    def bind_producers(self, prefixes: Prefixes | None) -> None: ...


class Borrowed:
    """Prefixes that a pool keeps for another policy: this one may ask, and set no bounds."""

    __slots__ = ("_prefixes",)

    def __init__(self, prefixes: Prefixes) -> None:
        self._prefixes = prefixes

    def matched(self, request: Request) -> Match:
        return self._prefixes.matched(request)

    def portion(self, request: Request) -> Portion | None:
        return self._prefixes.portion(request)

    def held_tokens(self, workers: Sequence[WorkerView]) -> list[float]:
        return self._prefixes.held_tokens(workers)

    def bound(self, bound: TreeBound) -> None:
        """What the pool's own policy wants stands."""

    def __repr__(self) -> str:
        return f"<Borrowed {self._prefixes!r}>"
