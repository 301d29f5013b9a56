"""The life of one call in a simulated router: placed, sent, heard of, settled, tried again.

Separate from the run, which wakes it: here is what `router.proxy` and `router.split` do with sockets, as a
table of small steps over the same pools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engines.model.engine import Job, Timing
from router.core.deadlines import HandoverTimes
from router.core.errors import RouterError
from router.core.handover import Handover
from router.core.lease import Lease
from router.core.request import Request
from router.core.retry import Failure, SplitTries, Tries
from router.core.retry import Leg as Half
from router.studies.simulation.call import Call
from router.studies.simulation.record import CallRecord
from router.studies.simulation.stepper import Rank


@dataclass(frozen=True, slots=True)
class Failed:
    """How a leg failed before its answer began.

    Attributes:
        half: of a request that is split.
        producer: who had prefilled, of a decode leg whose KV is taken for not handed over.
    """

    half: Half
    failure: Failure
    worker: str
    producer: str | None = None


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

    @property
    def gone(self) -> bool:
        """Whether its worker owes it nothing any more."""
        return self.lease.outcome is not None

    def jobs(self) -> list[Job]:
        """What is sent to its engine: a job per sequence."""
        life, call, prefill = self.life, self.life.call, self.prefill
        life.sent += 1
        fetch = not prefill and (self.lease.request.handover is not None or self.lease.prefill is not None)
        return [
            Job(
                id=f"{call.number}/{'p' if prefill else 'd'}{life.sent}/{sequence}",
                prompt_token_ids=call.prompt(),
                max_tokens=1 if prefill else call.output_tokens,
                ignore_eos=True,
                sequence=sequence,
                retain=prefill,
                fetch=fetch,
                arrival=life.record.arrived,
            )
            for sequence in range(1 if prefill else call.sequences)
        ]

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
        request: as it is placed from the start; the decode pool gets it with its hand-over.
        answer_by: its answer begins within (s).
        legs: those that are under way; two where they run at once.
        handover, times: of its KV, once it is prefilled; `shown`: a decode engine may have seen it.
        waits_since: when it last came to a pool (s).
        failed: how its last try failed, `undelivered`: at the decode worker that took no connection; None:
            there was none.
        tries, split_tries: as one worker serves it, and as two do; `taken`: of the budget of all.
        sent: legs so far.
    """

    call: Call
    request: Request
    record: CallRecord
    answer_by: float = math.inf
    legs: list[Leg] = field(default_factory=list)
    handover: Handover | None = None
    times: HandoverTimes | None = None
    shown: bool = False
    waits_since: float = 0.0
    failed: Failed | None = None
    undelivered: Failed | None = None
    tries: Tries | None = None
    split_tries: SplitTries | None = None
    taken: int = 0
    sent: int = 0

    @property
    def ending(self) -> str:
        """What it is called when nothing more is tried."""
        failed = self.failed
        return "too_long" if failed is not None and failed.failure is Failure.TOO_LONG else "failed"

    def ending_with(self, error: RouterError) -> str:
        """What it is called when it waited in vain: what failed before tells more than that."""
        return self.ending if self.failed else error.code or "refused"

    def __repr__(self) -> str:
        return f"<Life of call {self.call.number} [{self.record.outcome or 'on its way'}]>"
