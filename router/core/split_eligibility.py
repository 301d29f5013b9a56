"""Which workers the two legs of a split request may go to.

Separate from `eligibility` because a prefill worker is limited by the KV it still holds for others, and a
decode worker by the transfers it has under way, where a worker that does both knows only slots.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from router.core.eligibility import Eligibility
from router.core.partners import Partners
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker


class PrefillEligibility(Eligibility):
    """Of a pool whose workers prefill for others."""

    __slots__ = ("_partners",)

    def __init__(self, roster: Roster, partners: Partners) -> None:
        super().__init__(roster, late_binding=True)
        self._partners = partners

    def _willing(self, request: Request) -> Sequence[Worker]:
        """For a request that ends here (one output token) any; otherwise those whose KV somebody can take."""
        workers = super()._willing(request)
        return self._partners.producers(workers, request.model) if request.split else workers

    def with_room(self, workers: Sequence[Worker], request: Request) -> Sequence[Worker]:
        """Those that are not saturated with KV that waits for its hand-over."""
        budget, now = self._partners.budget, self._partners.now
        return [w for w in workers if budget.open(w, now)]


class DecodeEligibility(Eligibility):
    """Of a pool whose workers decode what others prefilled."""

    __slots__ = ("_max_transfers", "_partners")

    def __init__(self, roster: Roster, partners: Partners, *, max_transfers: int) -> None:
        super().__init__(roster, late_binding=False)
        self._partners = partners
        self._max_transfers = max_transfers

    def _willing(self, request: Request) -> Sequence[Worker]:
        handover = request.handover
        if handover is not None:
            workers = self._roster.of_revision(request.model, handover.revision)
            return self._partners.consumers(workers, handover)
        matched = self._partners.matched(request.model)
        workers = super()._willing(request)
        # A new revision stays out until both of its sides are there; when no revision is whole, all of them
        # may do what is asked of one worker alone.
        if matched or request.split:
            workers = [w for w in workers if w.revision in matched]
        return workers

    def with_room(self, workers: Sequence[Worker], request: Request) -> Sequence[Worker]:
        """Those with free slots and not too many transfers under way.

        What has waited too long goes to any of them when none has room: in the engine's own queue its KV is
        kept alive, here it is not.
        """
        handover = request.handover
        roomy = self._with_slots(workers, request.sequences)
        if handover is not None or request.split:
            limit = self._max_transfers
            roomy = [w for w in roomy if w.mirror.transfers < limit]
        if handover is None:
            return self._with_producers(roomy, request) if request.split and roomy else roomy
        return roomy or (workers if self._partners.now >= handover.overdue else roomy)

    def _with_producers(self, workers: Sequence[Worker], request: Request) -> Sequence[Worker]:
        """Those for which somebody could run the other leg now."""
        partners, producers = self._partners, self._open_producers(request)
        if not partners.pairs:
            revisions = {w.revision for w in producers}
            return [w for w in workers if w.revision in revisions]
        return [w for w in workers if partners.beside(producers, w, request.model)]

    def _open_producers(self, request: Request) -> Sequence[Worker]:
        partners = self._partners
        ready = partners.prefill.ready(request.model)
        return [w for w in ready if w.name not in request.avoid and partners.budget.open(w, partners.now)]

    def producers_for(self, request: Request, decode: Worker) -> Sequence[Worker]:
        """Prefill workers that could run the other leg now, for legs that run at the same time."""
        return self._partners.beside(self._open_producers(request), decode, request.model)

    def kind(self, request: Request) -> Hashable | None:
        """See `Eligibility.kind`. What waits for its decode worker may only go to some revision, not with a
        producer that failed there, and anywhere at all when it has waited too long."""
        kind, handover = super().kind(request), request.handover
        if handover is None or kind is None:
            return kind
        if self._partners.now >= handover.overdue:
            return None
        return kind, handover.revision, handover.producer if self._partners.pairs else None
