"""The deadlines of a split request, over both legs and the hand-over between them.

Several run at any moment. Each question is answered with the earliest of them and its name, so that the error
and the metric name what ran out. Connecting, writing and the time between two events are the same for every
exchange and belong to it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import NamedTuple


class Wait(enum.StrEnum):
    """What a deadline is called in errors and metrics."""

    PREFILL = "prefill"
    """The whole answer of the prefill leg."""
    TRANSFER = "transfer"
    """A decode worker has to take the hand-over on while its producer still holds the KV."""
    DECODE_FIRST_EVENT = "decode_first_event"
    """The first event of the decode leg, from the moment it is sent."""
    FIRST_EVENT = "first_event"
    """The first event of a streamed answer, over all legs and tries."""
    TOTAL = "total"
    """The whole of an answer that is not streamed, over all legs and tries."""


class Due(NamedTuple):
    """The earliest deadline that binds: when (absolute, s), and which."""

    at: float
    wait: Wait


class HandoverTimes(NamedTuple):
    """Of KV that was prefilled just now (absolute, s); infinite where no producer's lease runs.

    Attributes:
        overdue: from then on the request no longer waits for a free slot.
        dispatch_by: from then on the handle is shown to nobody any more.
        held_until: the producer holds the KV until then if nobody fetches it.
    """

    overdue: float
    dispatch_by: float
    held_until: float


@dataclass(frozen=True, slots=True)
class SplitDeadlines:
    """What each phase may take (s); shared by all requests of a pair of pools.

    Attributes:
        prefill_s: prefill leg, connecting and queueing in the engine included.
        decode_first_event_s: first event of a streamed decode leg, the transfer included.
        lease_s: how long a producer keeps KV that nobody has asked for, 30 s with vLLM's default
            `kv_lease_duration`; None where it is kept for everybody (shared storage).
        margin_s: before the end of the lease in which a hand-over is not begun any more; of a short lease at
            most half.
        pool_share: of the lease that a prefilled request may wait here. Then it goes to a decode engine
            whether that one has a free slot or not: an engine that has queued it keeps the lease alive with
            heartbeats, which a router cannot.
    """

    prefill_s: float = 300.0
    decode_first_event_s: float = 60.0
    lease_s: float | None = 30.0
    margin_s: float = 5.0
    pool_share: float = 1 / 3

    def prefill_by(self, now: float, answer_by: float, *, streamed: bool = True) -> Due:
        """For the whole answer of a prefill leg that is sent now.

        Args:
            answer_by: the request's own deadline (s): of the first event when `streamed`, else of all of it.
        """
        return _earliest(Due(now + self.prefill_s, Wait.PREFILL), answer_by, streamed)

    def handover(self, prefilled: float) -> HandoverTimes:
        """Of KV that was ready at `prefilled` (s): the producer's lease runs from then."""
        if self.lease_s is None:
            return HandoverTimes(math.inf, math.inf, math.inf)
        ends = prefilled + self.lease_s
        margin_s = min(self.margin_s, self.lease_s / 2)
        return HandoverTimes(prefilled + self.pool_share * self.lease_s, ends - margin_s, ends)

    def transfer_by(self, times: HandoverTimes, answer_by: float, *, streamed: bool = True) -> Due:
        """For showing the handle to a decode engine."""
        return _earliest(Due(times.dispatch_by, Wait.TRANSFER), answer_by, streamed)

    def answer_by(self, now: float, answer_by: float, *, streamed: bool) -> Due:
        """For the first event of a decode leg that is sent now, or for all of it when it is not `streamed`.

        The lease no longer binds: an engine that has queued the request keeps it alive.
        """
        if not streamed:
            return Due(answer_by, Wait.TOTAL)
        return _earliest(Due(now + self.decode_first_event_s, Wait.DECODE_FIRST_EVENT), answer_by, streamed)


def _earliest(due: Due, answer_by: float, streamed: bool) -> Due:
    """Of a phase and the whole request; at the same time the phase, which says more."""
    if due.at <= answer_by:
        return due
    return Due(answer_by, Wait.FIRST_EVENT if streamed else Wait.TOTAL)
