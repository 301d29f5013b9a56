"""What to do when a leg failed before commit: two tables, and the rules that read them.

Never sent is free to try again. Sent without an answer is tried once more, since the engine may have done the
work. A timeout is not tried again: the next worker would need as long, and the client has waited enough.

Split requests have a table of their own, since they hold something that can be used only once. A decode
engine that has seen a handle may have read it, and the producer then gives its blocks to another prompt: who
reads them again gets that prompt's KV, with status 200. So a handle goes to a second decode worker only when
not a byte of it left for the first; everything else begins again with a prefill.
"""

from __future__ import annotations

import enum

from msgspec import structs

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamClosed, UpstreamError
from router.core.lease import Outcome
from router.core.request import Request
from router.core.roster import Roster


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
    RANK_UNKNOWN = "rank_unknown"
    """400, for the engine has no data-parallel rank of the number that this router gave it."""
    TOO_LONG = "too_long"
    """The prompt is beyond the worker's context, and a larger worker exists."""
    NO_HANDLE = "no_handle"
    """A prefill leg was answered well and brought no handle, or the decode engine knows none of that name."""
    HANDLE_EXPIRED = "handle_expired"
    """The producer's lease on the KV ran out, or would before a decode engine has taken it on."""


OF_A_HANDLE = frozenset({Failure.NO_HANDLE, Failure.HANDLE_EXPIRED})
"""What only a split request can meet."""

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
    Failure.RANK_UNKNOWN: 2,
    Failure.TOO_LONG: 1,
    Failure.NO_HANDLE: 0,
    Failure.HANDLE_EXPIRED: 0,
}
"""Tries of a whole request elsewhere after a failure of this kind. There is no back-off: another worker owes
nothing to it."""

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
    Failure.RANK_UNKNOWN: Outcome.FAILED,
    Failure.TOO_LONG: Outcome.CLIENT_ERROR,
    Failure.NO_HANDLE: Outcome.CANCELLED,
    Failure.HANDLE_EXPIRED: Outcome.CANCELLED,
}
"""What the failure says about the worker, where no exception says it more exactly."""

NOT_TAKEN = frozenset({Failure.NO_ANSWER, Failure.SERVER_ERROR, Failure.FIRST_EVENT_ERROR, Failure.TIMEOUT})
"""Failures of a decode leg after which the KV is taken for not handed over: whose fault that is shows only
with others. A decode engine that refuses a request in so many words has told the producer."""


class Leg(enum.Enum):
    """Which half of a split request failed."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    PREFILL = "prefill"
    DECODE = "decode"


class Again(enum.Enum):
    """What a split request does after a failure before commit."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    GIVE_UP = "give_up"
    """The client gets the failure."""
    OTHER_WORKER = "other_worker"
    """The same leg at another worker; a handle that is held stays good for it, within its lease."""
    NEW_PREFILL = "new_prefill"
    """From the start, at other workers, with a new handle, room and ids; the old handle is dropped."""


_GIVE_UP = (Again.GIVE_UP, 0)
_ELSEWHERE = {leg: {Failure.NEVER_SENT: (Again.OTHER_WORKER, 2)} for leg in Leg}
# A prefill worker that refuses a request has made no handle; a decode worker was shown one.
_ELSEWHERE[Leg.PREFILL] |= {
    Failure.MODEL_UNKNOWN: (Again.OTHER_WORKER, 1),
    Failure.RANK_UNKNOWN: (Again.OTHER_WORKER, 2),
    Failure.TOO_LONG: (Again.OTHER_WORKER, 1),
}
_FINAL = frozenset({Failure.REFUSED_BY_ENGINE, Failure.KEY_REFUSED})

SPLIT_TRIES: dict[tuple[Leg, Failure], tuple[Again, int]] = {
    (leg, failure): _GIVE_UP if failure in _FINAL else _ELSEWHERE[leg].get(failure, (Again.NEW_PREFILL, 1))
    for leg in Leg
    for failure in Failure
}
"""What a split request does after a leg failed so, and how often. There is one new prefill in all, whatever
failed; the tries at another worker are counted by leg and kind. A timeout here is the leg's own: when the
time of the whole request is over, there is none left for another leg."""


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


def elsewhere(request: Request, failure: Failure, worker: str, roster: Roster) -> Request:
    """The same request for other workers of this roster than the one that failed, and than those that would
    fail alike."""
    avoid = request.avoid | {worker}
    if failure is Failure.TOO_LONG:
        avoid |= roster.no_longer_than(worker, request.model)
    return structs.replace(request, attempt=request.attempt + 1, avoid=avoid)


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


class SplitTries:
    """The tries of one split request so far."""

    __slots__ = ("_elsewhere", "allowed", "new_prefills")

    def __init__(self, *, allowed: int | None = None) -> None:
        """`allowed` caps the sum over both legs and all kinds; 0 never tries again."""
        self.allowed = allowed
        self.new_prefills = 0
        self._elsewhere: dict[tuple[Leg, Failure], int] = {}

    @property
    def made(self) -> int:
        return self.new_prefills + sum(self._elsewhere.values())

    def after(self, leg: Leg, failure: Failure) -> Again:
        """What to do now that this leg failed so; counts the try unless it is none."""
        again, tries = SPLIT_TRIES[leg, failure]
        used = self.new_prefills if again is Again.NEW_PREFILL else self._elsewhere.get((leg, failure), 0)
        if used >= tries or (self.allowed is not None and self.made >= self.allowed):
            return Again.GIVE_UP
        if again is Again.NEW_PREFILL:
            self.new_prefills += 1
        else:
            self._elsewhere[leg, failure] = used + 1
        return again

    def __repr__(self) -> str:
        allowed = "" if self.allowed is None else f" of {self.allowed}"
        return f"<SplitTries [{self.made}{allowed} made | {self.new_prefills} new prefills]>"
