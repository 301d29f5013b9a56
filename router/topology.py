"""How one model is served by prefill and decode workers: its two pools, what joins them, and what is split.

Separate from the fleet, which knows addresses, and from the life of a request, which only asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from router.connectors import Connector
from router.core.deadlines import SplitDeadlines
from router.core.partners import Partners
from router.core.prefill_budget import BudgetSettings, PrefillBudget
from router.core.request import Request
from router.core.split_rule import Fallback, Refusal, SplitFacts, SplitRule, Unsplit, Where, Whole
from router.core.worker import Role, Worker
from router.dispatch import Dispatcher
from router.settings.configuration import Settings
from router.settings.pairs import Pair

_STALE_PERIODS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """One prefill pool and one decode pool of the same model.

    Attributes:
        rule: what is not split.
        deadlines: of both legs, and of the hand-over in between.
    """

    prefill: Dispatcher
    decode: Dispatcher
    connector: Connector
    rule: SplitRule
    deadlines: SplitDeadlines
    partners: Partners
    now: Callable[[], float]

    def decide(
        self, request: Request, *, traits: frozenset[Unsplit] = frozenset(), handle_missing: bool = False
    ) -> Whole | Refusal | None:
        """Whether a request is served whole, and where; None splits it."""
        self.partners.now = self.now()
        plain = request
        if request.split or request.pinned is not None:
            plain = structs.replace(request, split=False, pinned=None)
        prefills = self.prefill.pool.candidates(plain)
        decodes = self.decode.pool.roster.ready(request.model)
        connector = self.connector
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
            sequences_on_handle=connector.sequences_on_handle,
            prefill_takes_whole=connector.decode_takes_whole,
            decode_takes_whole=connector.decode_takes_whole,
        )
        return self.rule.decide(facts)

    def _producer_ready(self, model: str, prefills: Sequence[Worker]) -> bool:
        """Whether some prefill worker could hand KV over now. Where decode workers may serve what cannot be
        handed over to them, they do so while every pair rests; elsewhere the last pair is tried however often
        it fails."""
        whole_instead = self.rule.fallback is Fallback.AGGREGATED and self.connector.decode_takes_whole
        if whole_instead and self.partners.all_aside(model):
            return False
        return bool(self.partners.producers(prefills, model))

    def _place_of(self, pinned: str | None) -> Where | None:
        if pinned is None:
            return None
        if pinned in self.prefill.pool.roster.workers:
            return Where.PREFILL
        worker: Worker | None = self.decode.pool.roster.workers.get(pinned)
        return Where.BOTH_CAPABLE if worker is not None and worker.role is Role.BOTH else Where.DECODE

    def pool_for(self, where: Where) -> Dispatcher:
        """Where a request that is served whole waits for its worker."""
        return self.prefill if where is Where.PREFILL else self.decode

    def __repr__(self) -> str:
        return f"<Topology {self.connector.name} {self.prefill.pool!r} {self.decode.pool!r}>"


def join_pools(
    dispatchers: Mapping[str, Dispatcher], pair: Pair, settings: Settings, now: Callable[[], float]
) -> Topology:
    """Makes the pools of a pair work together."""
    prefill, decode = dispatchers[pair.prefill], dispatchers[pair.decode]
    producers, consumers = settings.pools[pair.prefill], settings.pools[pair.decode]
    budget = BudgetSettings(
        high=producers.prefill_budget_high,
        low=producers.prefill_budget_low,
        stale_s=_STALE_PERIODS * settings.polling.prefill_scrape_s,
    )
    partners = Partners(prefill.pool.roster, decode.pool.roster, PrefillBudget(budget))
    decode.pool.join(prefill.pool, partners)
    return Topology(
        prefill=prefill,
        decode=decode,
        connector=pair.connector,
        rule=SplitRule(consumers.pd_split_min_tokens, Fallback(consumers.fallback)),
        deadlines=_deadlines(pair, settings),
        partners=partners,
        now=now,
    )


def _deadlines(pair: Pair, settings: Settings) -> SplitDeadlines:
    timeouts = settings.timeouts
    return SplitDeadlines(
        prefill_s=timeouts.prefill_s,
        lease_s=pair.connector.lease_s,
        margin_s=timeouts.lease_margin_s,
        decode_first_event_s=timeouts.decode_first_event_s,
    )
