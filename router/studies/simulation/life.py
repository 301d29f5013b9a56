"""The life of one call in a simulated router: placed, sent, heard of, settled, tried again.

Separate from the run, which wakes it: here is what `router.proxy` and `router.split` do with sockets, as a
table of small steps over the same pools.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.model.engine import Timing
from router.core.handover import Handover
from router.core.lease import Lease
from router.core.request import Request
from router.studies.simulation.call import Call
from router.studies.simulation.record import CallRecord
from router.studies.simulation.stepper import Rank


@dataclass(slots=True, eq=False)
class Leg:
    """One request at one engine.

    Attributes:
        timings: of its jobs, by id, from their first token on.
        open: jobs that have not ended.
        told: when the router last heard how far it is (s).
        prefill: it ends with its first token, whose KV another engine fetches.
    """

    life: Life
    lease: Lease
    rank: Rank
    prefill: bool
    timings: dict[str, Timing] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    started: bool = False
    told: float = 0.0

    def written(self) -> int:
        """Tokens of all its jobs so far; what the span has done beside counts."""
        pending = len(self.rank.ends) * len(self.open)
        for timing in self.timings.values():
            pending += timing.generation_tokens
        return pending


@dataclass(slots=True, eq=False)
class Life:
    """One call on its way.

    Attributes:
        leg: the one at whose end something happens; None while it waits.
        handover: its KV, once it is prefilled.
        waits_since: when it last came to a pool (s).
    """

    call: Call
    request: Request
    record: CallRecord
    leg: Leg | None = None
    handover: Handover | None = None
    waits_since: float = 0.0

    def __repr__(self) -> str:
        return f"<Life of call {self.call.number} [{self.record.outcome or 'on its way'}]>"
