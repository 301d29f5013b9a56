"""BalanceRoute for one request by itself: where nobody waits beside it, and when it is asked to explain.

Separate from the round, whose stages are about which of many requests go first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.core.explain import Row, Table
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.balance_round import Place, places_of
from router.policies.barrier import Group
from router.policies.envelope import Envelope
from router.policies.load import least
from router.policies.subset_search import Candidate
from router.policies.table import drawn_table


class Alone:
    """One request before the workers that were offered.

    Attributes:
        places: in the order of the workers.
        reason: for which the best one is chosen.
    """

    __slots__ = ("_one", "_request", "places", "reason")

    def __init__(
        self,
        request: Request,
        groups: Sequence[tuple[Group, Envelope]],
        workers: Sequence[WorkerView],
        kv_reserve: float,
        reason: str,
    ) -> None:
        self._request = request
        self._one: Candidate = (request.prompt_tokens, request.sequences)
        ties = [0] * len(workers)
        by_name = {place.view.name: place for place in places_of(groups, workers, kv_reserve, ties)}
        self.places = [by_name[worker.name] for worker in workers]
        self.reason = reason

    def pick(self, seed: int) -> Choice | None:
        """The worker of the highest F; of equals the one with the least load, then by hash. None when nobody
        has room."""
        able = [place for place in self.places if place.takes(self._one)]
        if not able:
            return None
        costs = [self._cost(place) for place in able]
        lowest = min(costs)
        best = [place for place, cost in zip(able, costs, strict=True) if cost == lowest]
        loads = [place.envelope.load(place.member) for place in best]
        chosen = best[least(loads, [place.view for place in best], self._request, seed)]
        return Choice(self._request.id, chosen.view.name, cost=lowest, reason=self.reason)

    def explain(self, unit: str, seed: int) -> Table:
        """The same as a table."""
        return drawn_table(unit, seed, self._request, [self._row(place) for place in self.places])

    def _row(self, place: Place) -> Row:
        able = place.takes(self._one)
        return Row(
            worker=place.view.name,
            total=self._cost(place),
            terms=self._terms(place),
            tier=0 if able else None,
            order=place.envelope.load(place.member),
            reason=self.reason if able else "no room",
        )

    def _terms(self, place: Place) -> dict[str, float]:
        """The F-score of the request there, and what bounds it. What is unknown, and so without end, is left
        out."""
        terms = {
            "f_score_tokens": place.value(self._one),
            "new_tokens": self._one[0] + place.tokens_per_sequence * self._one[1],
            "load_tokens": place.envelope.load(place.member) / place.load_per_token,
            "free_slots": place.free,
            "free_kv_tokens": place.room,
            "warmup": place.view.warmup,
            "capacity": place.view.capacity,
        }
        return {name: value for name, value in terms.items() if math.isfinite(value)}

    def _cost(self, place: Place) -> float:
        return -place.value(self._one) * place.cost_per_token

    def __repr__(self) -> str:
        return f"<Alone {self._request!r} [{len(self.places)} places]>"
