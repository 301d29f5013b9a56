"""What a prefill pool and a decode pool of one model share: who may hand KV to whom.

Separate from both pools because neither owns it. A revision counts only where both sides of it are there, a
pair that failed rests for a while, and what a producer holds counts against its budget.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from router.core.handover import Handover
from router.core.lease import Lease
from router.core.pairs import Blame, End, Pairs
from router.core.prefill_budget import PrefillBudget
from router.core.roster import Roster
from router.core.worker import Worker

_WEIGHT = 0.1
_TIMES = 3
_PRESUMED_S = 1.0
_SHORTEST_S, _LONGEST_S = 0.25, 10.0


class Partners:
    """Reads both rosters; owns the back-offs of pairs and the budgets of producers.

    State: `pairs`, `budget`, `now` (the time by which they are judged; the pools move it before they ask),
    the mean time of a transfer, and one cached answer per model, valid as long as both sides' ready workers
    are the very same tuples.
    """

    def __init__(
        self, prefill: Roster, decode: Roster, budget: PrefillBudget, pairs: Pairs | None = None
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.budget = budget
        self.pairs = pairs if pairs is not None else Pairs()
        self.now = 0.0
        self._transfer_s: float | None = None
        self._matched: dict[str, tuple[tuple[Worker, ...], tuple[Worker, ...], frozenset[str]]] = {}

    def matched(self, model: str) -> frozenset[str]:
        """Revisions of which both sides have a ready worker."""
        prefills, decodes = self.prefill.ready(model), self.decode.ready(model)
        cached = self._matched.get(model)
        if cached is not None and cached[0] is prefills and cached[1] is decodes:
            return cached[2]
        revisions = frozenset(w.revision for w in prefills) & frozenset(w.revision for w in decodes)
        if prefills and decodes:  # names that nobody serves are the client's to make up
            self._matched[model] = prefills, decodes, revisions
        return revisions

    def revisions_without(self, gone: Container[str], model: str) -> frozenset[str]:
        """The same, without these workers."""
        sides = (self.prefill.ready(model), self.decode.ready(model))
        left = [frozenset(w.revision for w in side if w.name not in gone) for side in sides]
        return left[0] & left[1]

    def producers(self, workers: Sequence[Worker], model: str) -> Sequence[Worker]:
        """Those prefill workers whose KV somebody could take now: both breakers are looked at before either
        leg is sent."""
        matched = self.matched(model)
        found = [w for w in workers if w.revision in matched]
        if not self.back_off(model):
            return found
        decodes = self.decode.ready(model)
        return [w for w in found if any(w.revision == d.revision and self.allowed(w, d) for d in decodes)]

    def consumers(self, workers: Sequence[Worker], handover: Handover) -> Sequence[Worker]:
        """Those decode workers that have not just failed to take KV from this producer; all, when all have:
        the prompt is prefilled, and another failure costs no more than dropping it."""
        if not self.pairs:
            return workers
        producer = _end_of(handover.prefill)
        return [w for w in workers if self.pairs.allowed(producer, _end(w), self.now)] or workers

    def producer_of(self, handover: Handover) -> Worker | None:
        """Who holds the KV; None when that process is gone."""
        lease = handover.prefill
        worker = self.prefill.workers.get(lease.worker)
        return worker if worker is not None and worker.incarnation == lease.incarnation else None

    def beside(self, workers: Sequence[Worker], decode: Worker, model: str) -> Sequence[Worker]:
        """Prefill workers that can hand KV to this decode worker."""
        same = [w for w in workers if w.revision == decode.revision]
        return [w for w in same if self.allowed(w, decode)] if self.back_off(model) else same

    def consumers_of(self, prefill: Worker, decodes: Sequence[Worker], model: str) -> Sequence[Worker]:
        """Decode workers that this one can hand KV to."""
        same = [w for w in decodes if w.revision == prefill.revision]
        return [w for w in same if self.allowed(prefill, w)] if self.back_off(model) else same

    def back_off(self, model: str) -> bool:
        """Whether pairs that are set aside are to be left out.

        They are not when no other is left. One transfer that failed would otherwise stop all requests where
        one prefill worker and one decode worker are all there is.
        """
        return bool(self.pairs) and not self.all_aside(model)

    def all_aside(self, model: str) -> bool:
        """Whether every pair of ready workers is set aside."""
        if not self.pairs:
            return False
        decodes = self.decode.ready(model)
        return not any(
            p.revision == d.revision and self.allowed(p, d)
            for p in self.prefill.ready(model)
            for d in decodes
        )

    def allowed(self, prefill: Worker, decode: Worker) -> bool:
        """Whether this pair is not set aside."""
        return self.pairs.allowed(_end(prefill), _end(decode), self.now)

    def transferred(self, lease: Lease) -> None:
        """KV has come from the prefill worker of this lease to the worker of this lease."""
        if lease.prefill is not None:
            self.pairs.succeeded(_end_of(lease.prefill), _end_of(lease), self.now)

    def timed(self, seconds: float) -> None:
        """A transfer whose end was seen took so long, the queue of the decode engine included."""
        before = self._transfer_s
        self._transfer_s = seconds if before is None else before + _WEIGHT * (seconds - before)

    @property
    def presumed_s(self) -> float:
        """When a transfer whose end cannot be seen is taken for done: three times what others took. An answer
        that is not streamed shows nothing before its last token, long after its KV has come."""
        if self._transfer_s is None:
            return _PRESUMED_S
        return min(max(_TIMES * self._transfer_s, _SHORTEST_S), _LONGEST_S)

    def failed(self, lease: Lease) -> Blame:
        """KV has not come; whose fault it must be."""
        if lease.prefill is None:
            return Blame.NOBODY
        return self.pairs.failed(_end_of(lease.prefill), _end_of(lease), self.now)

    def forget(self, worker: str) -> None:
        """A worker was removed."""
        self.pairs.forget(worker)
        self.budget.forget(worker)

    def __repr__(self) -> str:
        return f"<Partners {self.pairs!r} {self.budget!r}>"


def _end(worker: Worker) -> End:
    return worker.name, worker.incarnation


def _end_of(lease: Lease) -> End:
    return lease.worker, lease.incarnation
