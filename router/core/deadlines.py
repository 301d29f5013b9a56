"""Every deadline of a split request, over both legs, in one object.

Several deadlines run at any moment. Each question here answers with the earliest of them and its name, so
that the error and the metric name the phase that ran out. Separate from the legs, which only wait.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from router.core.errors import DeadlineExceeded, InternalError


class Wait(enum.StrEnum):
    """What a deadline is called in errors and metrics."""

    CONNECT = "connect"
    PREFILL = "prefill"
    """The whole answer of the prefill leg."""
    TRANSFER = "transfer"
    """A decode worker has to take the hand-over on while its producer still holds the KV."""
    DECODE_FIRST_EVENT = "decode_first_event"
    """The first event of the decode leg, from the moment it is sent."""
    IDLE = "idle"
    """Between two events of the stream."""
    FIRST_EVENT = "first_event"
    """The first event of a streamed answer: the client's own patience, over all legs and tries."""
    TOTAL = "total"
    """The whole of an answer that is not streamed, over all legs and tries."""


_SENTENCES: dict[Wait, str] = {
    Wait.CONNECT: "The worker did not take the connection in time.",
    Wait.PREFILL: "The prefill of the prompt took longer than it may.",
    Wait.TRANSFER: "No decode worker took the KV over before its producer may have dropped it.",
    Wait.DECODE_FIRST_EVENT: "The decode worker produced nothing in time after it was given the KV.",
    Wait.IDLE: "The worker has sent nothing for too long.",
    Wait.FIRST_EVENT: "The answer did not begin within the time of the request.",
    Wait.TOTAL: "The answer was not complete within the time of the request.",
}


class Due(NamedTuple):
    """The earliest deadline that binds: when (absolute, s), and which."""

    at: float
    wait: Wait

    def over(self, now: float) -> bool:
        return now >= self.at

    def error(self, *, sent: bool) -> DeadlineExceeded:
        """What is raised when it ran out; `sent`: the worker may have seen something of the request."""
        return DeadlineExceeded(_SENTENCES[self.wait], phase=self.wait.value, sent=sent)


@dataclass(frozen=True, slots=True)
class SplitDeadlines:
    """What each phase may take (s); shared by all requests of a pair of pools.

    Attributes:
        connect_s: TCP connection to a worker, either leg.
        prefill_s: prefill leg, connecting and queueing in the engine included.
        lease_s: how long a producer keeps KV that nobody has asked for, 30 s with vLLM's default
            `kv_lease_duration`; None where it is kept for everybody (shared storage).
        lease_margin_s: before the end of the lease in which a hand-over is not begun any more; of a short
            lease at most half.
        pool_share: of the lease that a prefilled request may wait here. Then it goes to a decode engine
            whether that one has a free slot or not: an engine that has queued it keeps the lease alive with
            heartbeats, which a router cannot.
        decode_first_event_s: first event of a streamed decode leg, the transfer included.
        idle_s, idle_lost_worker_s: between two events, and once the worker is known to be lost.
    """

    connect_s: float = 1.0
    prefill_s: float = 300.0
    lease_s: float | None = 30.0
    lease_margin_s: float = 5.0
    pool_share: float = 1 / 3
    decode_first_event_s: float = 60.0
    idle_s: float = 600.0
    idle_lost_worker_s: float = 10.0


class RequestDeadlines:
    """The deadlines of one request.

    State: `prefilled`, when the KV that it holds now was ready; None while it holds none.
    """

    __slots__ = ("answer_by", "limits", "own", "prefilled", "stream")

    def __init__(self, limits: SplitDeadlines, answer_by: float, *, stream: bool) -> None:
        """`answer_by`: absolute time (s) of the first event of a stream, or of the whole answer otherwise."""
        self.limits = limits
        self.answer_by = answer_by
        self.stream = stream
        self.prefilled: float | None = None
        self.own = Due(answer_by, Wait.FIRST_EVENT if stream else Wait.TOTAL)
        """The request's own deadline, over all legs and tries. Nothing is tried again after it."""

    def has_prefilled(self, at: float) -> None:
        """The prefill leg answered at `at` (s): its producer's lease runs from then."""
        self.prefilled = at

    def drop_handle(self) -> None:
        """The KV is used, or given up: its lease binds nothing any more."""
        self.prefilled = None

    @property
    def lease_ends(self) -> float | None:
        """When the producer drops the KV (s) unless a decode engine has taken it on; None without a lease."""
        if self.prefilled is None or self.limits.lease_s is None:
            return None
        return self.prefilled + self.limits.lease_s

    def connect_by(self, now: float) -> Due:
        """For a connection of either leg that is begun now; a decode leg must also be in time for its KV."""
        return self._first(Due(now + self.limits.connect_s, Wait.CONNECT), *self._lease())

    def prefill_by(self, now: float) -> Due:
        """For the whole answer of a prefill leg that is sent now."""
        return self._first(Due(now + self.limits.prefill_s, Wait.PREFILL))

    def dispatch_by(self) -> Due:
        """For showing the handle to a decode engine. Later it is not shown to anybody.

        Raises InternalError when no handle is held.
        """
        if self.prefilled is None:
            raise InternalError("a request that was not prefilled has nothing to hand over")
        return self._first(*self._lease())

    def bypass_at(self) -> float | None:
        """From when (s) it is placed without waiting for a free slot; None without a lease."""
        if self.prefilled is None or self.limits.lease_s is None:
            return None
        return self.prefilled + self.limits.pool_share * self.limits.lease_s

    def to_be_bypassed(self, now: float) -> bool:
        at = self.bypass_at()
        return at is not None and now >= at

    def decode_first_event_by(self, now: float) -> Due:
        """For the first event of a decode leg that is sent now.

        The lease no longer binds: an engine that has queued the request keeps it alive. An answer that is not
        streamed has one event, its end.
        """
        if not self.stream:
            return self.own
        return self._first(Due(now + self.limits.decode_first_event_s, Wait.DECODE_FIRST_EVENT))

    def idle_by(self, now: float, *, lost: bool = False) -> Due:
        """For the next event after one that came now. The request's own deadline ended with the first event
        of a stream; of an answer that is not streamed it lasts, and alone, unless the worker is lost.

        Args:
            lost: the worker refuses connections or is another incarnation.
        """
        limit_s = self.limits.idle_lost_worker_s if lost else self.limits.idle_s
        idle = Due(now + limit_s, Wait.IDLE)
        if self.stream:
            return idle
        return self._first(idle) if lost else self.own

    def _lease(self) -> tuple[Due, ...]:
        lease_s = self.limits.lease_s
        if self.prefilled is None or lease_s is None:
            return ()
        margin_s = min(self.limits.lease_margin_s, lease_s / 2)
        return (Due(self.prefilled + lease_s - margin_s, Wait.TRANSFER),)

    def _first(self, *dues: Due) -> Due:
        """The earliest; of two at the same time the narrower one, which says more."""
        return min((*dues, self.own), key=_at)

    def __repr__(self) -> str:
        holds = "" if self.prefilled is None else f" | prefilled at {self.prefilled:.3f}"
        return f"<RequestDeadlines [{self.own.wait.value} by {self.answer_by:.3f}{holds}]>"


def _at(due: Due) -> float:
    return due.at
