"""Whether a request is split between the two pools of a pair, by what stands in them now.

Separate from the rule, which looks at facts and at no pool, and from what carries the decision out: a live
router with sockets, a study without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from router.core.partners import Partners
from router.core.pool import Pool
from router.core.request import Request
from router.core.retry import Leg
from router.core.split_rule import Fallback, Refusal, SplitFacts, SplitRule, Unsplit, Where, Whole
from router.core.worker import Role, Worker


@dataclass(frozen=True, slots=True, eq=False)
class Splitting:
    """One prefill pool and one decode pool of the same model.

    Attributes:
        rule: what is not split.
        sequences_on_handle, takes_whole: what the connector of the pair allows, see `SplitFacts`.
    """

    prefill: Pool
    decode: Pool
    partners: Partners
    rule: SplitRule
    sequences_on_handle: bool = False
    takes_whole: bool = True

    def decide(
        self,
        request: Request,
        now: float,
        *,
        traits: frozenset[Unsplit] = frozenset(),
        handle_missing: bool = False,
    ) -> Whole | Refusal | None:
        """Whether a request is served whole, and where; None splits it."""
        self.partners.now = now
        plain = request
        if request.split or request.pinned is not None:
            plain = structs.replace(request, split=False, pinned=None)
        prefills = self.prefill.candidates(plain)
        decodes = self.decode.roster.ready(request.model)
        facts = SplitFacts(
            generates=request.api.generates,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            sequences=request.sequences,
            traits=traits,
            pinned=self._place_of(request.pinned),
            handle_missing=handle_missing,
            prefill_ready=bool(prefills),
            decode_ready=bool(decodes),
            producer_ready=bool(prefills) and self._producer_ready(request.model, prefills),
            may_do_both=any(worker.does_both for worker in decodes),
            sequences_on_handle=self.sequences_on_handle,
            prefill_takes_whole=self.takes_whole,
            decode_takes_whole=self.takes_whole,
        )
        return self.rule.decide(facts)

    def others_for(self, request: Request, leg: Leg) -> bool:
        """Whether anybody may run this leg of a request that is tried again."""
        pool = self.prefill if leg is Leg.PREFILL else self.decode
        return bool(pool.candidates(structs.replace(request, split=leg is Leg.PREFILL)))

    def again(self, request: Request, elsewhere: Request, *, others: bool, producer: str | None) -> Request:
        """The request for the next try, from the start.

        Args:
            elsewhere: the same, away from the worker that failed.
            others: somebody else is left to decode it.
            producer: who had prefilled, when its KV did not come over.
        """
        # A pair that failed rests anyway, so the only worker there is on a side need not be avoided as well.
        if not others:
            elsewhere = structs.replace(elsewhere, avoid=request.avoid)
        if producer is not None:
            both = structs.replace(elsewhere, avoid=elsewhere.avoid | {producer}, split=True)
            elsewhere = both if self.prefill.candidates(both) else elsewhere
        return elsewhere

    def _producer_ready(self, model: str, prefills: Sequence[Worker]) -> bool:
        """Whether some prefill worker could hand KV over now. Where decode workers may serve what cannot be
        handed over to them, they do so while every pair rests; elsewhere the last pair is tried however often
        it fails."""
        whole_instead = self.rule.fallback is Fallback.AGGREGATED and self.takes_whole
        if whole_instead and self.partners.all_aside(model):
            return False
        return bool(self.partners.producers(prefills, model))

    def _place_of(self, pinned: str | None) -> Where | None:
        if pinned is None:
            return None
        if pinned in self.prefill.roster.workers:
            return Where.PREFILL
        worker: Worker | None = self.decode.roster.workers.get(pinned)
        return Where.BOTH_CAPABLE if worker is not None and worker.role is Role.BOTH else Where.DECODE

    def __repr__(self) -> str:
        return f"<Splitting {self.prefill!r} {self.decode!r}>"
