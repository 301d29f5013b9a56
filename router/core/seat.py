"""One policy with what a pool must know of it: its name, its shape, and what it wants to be told.

Separate from the chooser because a pool may hold several: its own, those that single requests ask for, and
those that decide in its shadow.
"""

from __future__ import annotations

from router.core.errors import InternalError
from router.core.lease import Lease, Outcome
from router.core.policy import AnyPolicy, BatchPolicy, Choice, Commits, PairPolicy, Policy, Settles, Starts
from router.core.prefixes import Binds
from router.core.request import Request


class Seat:
    """A policy and its shape. Which one it has is asked once: protocol checks are too slow for every request.

    Attributes:
        single, pair, batch: the policy itself, as far as it has that shape.
        binds: it asks about prefixes.
    """

    __slots__ = ("_commits", "_settles", "_starts", "batch", "binds", "name", "pair", "policy", "single")

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
        self._commits = policy if isinstance(policy, Commits) else None
        self._settles = policy if isinstance(policy, Settles) else None
        self._starts = policy if isinstance(policy, Starts) else None

    @property
    def by_pairs(self) -> bool:
        """Whether it can only choose two workers together."""
        return self.pair is not None and self.single is None

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
