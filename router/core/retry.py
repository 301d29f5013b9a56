"""What to do when a leg failed before commit: one table, and the rule that reads it.

Never sent is free to try again. Sent without an answer is tried once more, since the engine may have done the
work. A timeout is not tried again: the next worker would need as long, and the client has waited enough.
"""

from __future__ import annotations

import enum

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamClosed, UpstreamError
from router.core.lease import Outcome


class Failure(enum.Enum):
    """How a leg failed before anything was committed to the client."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    NEVER_SENT = "never_sent"
    NO_ANSWER = "no_answer"
    """Sent; reset or closed without an answer, or cut before commit."""
    SERVER_ERROR = "server_error"
    """The engine answered 500 or 502."""
    BUSY = "busy"
    """The engine answered 503 or 429: it is full."""
    FIRST_EVENT_ERROR = "first_event_error"
    """A 200 stream whose first event is an error with a 5xx code."""
    TIMEOUT = "timeout"
    """A deadline ran out, or the engine answered 504."""
    REFUSED_BY_ENGINE = "refused_by_engine"
    """Another 4xx: the client's to read."""
    KEY_REFUSED = "key_refused"
    """401 or 403 on the router's own key: the operator's fault, not the client's."""
    MODEL_UNKNOWN = "model_unknown"
    """404 for a model that the worker was believed to serve."""
    TOO_LONG = "too_long"
    """The prompt is beyond the worker's context, and a larger worker exists."""


TRIES: dict[Failure, int] = {
    Failure.NEVER_SENT: 2,
    Failure.NO_ANSWER: 1,
    Failure.SERVER_ERROR: 1,
    Failure.BUSY: 1,
    Failure.FIRST_EVENT_ERROR: 1,
    Failure.TIMEOUT: 0,
    Failure.REFUSED_BY_ENGINE: 0,
    Failure.KEY_REFUSED: 0,
    Failure.MODEL_UNKNOWN: 1,
    Failure.TOO_LONG: 1,
}
"""Tries elsewhere after a failure of this kind. There is no back-off: another worker owes nothing to it."""

SENT_IN_VAIN = frozenset({Failure.NO_ANSWER, Failure.SERVER_ERROR, Failure.BUSY})
"""Sent, and nothing came of it: one try for all of them together, however they alternate. Otherwise a body
that breaks engines in different ways would be worked on by four of them."""

OUTCOMES: dict[Failure, Outcome] = {
    Failure.NEVER_SENT: Outcome.UNREACHABLE,
    Failure.NO_ANSWER: Outcome.FAILED,
    Failure.SERVER_ERROR: Outcome.FAILED,
    Failure.BUSY: Outcome.BUSY,
    Failure.FIRST_EVENT_ERROR: Outcome.FAILED,
    Failure.TIMEOUT: Outcome.TIMEOUT,
    Failure.REFUSED_BY_ENGINE: Outcome.CLIENT_ERROR,
    Failure.KEY_REFUSED: Outcome.CLIENT_ERROR,
    Failure.MODEL_UNKNOWN: Outcome.CLIENT_ERROR,
    Failure.TOO_LONG: Outcome.CLIENT_ERROR,
}
"""What the failure says about the worker, where no exception says it more exactly."""


def failure_of_error(error: UpstreamError) -> Failure:
    """The kind of a failed exchange."""
    if isinstance(error, DeadlineExceeded):
        return Failure.TIMEOUT if error.sent else Failure.NEVER_SENT
    if isinstance(error, ConnectFailed) or (isinstance(error, UpstreamClosed) and not error.sent):
        return Failure.NEVER_SENT
    return Failure.NO_ANSWER


def failure_of_status(status: int) -> Failure | None:
    """The kind of an answered status, None when it is no failure. Finer 4xx cases are the caller's to see."""
    if status < 400:
        return None
    if status in (429, 503):
        return Failure.BUSY
    if status == 504:
        return Failure.TIMEOUT
    return Failure.SERVER_ERROR if status >= 500 else Failure.REFUSED_BY_ENGINE


class Tries:
    """The tries of one request so far, per kind of failure; the kinds of `SENT_IN_VAIN` count as one."""

    __slots__ = ("_by_kind", "allowed")

    def __init__(self, *, allowed: int | None = None) -> None:
        """`allowed` caps the sum over all kinds; 0 never tries again."""
        self.allowed = allowed
        self._by_kind: dict[Failure, int] = {}

    @property
    def made(self) -> int:
        return sum(self._by_kind.values())

    def another(self, failure: Failure) -> bool:
        """Whether this failure may be tried elsewhere; counts the try when it may."""
        kind = Failure.NO_ANSWER if failure in SENT_IN_VAIN else failure
        used = self._by_kind.get(kind, 0)
        if used >= TRIES[failure] or (self.allowed is not None and self.made >= self.allowed):
            return False
        self._by_kind[kind] = used + 1
        return True

    def __repr__(self) -> str:
        allowed = "" if self.allowed is None else f" of {self.allowed}"
        return f"<Tries [{self.made}{allowed} made]>"
