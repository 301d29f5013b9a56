"""Why a worker's prefixes are not known exactly, in one word: for a metric that an operator can act upon.

Separate because it is pure: the facts are spread over the settings, the listener and the index, and the first
that stands in the way is the one to say.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from router.core.trust import Trust
from router.kv_events.knowledge import Known
from router.kv_events.locate import Place


class Reason(enum.Enum):
    """What stands between a worker and exact knowledge of its prefixes."""

    OFF = "off"
    """kv_events.follow is `never`."""
    SHARED_ADDRESS = "shared_address"
    """Several processes answer at its address."""
    NO_ENDPOINT = "no_endpoint"
    """Nobody wrote down where it publishes, and it does not say."""
    SEVERAL_RANKS = "several_ranks"
    """Its address hides data-parallel ranks, each with a cache of its own."""
    NO_PYZMQ = "no_pyzmq"
    """The extra kv-events is not installed."""
    NOT_CONNECTED = "not_connected"
    """Its publisher was not reached yet."""
    SILENT = "silent"
    """Its events do not arrive at present."""
    NO_ROOM = "no_room"
    """Its blocks do not fit into the index."""
    JOINED_LATE = "joined_late"
    """What it stored before it was listened to, or since events were lost, is not known."""
    NO_TOKENIZER = "no_tokenizer"
    """Its events are complete, and its prompts are text: events confirm and evict, and cannot place."""
    DISAGREES = "disagrees"
    """What its events say and the cached tokens that it reports differ."""


@dataclass(frozen=True, slots=True)
class Facts:
    """About one worker.

    Attributes:
        follows: whether events are followed at all.
        deaf: whether there is nothing to listen with.
        known: how much of its blocks is known, None when it is not followed.
        full: whether there was no room for them.
        text: whether its prompts come as text.
        trust: of such prompts.
    """

    follows: bool
    shared_address: bool
    deaf: bool
    place: Place
    known: Known | None
    full: bool
    text: bool
    trust: Trust


_OF_KNOWN = {
    Known.PARTLY: Reason.JOINED_LATE,
    Known.PARTLY_STALE: Reason.SILENT,
    Known.WHOLLY_STALE: Reason.SILENT,
}


def why_not_exact(facts: Facts) -> Reason | None:
    """The first thing that stands in the way; None when nothing does."""
    if facts.trust is Trust.EXACT:
        return None
    outside = _outside(facts)
    if outside is not None:
        return outside
    if facts.known is None or facts.known is Known.NOTHING:
        return Reason.NO_ROOM if facts.full else Reason.NOT_CONNECTED
    if facts.known in _OF_KNOWN:
        return _OF_KNOWN[facts.known]
    return Reason.NO_TOKENIZER if facts.text else Reason.DISAGREES


def _outside(facts: Facts) -> Reason | None:
    """What keeps it from being listened to at all."""
    if not facts.follows:
        return Reason.OFF
    if facts.shared_address:
        return Reason.SHARED_ADDRESS
    if facts.place is Place.RANKS:
        return Reason.SEVERAL_RANKS
    if facts.place is not Place.FOUND:
        return Reason.NO_ENDPOINT
    return Reason.NO_PYZMQ if facts.deaf else None
