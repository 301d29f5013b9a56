"""Asking a policy where requests should go, and holding it to what it was offered.

Separate from the Pool, which charges: what a policy may be, and what it may answer, is checked in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from router.core.answer import Usage
from router.core.errors import InternalError
from router.core.lease import Lease, Outcome
from router.core.least_running import least_running
from router.core.offer import Placed
from router.core.policy import AnyPolicy, Choice
from router.core.prefix_settings import PrefixSettings
from router.core.prefixes import PoolPrefixes
from router.core.recording import Considered, Decision, Recording
from router.core.request import Request
from router.core.roster import Roster
from router.core.rounds import MadeRound
from router.core.seat import Borrowed, Seat
from router.core.shadows import Shadow, Shadows
from router.core.worker import Worker

MAX_OTHERS = 8
"""Policies that requests asked for by name which one pool keeps; the one asked for longest ago gives way."""


def _no_other(name: str) -> AnyPolicy | None:
    """No policy but its own is known to the pool."""
    return None


def _unheard(name: str, error: Exception) -> None:
    """Nobody wants to know which policy beside the pool's own failed."""


class Chooser:
    """One pool's policy, and those that single requests ask for by name.

    State: the seats; `prefixes`, what the pool's workers hold, kept while a policy asks for it.

    A policy that did not choose is told of every charge and settlement all the same, so that it is right when
    it is asked. Beside the pool's own, one that fails then is dropped and harms nobody.
    """

    __slots__ = (
        "_consumers", "_main", "_others", "_pool", "_prefix_settings", "_producers", "_roster", "counts",
        "make", "on_dropped", "prefixes", "recorder", "shadows",
    )  # fmt: skip

    def __init__(
        self,
        pool: str,
        roster: Roster,
        policy: AnyPolicy,
        name: str,
        prefix_settings: PrefixSettings | None = None,
    ) -> None:
        self._pool = pool
        self._roster = roster
        self._prefix_settings = prefix_settings
        self._others: dict[str, Seat] = {}
        self._producers: Chooser | None = None
        self._consumers: Chooser | None = None
        self.prefixes: PoolPrefixes | None = None
        self.counts: Counter[tuple[str, str]] = Counter()
        """Charged choices by policy and reason."""
        self.make: Callable[[str], AnyPolicy | None] = _no_other
        """Makes a policy by name; None for one that does not fit this pool, which then keeps its own."""
        self.on_dropped: Callable[[str, Exception], None] = _unheard
        """Told of a policy beside the pool's own that failed, and is asked no more."""
        self.shadows = Shadows(self._dropped)
        self.recorder: Recording | None = None
        """Told of every decision, with what was compared; None: nobody wants to know."""
        self.use(policy, name)

    def use(self, policy: AnyPolicy, name: str) -> None:
        """Asks `policy` from now on. Raises InternalError for an object that is none of the three shapes."""
        self._main = Seat(name, policy)
        self._others.pop(name, None)
        # Whoever balances steps must see full workers, too, also where no group is declared.
        self._roster.group_pool(self.by_batch)
        self._bind(self._main)

    @property
    def name(self) -> str:
        return self._main.name

    @property
    def policy(self) -> AnyPolicy:
        return self._main.policy

    def shadow(self, shadows: Sequence[Shadow], sample: float) -> None:
        """Has these policies decide without effect, and no others. `sample`: share of the decisions that they
        are asked about. Raises InternalError when they are too many."""
        self.shadows.use(shadows, sample)
        for shadow in shadows:
            self._bind(shadow.seat)
        self._let_prefixes_go()

    def _bind(self, seat: Seat) -> None:
        """What workers hold outlives a change between two policies that both ask for it. How much of it is
        kept is for the pool's own policy to say."""
        if seat.binds is not None:
            if self.prefixes is None:
                self.prefixes = PoolPrefixes(self._prefix_settings)
                self._tell_consumers()
            seat.binds.bind(self.prefixes if seat is self._main else Borrowed(self.prefixes))
        self._bind_producers(seat)
        self._let_prefixes_go()

    def _let_prefixes_go(self) -> None:
        """When no policy asks for them any more."""
        if self.prefixes is not None and not any(seat.binds for seat in self._seats()):
            self.prefixes.close()
            self.prefixes = None
            self._tell_consumers()

    def choose_with(self, producers: Chooser) -> None:
        """The pool of `producers` prefills for this one: policies that choose pairs look at its prefixes."""
        self._producers, producers._consumers = producers, self
        self.look_at_producers()

    def _bind_producers(self, seat: Seat) -> None:
        if seat.binds_producers is not None and self._producers is not None:
            known = self._producers.prefixes
            seat.binds_producers.bind_producers(None if known is None else Borrowed(known))

    def _tell_consumers(self) -> None:
        """The pool that decodes what this one prefills must not go on asking prefixes that are gone."""
        if self._consumers is not None:
            self._consumers.look_at_producers()

    def look_at_producers(self) -> None:
        """The prefixes of the pool that prefills for this one were begun or ended."""
        for seat in self._seats():
            self._bind_producers(seat)

    @property
    def others(self) -> list[str]:
        """Names of the policies beside its own that requests asked for, the last one last."""
        return list(self._others)

    def _seats(self) -> Iterator[Seat]:
        yield self._main
        yield from self._others.values()
        yield from [shadow.seat for shadow in self.shadows]

    # --- who decides ---------------------------------------------------------------------------------

    def seat(self, request: Request) -> Seat:
        """The policy that decides for a request: the one that it asks for if that fits the pool."""
        name = request.policy
        if name is None or name == self._main.name:
            return self._main
        seat = self._others.pop(name, None)
        if seat is None:
            policy = self.make(name)
            if policy is None:
                return self._main
            seat = Seat(name, policy)
            if len(self._others) >= MAX_OTHERS:
                del self._others[next(iter(self._others))]
            self._others[name] = seat
            self._bind(seat)
        self._others[name] = seat  # the one asked for last is last
        return seat

    def peek(self, request: Request) -> Seat:
        """The same without a trace: a policy that nobody asked for before is made and not kept."""
        name = request.policy
        known = None if name is None or name == self._main.name else self._others.get(name)
        if known is not None or name is None or name == self._main.name:
            return known or self._main
        policy = self.make(name)
        if policy is None:
            return self._main
        seat = Seat(name, policy)
        if seat.binds is not None and self.prefixes is not None:
            seat.binds.bind(Borrowed(self.prefixes))
        return seat

    def _drop(self, seat: Seat, error: Exception) -> None:
        if self._others.get(seat.name) is seat:
            del self._others[seat.name]
        self._dropped(seat.name, error)

    def _dropped(self, name: str, error: Exception) -> None:
        self._let_prefixes_go()
        self.on_dropped(name, error)

    @property
    def by_batch(self) -> bool:
        """Whether it wants to see all that wait at once."""
        return self._main.batch is not None

    @property
    def one_by_one(self) -> bool:
        """Whether it can choose for one request without a look at the others that wait."""
        return self._main.single is not None

    def in_round(self, request: Request) -> bool:
        """Whether a request is decided on together with the others that wait."""
        return self._main.batch is not None and (request.policy is None or self.seat(request) is self._main)

    def by_pairs(self, request: Request) -> bool:
        """Whether whoever decides for it chooses two workers together."""
        return self.seat(request).by_pairs(request)

    # --- the questions -------------------------------------------------------------------------------

    def one(self, request: Request, workers: Sequence[Worker], now: float) -> Choice | None:
        """One worker for one request; None leaves it queued.

        Whoever decides in rounds, and knows no other way, is asked for a round of one.
        """
        seat = self._main if request.policy is None else self.seat(request)
        if seat.single is not None:
            choice = seat.single.pick(request, workers, now)
        elif seat.batch is not None:
            choice = next(iter(seat.batch.admit((request,), workers, now)), None)
        else:
            raise InternalError(f"pool {self._pool} decides by pairs and has no prefill pool")
        if choice is not None:
            self._check_own(choice, request)
            self._check_offered(choice.worker, workers)
        return choice

    def pair(
        self, request: Request, prefills: Sequence[Worker], decodes: Sequence[Worker], now: float
    ) -> Choice | None:
        """Two workers for one request; None leaves it queued."""
        seat = self.seat(request)
        if seat.pair is None:
            raise InternalError(f"policy {seat.name} of pool {self._pool} does not choose pairs")
        choice = seat.pair.pick_pair(request, prefills, decodes, now)
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
        if self._main.batch is None:
            raise InternalError(f"policy {self.name} of pool {self._pool} does not choose for many at once")
        wanted = {request.id: request for request in requests}
        choices = self._main.batch.admit(requests, workers, now)
        if self.recorder is not None:
            self.recorder.round(MadeRound(self._pool, self._main, requests, workers, choices, now))
        for choice in choices:
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
        return choice if choice is not None else least_running(request, workers)

    # --- what the policies are told, and the prefixes they ask for -----------------------------------

    def joined(self, worker: Worker) -> None:
        """A worker was seen: it may be new, another incarnation, or of another KV capacity."""
        if self.prefixes is not None:
            self.prefixes.joined(worker)

    def sweep(self, now: float) -> None:
        """Upkeep, to be called again and again."""
        if self.prefixes is not None:
            self.prefixes.sweep(self._roster, now)

    def consider(self, placed: Placed, now: float) -> Considered | None:
        """What others say of a choice that is about to be charged, and what was compared for it; None when
        nobody wants to know."""
        if not len(self.shadows) and self.recorder is None:
            return None
        opinions = self.shadows.opinions(placed, now)
        recorder, seat = self.recorder, self.seat(placed.request)
        return Considered(opinions, None if recorder is None else recorder.compared(seat, placed, now))

    def placed(self, lease: Lease, placed: Placed, considered: Considered | None, now: float) -> None:
        """A choice was charged."""
        self.charged(lease, now)
        self.decided(lease, placed, considered, now)

    def decided(self, lease: Lease, placed: Placed, considered: Considered | None, now: float) -> None:
        """The same, when it is known already that the worker was charged."""
        self.counts[lease.policy, placed.choice.reason] += 1
        self.committed(placed.request, placed.choice, now)
        if considered is None:
            return
        self.shadows.committed(placed, considered.opinions, now)
        if self.recorder is not None:
            seat = self.seat(placed.request)
            lease.others = self.recorder.decided(Decision(self._pool, seat, placed, considered.table, now))

    def placed_beside(self, lease: Lease, placed: Placed, considered: Considered | None, now: float) -> None:
        """The same for the other leg of a pair, which this pool or the one that decodes has chosen."""
        self.charged(lease, now)
        request, choice = placed.request, placed.choice
        if choice.prefill_worker is None:
            self.decided(lease, placed, considered, now)
        else:
            own = Choice(request.id, choice.prefill_worker, cost=choice.cost, reason=choice.reason)
            self.committed(request, own, now)

    def charged(self, lease: Lease, now: float) -> None:
        """A lease was granted, whoever chose its worker."""
        if self.prefixes is not None:
            self.prefixes.charged(lease, self._roster.workers[lease.worker], now)

    def started(self, lease: Lease, now: float) -> None:
        """The first output of a lease was seen."""
        if self.prefixes is not None:
            self.prefixes.started(lease, now)
        self._main.started(lease, now)
        if self._others:
            self._tell_others(lambda seat: seat.started(lease, now))
        if len(self.shadows):
            self.shadows.started(lease, now)

    def committed(self, request: Request, choice: Choice, now: float) -> None:
        self._main.committed(request, choice, now)
        if self._others:
            self._tell_others(lambda seat: seat.committed(request, choice, now))

    def reported(self, lease: Lease, usage: Usage) -> None:
        """An engine told the usage of a lease, settled or not."""
        if self.prefixes is not None:
            self.prefixes.reported(lease, usage)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if self.prefixes is not None:
            self.prefixes.settled(lease, now)
        self._main.settled(lease, outcome, now)
        if self._others:
            self._tell_others(lambda seat: seat.settled(lease, outcome, now))
        if len(self.shadows):
            self.shadows.settled(lease, outcome, now)

    def _tell_others(self, tell: Callable[[Seat], None]) -> None:
        for seat in list(self._others.values()):
            try:
                tell(seat)
            except Exception as error:  # noqa: BLE001  # whatever it is, this request did not ask for it
                self._drop(seat, error)

    # --- what it is held to --------------------------------------------------------------------------

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
        beside = f", on request {', '.join(self._others)}" if self._others else ""
        return f"<Chooser {self.name} of pool {self._pool}{beside}>"
