"""How far the prefix index may be relied upon for a worker, as a table, with the figures behind its signals.

Separate from the index because the index only counts: whether the engine's word is complete, whether beliefs
come true, and what follows from it, is decided here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from router.core.prefix_error import PrefixError


class Trust(enum.Enum):
    """The rungs of the ladder, best first."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    EXACT = "exact"
    """The engine's events are followed without a gap: blocks are held because it said so."""
    APPROXIMATE = "approximate"
    """Our own dispatches say what it should hold, with LRU in its capacity."""
    LOAD_ONLY = "load_only"
    """Neither came true: the worker counts as holding nothing, and is judged by load alone."""


class TrustSignal(enum.Enum):
    """What was learned about our knowledge of a worker."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    COMPLETE = "complete"
    """Its events are known from its first one, or since it forgot everything, and none is missing."""
    SILENT = "silent"
    """Its events do not arrive at present."""
    LOST = "lost"
    """Events are gone for good, or could not be taken in."""
    EVENTS_RIGHT = "events_right"
    """What its events say agrees with the cached tokens it reports."""
    EVENTS_WRONG = "events_wrong"
    BELIEFS_RIGHT = "beliefs_right"
    """It reports cached tokens about where our dispatches let us expect them."""
    BELIEFS_WRONG = "beliefs_wrong"


_EXACT, _APPROXIMATE, _LOAD_ONLY = Trust.EXACT, Trust.APPROXIMATE, Trust.LOAD_ONLY

TRUST: dict[tuple[Trust, TrustSignal], Trust] = {
    **{(trust, TrustSignal.COMPLETE): _EXACT for trust in Trust},
    **{(trust, TrustSignal.EVENTS_RIGHT): _EXACT for trust in Trust},
    (_EXACT, TrustSignal.SILENT): _APPROXIMATE,
    (_EXACT, TrustSignal.LOST): _APPROXIMATE,
    (_EXACT, TrustSignal.EVENTS_WRONG): _APPROXIMATE,
    (_EXACT, TrustSignal.BELIEFS_RIGHT): _EXACT,
    (_EXACT, TrustSignal.BELIEFS_WRONG): _EXACT,
    (_APPROXIMATE, TrustSignal.SILENT): _APPROXIMATE,
    (_APPROXIMATE, TrustSignal.LOST): _APPROXIMATE,
    (_APPROXIMATE, TrustSignal.EVENTS_WRONG): _APPROXIMATE,
    (_APPROXIMATE, TrustSignal.BELIEFS_RIGHT): _APPROXIMATE,
    (_APPROXIMATE, TrustSignal.BELIEFS_WRONG): _LOAD_ONLY,
    (_LOAD_ONLY, TrustSignal.SILENT): _LOAD_ONLY,
    (_LOAD_ONLY, TrustSignal.LOST): _LOAD_ONLY,
    (_LOAD_ONLY, TrustSignal.EVENTS_WRONG): _LOAD_ONLY,
    (_LOAD_ONLY, TrustSignal.BELIEFS_RIGHT): _APPROXIMATE,
    (_LOAD_ONLY, TrustSignal.BELIEFS_WRONG): _LOAD_ONLY,
}


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """When figures become signals. Shares are of the prompt, between what was expected and what was reported.

    Attributes:
        min_samples: finished requests before any figure counts.
        events_right: events agree when the mean difference is at most this, a block in a short prompt.
        events_wrong: and disagree from here on. The space between keeps the worker where it is.
        beliefs_right, beliefs_wrong: the same for the share that was expected and not there. A prompt that
            was cached unexpectedly costs nothing and is no reason for distrust.
    """

    min_samples: int = 20
    events_right: float = 0.05
    events_wrong: float = 0.15
    beliefs_right: float = 0.10
    beliefs_wrong: float = 0.25


def events_signal(error: PrefixError, settings: TrustSettings) -> TrustSignal | None:
    """What the figures of the engine's events say, None while they say nothing clear."""
    if error.samples < settings.min_samples:
        return None
    if error.error <= settings.events_right:
        return TrustSignal.EVENTS_RIGHT
    return TrustSignal.EVENTS_WRONG if error.error >= settings.events_wrong else None


def beliefs_signal(error: PrefixError, settings: TrustSettings) -> TrustSignal | None:
    """What the figures of our own beliefs say, None while they say nothing clear."""
    if error.samples < settings.min_samples:
        return None
    if error.overclaim <= settings.beliefs_right:
        return TrustSignal.BELIEFS_RIGHT
    return TrustSignal.BELIEFS_WRONG if error.overclaim >= settings.beliefs_wrong else None
