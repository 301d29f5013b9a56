"""Where what waits should go: who is offered to the policy, and what is done when it declines.

Separate from the Pool, which charges each choice before it asks for the next, and from the chooser, which
knows one question at a time. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from router.core.chooser import Chooser
from router.core.eligibility import Eligibility
from router.core.offer import Offer, Placed
from router.core.partners import Partners
from router.core.policy import Choice
from router.core.request import Request
from router.core.split_eligibility import DecodeEligibility
from router.core.worker import Worker

_revision = attrgetter("revision")


class Placement:
    """Asks one pool's policy.

    State: none of its own. `producers` tells who may prefill for this pool, `prefill_chooser` who of them
    should, and `partners` who may hand KV to whom; all None in a pool that decodes nothing of others.
    """

    __slots__ = ("_chooser", "eligible", "partners", "prefill_chooser", "producers")

    def __init__(self, chooser: Chooser, eligible: Eligibility) -> None:
        self._chooser = chooser
        self.eligible = eligible
        self.producers: Eligibility | None = None
        self.partners: Partners | None = None
        self.prefill_chooser: Chooser | None = None

    def choose(self, request: Request, workers: Sequence[Worker], now: float) -> Choice | None:
        """One worker, or two, for one request; None leaves it queued.

        What has waited too long goes whatever the policy says: its KV is kept alive in an engine's queue, and
        in this one it is not.
        """
        if self.producers is not None and self._chooser.by_pairs(request):
            choice = self._choose_pair(request, workers, now)
        else:
            choice = self._chooser.one(request, workers, now)
        if choice is None and _overdue(request, now):
            return self._chooser.bypass(request, workers, now)
        return choice

    def offer(self, request: Request, workers: Sequence[Worker]) -> Offer:
        """What `choose` compares, for those who are asked about the same choice."""
        if self.producers is None or not self._chooser.by_pairs(request) or request.handover is not None:
            return Offer(workers)
        prefills = self.producers.open_to(request) if request.split else workers
        return Offer(workers, prefills, self._barred(request, prefills, workers))

    def _barred(
        self, request: Request, prefills: Sequence[Worker], decodes: Sequence[Worker]
    ) -> Collection[tuple[str, str]]:
        """Pairs that are set aside."""
        partners = self.partners
        if partners is None or not request.split or not partners.back_off(request.model):
            return ()
        return {(p.name, d.name) for p in prefills for d in decodes if not partners.allowed(p, d)}

    def beside(self, placed: Placed, decode: Worker, now: float) -> Placed | None:
        """Who prefills while the worker that was chosen waits for it; the same choice when it names both.
        Nobody does for a request that was prefilled, or is served whole."""
        request, eligible, chooser = placed.request, self.eligible, self.prefill_chooser
        if chooser is None or not request.split or request.handover is not None:
            return None
        if placed.choice.prefill_worker is not None:
            return placed
        if not isinstance(eligible, DecodeEligibility):
            return None
        workers = eligible.producers_for(request, decode)
        choice = chooser.one(request, workers, now) if workers else None
        return None if choice is None else Placed(request, choice, Offer(workers))

    # --- rounds ----------------------------------------------------------------------------------------

    def one_by_one(
        self, waiting: Collection[Request], may_start: Callable[[Request], bool], now: float
    ) -> Iterator[Placed]:
        """Choices for requests as they wait. Each must be charged before the next is asked for.

        Room only shrinks meanwhile, so a request is held only against those workers that had room for the
        last one of its kind: a long queue costs little while all are full.
        """
        left: dict[Hashable, Sequence[Worker]] = {}
        eligible = self.eligible
        for request in waiting:
            kind = eligible.kind(request)
            suited = left.get(kind) if kind is not None else None
            if suited is None:
                suited = eligible.suited_to(request)
            elif not suited:
                continue
            if not may_start(request):
                continue
            workers = eligible.with_room(suited, request)
            if kind is not None:
                left[kind] = workers
            choice = self.choose(request, workers, now) if workers else None
            if choice is not None:
                yield Placed(request, choice, self.offer(request, workers))

    def by_batch(
        self, waiting: Collection[Request], may_start: Callable[[Request], bool], now: float
    ) -> Iterator[Placed]:
        """The same for a policy that sees at once all that may go to the same workers: what a request may not
        have (a worker to avoid, one that is too small) is not offered with it. Before them come those who ask
        for another policy."""
        own = [request for request in waiting if not self._chooser.in_round(request)]
        yield from self.one_by_one(own, may_start, now)
        waiting = [request for request in waiting if self._chooser.in_round(request)]
        left: dict[str, Request] = {}
        for workers, requests in self._by_offer(waiting, may_start).items():
            late = {request.id: request for request in requests if _overdue(request, now)}
            for request, choice in self._chooser.batch(requests, workers, now):
                chosen = [worker for worker in workers if worker.name == choice.worker]
                # The first of a batch may have filled the worker that a later one was meant for.
                if may_start(request) and self.eligible.with_room(chosen, request):
                    late.pop(request.id, None)
                    yield Placed(request, choice, Offer(workers))
            left |= late
        for request in left.values():
            workers = tuple(self.eligible.open_to(request))
            if workers:
                yield Placed(request, self._chooser.bypass(request, workers, now), Offer(workers))

    def _by_offer(
        self, waiting: Collection[Request], may_start: Callable[[Request], bool]
    ) -> dict[tuple[Worker, ...], list[Request]]:
        """Requests by the workers that have room for them; those without any are left out."""
        groups: dict[tuple[Worker, ...], list[Request]] = {}
        offers: dict[Hashable, tuple[Worker, ...]] = {}
        eligible = self.eligible
        for request in waiting:
            if not may_start(request):
                continue
            kind = eligible.kind(request)
            workers = offers.get(kind) if kind is not None else None
            if workers is None:
                workers = tuple(eligible.open_to(request))
                if kind is not None:
                    offers[kind] = workers
            if workers:
                groups.setdefault(workers, []).append(request)
        return groups

    # --- pairs -----------------------------------------------------------------------------------------

    def _choose_pair(self, request: Request, decodes: Sequence[Worker], now: float) -> Choice | None:
        """Both ends, for a policy that cannot choose one alone.

        Whoever has prefilled a request is the only one offered. One that is served whole has both of its ends
        at one worker, so the same workers are offered on both sides.
        """
        if request.handover is not None:
            producer = self.partners.producer_of(request.handover) if self.partners is not None else None
            if producer is None:
                return self._chooser.bypass(request, decodes, now)
            return self._chooser.pair(request, (producer,), decodes, now)
        if not request.split or self.producers is None:
            return self._chooser.pair(request, decodes, decodes, now)
        prefills = self.producers.open_to(request)
        same = groupby(sorted(decodes, key=_revision), _revision)
        return _cheapest(
            self._allowed_pair(request, [w for w in prefills if w.revision == revision], list(ones), now)
            for revision, ones in same
        )

    def _allowed_pair(
        self, request: Request, prefills: Sequence[Worker], decodes: Sequence[Worker], now: float
    ) -> Choice | None:
        """A pair inside one revision that is not set aside.

        The policy does not know which ones are. When it chooses one, each prefill worker is offered alone,
        with those that it may be paired with.
        """
        if not prefills:
            return None
        choice = self._chooser.pair(request, prefills, decodes, now)
        if choice is None or self.partners is None:
            return choice
        allowed = {p.name: self.partners.consumers_of(p, decodes, request.model) for p in prefills}
        if any(worker.name == choice.worker for worker in allowed[choice.prefill_worker or ""]):
            return choice
        return _cheapest(
            self._chooser.pair(request, (prefill,), allowed[prefill.name], now)
            for prefill in prefills
            if allowed[prefill.name]
        )

    def __repr__(self) -> str:
        return f"<Placement {self._chooser!r} {self.eligible!r}>"


def _cheapest(choices: Iterable[Choice | None]) -> Choice | None:
    return min(
        (choice for choice in choices if choice is not None), key=lambda choice: choice.cost, default=None
    )


def _overdue(request: Request, now: float) -> bool:
    handover = request.handover
    return handover is not None and now >= handover.overdue
