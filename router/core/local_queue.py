"""Requests that were given a worker and wait in the router for their turn there, as it has enough to do.

Separate from the pool's queue, whose requests have no worker yet. A router cannot reorder what waits inside
an engine, so what is to start in another order than it came must wait here: Preble's local scheduler
(arXiv 2407.00023) as far as a router can be one. A lease that waits here is charged like any other; it is
not sent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

from router.core.errors import QueueFull
from router.core.health import State
from router.core.lease import Lease
from router.core.prefix_index import PrefixIndex
from router.core.prefix_settings import PrefixSettings
from router.core.priority_groups import Round, group_of
from router.core.request import Request
from router.core.worker import Worker

_SPARE = 2
"""Requests beyond its slots that a worker is sent: they start without a way through the router."""

_LOOKS = 64
"""Waiting requests, oldest first, whose hit ratios are looked up for a start; more cost no more."""

_SERVES = frozenset({State.READY, State.DRAINING})


class Order(enum.Enum):
    """In which order requests start at their worker."""

    AUTO = "auto"
    """As the policy wants it."""
    OFF = "off"
    """As they come: nothing is held back."""
    FCFS = "fcfs"
    PRIORITY_GROUPS = "priority_groups"


@runtime_checkable
class Orders(Protocol):
    """Optional, for a policy that wants requests to start in another order than they come."""

    @property
    def local_order(self) -> Order: ...


@dataclass(frozen=True, slots=True)
class LocalQueueRules:
    """How one pool holds requests back.

    Attributes:
        max_dispatched: requests that are sent to one worker at most; None: two more than its slots, and where
            those are not known either, nothing is held back.
        ageing_s: whoever has waited so long goes before all others, oldest first.
        max_held: requests held back in the whole pool.
    """

    order: Order = Order.AUTO
    max_dispatched: int | None = None
    ageing_s: float = 5.0
    max_held: int = 256

    def limit(self, worker: Worker) -> int | None:
        """Requests that may be sent to this worker; None without a bound."""
        if self.max_dispatched is not None:
            return self.max_dispatched
        return None if worker.slots is None else worker.slots + _SPARE


class LocalQueue:
    """The requests held back, by worker, oldest first.

    State: `_held` with the time since when, the shares of the groups' round by worker, and what was sent to
    each worker: a request's own hit is not what policies believe, who count everything that was placed there.
    Everything but the last is empty when idle.
    """

    __slots__ = ("_held", "_rounds", "_sent", "order", "rules")

    def __init__(self, rules: LocalQueueRules, policy: object, sent: PrefixSettings | None = None) -> None:
        self.rules = rules
        self.order = Order.OFF
        self.follow(policy)
        self._held: dict[str, dict[Lease, float]] = {}
        self._rounds: dict[str, Round] = {}
        self._sent = PrefixIndex(sent)

    def follow(self, policy: object) -> None:
        """The order of a policy that is in use from now on, unless the rules name one."""
        order = self.rules.order
        if order is Order.AUTO:
            order = policy.local_order if isinstance(policy, Orders) else Order.OFF
        self.order = order

    # --- coming and going ----------------------------------------------------------------------------

    def enter(self, lease: Lease, worker: Worker, now: float) -> bool:
        """Whether a lease that was just charged may be sent at once; otherwise it is held from now on.

        Raises QueueFull when too many are held already.
        """
        limit = self.rules.limit(worker)
        if self.order is Order.OFF or limit is None:
            return True
        held = self._held.get(worker.name)
        if held is None and self._running(worker) <= limit:
            self._send(lease, worker, now)
            return True
        if len(self) >= self.rules.max_held:
            raise QueueFull("too many requests are waiting for their turn at a worker", retry_after_s=1.0)
        self._held.setdefault(worker.name, {})[lease] = now
        return False

    def leave(self, lease: Lease) -> None:
        """It waits no more, whatever became of it. A repeat changes nothing."""
        held = self._held.get(lease.worker)
        if held is not None and held.pop(lease, None) is not None and not held:
            del self._held[lease.worker]
            self._rounds.pop(lease.worker, None)

    def due(self, workers: Mapping[str, Worker], now: float) -> Iterator[tuple[Lease, bool]]:
        """Whoever need not wait any longer, with whether it may be sent: otherwise its worker is lost to it,
        and it should be given another one."""
        for name in list(self._held):
            worker, held = workers.get(name), self._held[name]
            for lease in [lease for lease in held if not _reaches(lease, worker)]:
                self.leave(lease)
                yield lease, False
            if worker is None or name not in self._held:
                continue
            for lease in self._next(worker, self._room(worker), now):
                self.leave(lease)
                self._send(lease, worker, now)
                yield lease, True

    def overdue(self, max_wait_s: float, now: float) -> list[Lease]:
        """Whoever has waited too long, by the pool's patience or by its own."""
        return [
            lease
            for held in self._held.values()
            for lease, since in held.items()
            if now >= min(since + max_wait_s, _deadline(lease.request, since + max_wait_s))
        ]

    def sweep(self, workers: Mapping[str, Worker], now: float) -> None:
        """Upkeep, to be called again and again."""
        for name in self._sent.workers - workers.keys():
            self._sent.remove(name)
        self._sent.sweep(now)

    # --- what is seen of it --------------------------------------------------------------------------

    def depth(self, worker: str) -> int:
        """Requests that are held for a worker."""
        return len(self._held.get(worker, ()))

    def tokens(self, worker: str) -> int:
        """Of their prompts, which the engine does not know of yet."""
        return sum(lease.kv_tokens for lease in self._held.get(worker, ()))

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    # --- the order -----------------------------------------------------------------------------------

    def _running(self, worker: Worker) -> int:
        """Requests that were sent to a worker and are not done there, one that just asks included."""
        mirror = worker.mirror
        return mirror.in_flight - mirror.keeping - self.depth(worker.name)

    def _room(self, worker: Worker) -> int:
        limit = self.rules.limit(worker)
        if self.order is Order.OFF or limit is None:
            return self.depth(worker.name)
        return max(limit - self._running(worker), 0)

    def _next(self, worker: Worker, room: int, now: float) -> list[Lease]:
        """Who starts next, of those that are held for a worker."""
        held = self._held[worker.name]
        if self.order is not Order.PRIORITY_GROUPS or len(held) <= room:
            return list(islice(held, room))
        aged_before = now - self.rules.ageing_s
        aged = [lease for lease, since in islice(held.items(), room) if since <= aged_before]
        if len(aged) == room:
            return aged
        others = list(islice(held, len(aged), len(aged) + _LOOKS))
        turns = self._rounds.setdefault(worker.name, Round())
        return aged + turns.take(others, self._group, room - len(aged))

    def _group(self, lease: Lease) -> int:
        """By what the worker holds of it now, as far as it was sent there."""
        request = lease.request
        if request.key is None:
            return 0
        match = self._sent.match(request.key.partition, request.key.canonical, request.prompt_tokens)
        return group_of(match.on(lease.worker), match.prompt_tokens)

    def _send(self, lease: Lease, worker: Worker, now: float) -> None:
        """Its worker will hold its prompt soon."""
        request = lease.request
        if self.order is not Order.PRIORITY_GROUPS or request.key is None:
            return
        self._sent.admit(worker.name, worker.incarnation, worker.kv_capacity_tokens)
        claim = self._sent.insert(
            request.key.partition,
            request.key.canonical,
            worker.name,
            now,
            prompt_tokens=request.prompt_tokens,
        )
        if claim is not None:
            self._sent.confirm(claim, now)

    def __repr__(self) -> str:
        return f"<LocalQueue {self.order.value} [{len(self)} held at {len(self._held)} workers]>"


def _reaches(lease: Lease, worker: Worker | None) -> bool:
    """Whether it makes sense to wait for this worker; what only this one can serve waits longer."""
    if worker is None or worker.incarnation != lease.incarnation:
        return False
    pinned = lease.request.pinned is not None and worker.state is State.SUSPECT
    return pinned or worker.state in _SERVES


def _deadline(request: Request, otherwise: float) -> float:
    return otherwise if request.deadline is None else request.deadline
