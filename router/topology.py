"""How one model is served by prefill and decode workers: its two pools, what joins them, and what is split.

Separate from the fleet, which knows addresses, and from the life of a request, which only asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router.connectors import Connector
from router.core.deadlines import SplitDeadlines
from router.core.partners import Partners
from router.core.prefill_budget import STALE_PERIODS, BudgetSettings, PrefillBudget
from router.core.request import Request
from router.core.split_rule import Fallback, Refusal, SplitRule, Unsplit, Where, Whole
from router.core.splitting import Splitting
from router.dispatch import Dispatcher
from router.settings.configuration import Settings
from router.settings.pairs import Pair


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """One prefill pool and one decode pool of the same model.

    Attributes:
        splitting: decides what is split.
        deadlines: of both legs, and of the hand-over in between.
    """

    prefill: Dispatcher
    decode: Dispatcher
    connector: Connector
    splitting: Splitting
    deadlines: SplitDeadlines
    partners: Partners
    now: Callable[[], float]

    def decide(
        self, request: Request, *, traits: frozenset[Unsplit] = frozenset(), handle_missing: bool = False
    ) -> Whole | Refusal | None:
        """Whether a request is served whole, and where; None splits it."""
        return self.splitting.decide(request, self.now(), traits=traits, handle_missing=handle_missing)

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
        stale_s=STALE_PERIODS * settings.polling.prefill_scrape_s,
    )
    partners = Partners(prefill.pool.roster, decode.pool.roster, PrefillBudget(budget))
    decode.pool.join(prefill.pool, partners)
    decode.beside = prefill.turns
    return Topology(
        prefill=prefill,
        decode=decode,
        connector=pair.connector,
        splitting=Splitting(
            prefill.pool,
            decode.pool,
            partners,
            SplitRule(consumers.pd_split_min_tokens, Fallback(consumers.fallback)),
            sequences_on_handle=pair.connector.sequences_on_handle,
            takes_whole=pair.connector.decode_takes_whole,
        ),
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
