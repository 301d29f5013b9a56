"""Whether a worker may be chosen, as a table, with the counts that lead to its events.

Facts come from probes, from the outcomes of requests and from progress. The share rule (at least half of a
pool stays in rotation) needs the whole pool and lives in the roster.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from router.core.errors import InternalError


class State(enum.Enum):
    """READY is the only state that is eligible for new requests."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    """Work in flight and no progress: keeps its streams, gets no new ones."""
    EJECTED = "ejected"
    ASLEEP = "asleep"
    DRAINING = "draining"
    GONE = "gone"


class Sign(enum.Enum):
    """What was learned about a worker."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    GOOD = "good"
    """A probe was answered well."""
    BAD = "bad"
    """Probes or requests failed often enough."""
    REFUSED = "refused"
    """Its port refuses connections."""
    STALLED = "stalled"
    PROGRESS = "progress"
    SLEEP = "sleep"
    WAKE = "wake"
    DRAIN = "drain"
    RESUME = "resume"
    REMOVE = "remove"


_STAYS = {
    (State.STARTING, Sign.STALLED),
    (State.STARTING, Sign.PROGRESS),
    (State.STARTING, Sign.WAKE),
    (State.READY, Sign.GOOD),
    (State.READY, Sign.PROGRESS),
    (State.READY, Sign.WAKE),
    (State.SUSPECT, Sign.GOOD),
    (State.SUSPECT, Sign.STALLED),
    (State.SUSPECT, Sign.WAKE),
    (State.EJECTED, Sign.BAD),
    (State.EJECTED, Sign.REFUSED),
    (State.EJECTED, Sign.STALLED),
    (State.EJECTED, Sign.PROGRESS),
    (State.EJECTED, Sign.WAKE),
    (State.ASLEEP, Sign.GOOD),
    (State.ASLEEP, Sign.SLEEP),
    (State.ASLEEP, Sign.STALLED),
    (State.ASLEEP, Sign.PROGRESS),
}
_MOVES = {
    (State.STARTING, Sign.GOOD): State.READY,
    (State.READY, Sign.STALLED): State.SUSPECT,
    (State.SUSPECT, Sign.PROGRESS): State.READY,
    (State.EJECTED, Sign.GOOD): State.READY,
    (State.ASLEEP, Sign.WAKE): State.READY,
    (State.ASLEEP, Sign.BAD): State.EJECTED,
    (State.ASLEEP, Sign.REFUSED): State.EJECTED,
    (State.DRAINING, Sign.RESUME): State.STARTING,
}
_FALLS = {
    (state, sign): State.EJECTED
    for state in (State.STARTING, State.READY, State.SUSPECT)
    for sign in (Sign.BAD, Sign.REFUSED)
}
_SLEEPS = {
    (state, Sign.SLEEP): State.ASLEEP for state in (State.STARTING, State.READY, State.SUSPECT, State.EJECTED)
}
_IN_ROTATION = (State.STARTING, State.READY, State.SUSPECT, State.EJECTED, State.ASLEEP)

HEALTH: dict[tuple[State, Sign], State] = (
    {(state, sign): state for state, sign in _STAYS}
    | _MOVES
    | _FALLS
    | _SLEEPS
    | {(state, Sign.DRAIN): State.DRAINING for state in (*_IN_ROTATION, State.DRAINING)}
    | {(state, Sign.RESUME): state for state in _IN_ROTATION}
    | {(State.DRAINING, sign): State.DRAINING for sign in Sign if sign not in (Sign.RESUME, Sign.REMOVE)}
    | {(state, Sign.REMOVE): State.GONE for state in State}
    | {(State.GONE, sign): State.GONE for sign in Sign}
)


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When counts become signs.

    Attributes:
        probe_timeouts: probes in a row that time out before a worker is out.
        failures: requests in a row that fail before a worker is out; one is enough while it warms up.
        warmup_s: how long a worker that came back carries an extra cost.
    """

    probe_timeouts: int = 3
    failures: int = 3
    warmup_s: float = 45.0


@dataclass(slots=True)
class Health:
    """State of one worker. `take` is the only way it changes."""

    settings: HealthSettings = field(default_factory=HealthSettings)
    state: State = State.STARTING
    reason: str = "not probed yet"
    since: float = 0.0
    timeouts: int = 0
    failures: int = 0
    refuses: bool = False
    """Whether its port was last seen refusing, whatever the state is called."""
    returned: float | None = None
    """When it last came back into rotation; None for one that never left it."""
    slept: bool = False
    """It fell asleep and was not in rotation since: the KV that it had is gone."""

    def take(self, sign: Sign, now: float, reason: str = "") -> bool:
        """Applies a sign; True when the state changed. Raises InternalError for one the table lacks."""
        try:
            after = HEALTH[self.state, sign]
        except KeyError:
            raise InternalError(f"a {self.state.value} worker cannot take {sign.value}") from None
        before, self.state = self.state, after
        if after is before:
            return False
        self.slept = self.slept or after is State.ASLEEP
        if after is State.READY:
            self.timeouts = self.failures = 0
            if before in (State.EJECTED, State.ASLEEP):
                self.returned = now
        self.since, self.reason = now, reason or sign.value
        return True

    def probe_timed_out(self) -> bool:
        """Counts a probe without an answer; True when it was one too many."""
        self.timeouts += 1
        return self.timeouts >= self.settings.probe_timeouts

    def request_failed(self, now: float) -> bool:
        """Counts a failed request; True when it was one too many."""
        self.failures += 1
        return self.failures >= (1 if self.warming(now) else self.settings.failures)

    def request_succeeded(self) -> None:
        self.failures = 0

    def warming(self, now: float) -> bool:
        return self.returned is not None and now - self.returned < self.settings.warmup_s

    def warmup(self, now: float) -> float:
        """Load factor: 2.0 on return (half the share), falling to 1.0 after `warmup_s`."""
        if self.returned is None:
            return 1.0
        share = 0.5 + 0.5 * min((now - self.returned) / self.settings.warmup_s, 1.0)
        return 1.0 / share
