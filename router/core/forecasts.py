"""What is expected of every request that runs in a pool, and what it teaches when it is over.

Separate from the predictor, which knows kinds of requests and not which ones run. One for all policies of a
pool, so that a change of policy forgets nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol, runtime_checkable

from router.core.lease import Lease, Outcome
from router.core.predict import Grouping, LengthPredictor, Outlook, PredictorSettings, Source, Traits
from router.core.predict_error import Trust
from router.core.request import Request

_RENEWED = 4
"""Outlooks made anew at each settlement, so that long answers profit from what was learned meanwhile."""

_JUDGED_OF = 4
"""While nobody looks ahead one of so many finished requests is compared with what was expected of it: a mean
that has gone astray shows soon enough."""

Steps = tuple[bytes, int, int]
"""`Outlook.table` and `Outlook.beyond` of a resident, in how many of the steps 0 to H it is still there; and
how many sequences share what it has written."""


class _Resident:
    """A request that runs.

    Attributes:
        placed: what was expected when it was placed, to be judged at the end.
        lease: that it has; None while nobody said.
    """

    __slots__ = ("lease", "placed", "sequences", "traits")

    def __init__(self, traits: Traits, placed: Outlook, sequences: int) -> None:
        self.traits = traits
        self.placed = placed
        self.sequences = sequences
        self.lease: Lease | None = None


@runtime_checkable
class Foresees(Protocol):
    """Optional, of a policy: is given the forecasts of its pool, and says how far ahead it looks."""

    def foresee(self, forecasts: Forecasts) -> None: ...


class Forecasts:
    """The requests that run, each with what is expected of it.

    State: the predictor; `_residents` by request id; `_finished`, how many have ended; while somebody looks
    ahead also `tables` by request id (the one renewed longest ago first) and of how many anything is known.

    Args:
        mean: output tokens of all sequences of a request, as long as nothing better is known.
    """

    __slots__ = ("_finished", "_known", "_looks_ahead", "_mean", "_residents", "predictor", "tables")

    def __init__(
        self, mean: Callable[[Request], int], settings: PredictorSettings | None = None, salt: bytes = b""
    ) -> None:
        # Prompts are hashed only for who wants to tell them apart: that costs as much as all the rest.
        self.predictor = LengthPredictor(settings or PredictorSettings(grouping=Grouping.SURVIVAL), salt)
        self._mean = mean
        self._looks_ahead = False
        self._finished = 0
        self._residents: dict[str, _Resident] = {}
        self.tables: dict[str, Steps] = {}
        self._known: set[str] = set()

    @property
    def known(self) -> int:
        """Residents of whose rest anything is known; 0 while nobody looks ahead."""
        return len(self._known)

    def look_ahead(self, horizon_steps: int, grouping: Grouping) -> None:
        """Keeps a table for every resident from now on, over so many steps. Those who are there already have
        one of what was expected when they were placed, until it is renewed."""
        self._looks_ahead = True
        self.predictor.regroup(horizon_steps, grouping)
        for request_id, resident in self._residents.items():
            self._expect(request_id, resident.placed)

    def rest(self) -> None:
        """Nobody looks ahead any more."""
        self._looks_ahead = False
        self.predictor.regroup(self.predictor.settings.horizon_steps, Grouping.SURVIVAL)
        for resident in self._residents.values():
            if resident.lease is not None:
                resident.lease.ahead = None
        self.tables.clear()
        self._known.clear()

    def placed(self, request: Request, now: float) -> int:
        """A request was given to a worker; output tokens that all its sequences together will write, at least
        1. Ask while its prompt is still there."""
        if not request.api.generates:
            return max(self._mean(request), 1)
        traits = self.predictor.traits(request)
        outlook = self.predictor.outlook(traits, now, tables=self._looks_ahead)
        self._forget(request.id)
        self._residents[request.id] = _Resident(traits, outlook, request.sequences)
        if self._looks_ahead:
            self._expect(request.id, outlook)
        expected = outlook.expected_tokens
        if expected is None or self.predictor.trust is not Trust.FULL:
            return max(self._mean(request), 1)
        return max(round(expected), 1) * request.sequences

    def granted(self, lease: Lease) -> None:
        """It is the lease of a request that was placed. What is expected of its rest stands in it, too: a
        round reads hundreds of them, and looking them up by request would be most of its time."""
        resident = self._residents.get(lease.request.id)
        if resident is not None:
            resident.lease = lease
            lease.ahead = self.tables.get(lease.request.id)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """Learns from a lease that is over, if it says anything of how long answers are."""
        request = lease.request
        resident = self._forget(request.id)
        if resident is None:
            return
        if outcome in (Outcome.OK, Outcome.CANCELLED):
            tokens = lease.generated_tokens // request.sequences
            cut = request.max_tokens is not None and tokens >= request.max_tokens
            ended = outcome is Outcome.OK and not cut
            self._finished += 1
            judged = self._looks_ahead or self._finished % _JUDGED_OF == 0
            placed = resident.placed if judged else None
            self.predictor.learn(resident.traits, placed, tokens, now, ended=ended)
        if self.tables:
            self._renew(now)

    def _renew(self, now: float) -> None:
        """Makes the tables anew that were made longest ago."""
        for request_id in list(islice(self.tables, _RENEWED)):
            self._expect(request_id, self.predictor.outlook(self._residents[request_id].traits, now))

    def _expect(self, request_id: str, outlook: Outlook) -> None:
        """Puts a table at the end of those to be renewed."""
        resident = self._residents[request_id]
        self.tables.pop(request_id, None)
        steps = self.tables[request_id] = (outlook.table, outlook.beyond, resident.sequences)
        if resident.lease is not None:
            resident.lease.ahead = steps
        if outlook.source is Source.UNKNOWN:
            self._known.discard(request_id)
        else:
            self._known.add(request_id)

    def _forget(self, request_id: str) -> _Resident | None:
        self.tables.pop(request_id, None)
        self._known.discard(request_id)
        return self._residents.pop(request_id, None)

    def __len__(self) -> int:
        """Residents."""
        return len(self._residents)

    def __repr__(self) -> str:
        ahead = f"{len(self._known)} foreseen | " if self._looks_ahead else ""
        return f"<Forecasts [{len(self._residents)} residents | {ahead}{self.predictor!r}]>"
