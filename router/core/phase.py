"""The life of one request as a table.

An aggregated request skips POOLED and TRANSFERRING: the worker that prefills it decodes it. Cancellation,
expiry and failure can arrive in every phase that is not final. A step that is not in the table is a bug of
the router, and says so.
"""

from __future__ import annotations

import enum

from router.core.errors import InternalError


class Phase(enum.Enum):
    """Where a request is. The last four are final."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    RECEIVED = "received"
    QUEUED = "queued"
    PREFILLING = "prefilling"
    POOLED = "pooled"
    TRANSFERRING = "transferring"
    DECODING = "decoding"
    DONE = "done"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


class Step(enum.Enum):
    """What moves a request on."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    SUBMIT = "submit"
    ASSIGN = "assign"
    PREFILLED = "prefilled"
    """The prefill leg answered with a handle (disaggregated only)."""
    FIRST_EVENT = "first_event"
    """The first data event, or the whole non-streamed body: the moment of commit."""
    FINISH = "finish"
    RETURNED = "returned"
    """A decode worker took no connection; the handle was shown to nobody and waits for another one."""
    RETRY = "retry"
    """A leg failed before commit; the request is placed again."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    FAIL = "fail"


FINAL = frozenset({Phase.DONE, Phase.CANCELLED, Phase.EXPIRED, Phase.FAILED})

_FORWARD: dict[tuple[Phase, Step], Phase] = {
    (Phase.RECEIVED, Step.SUBMIT): Phase.QUEUED,
    (Phase.QUEUED, Step.ASSIGN): Phase.PREFILLING,
    (Phase.PREFILLING, Step.FIRST_EVENT): Phase.DECODING,
    (Phase.PREFILLING, Step.PREFILLED): Phase.POOLED,
    (Phase.PREFILLING, Step.RETRY): Phase.RECEIVED,
    (Phase.POOLED, Step.ASSIGN): Phase.TRANSFERRING,
    (Phase.POOLED, Step.RETRY): Phase.RECEIVED,
    (Phase.TRANSFERRING, Step.FIRST_EVENT): Phase.DECODING,
    (Phase.TRANSFERRING, Step.RETURNED): Phase.POOLED,
    (Phase.TRANSFERRING, Step.RETRY): Phase.RECEIVED,
    (Phase.DECODING, Step.FINISH): Phase.DONE,
}
_ENDINGS = {Step.CANCEL: Phase.CANCELLED, Step.EXPIRE: Phase.EXPIRED, Step.FAIL: Phase.FAILED}

PHASES: dict[tuple[Phase, Step], Phase] = _FORWARD | {
    (phase, step): end for phase in Phase if phase not in FINAL for step, end in _ENDINGS.items()
}


def advance(phase: Phase, step: Step) -> Phase:
    """The phase after `step`. Raises InternalError for a step that the table does not allow."""
    try:
        return PHASES[phase, step]
    except KeyError:
        raise InternalError(f"a request that is {phase.value} cannot {step.value}") from None
