"""A guard against a request that kills the engines it is sent to.

A body that crashes an engine crashes the next one too when it is tried there, and its client's library sends
it once more. When two workers were lost while they served the same body, that body is refused for a while.
Off by default: it is a guess about cause and effect.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

_MAX_BODIES = 1024
_MAX_VICTIMS = 8


@dataclass(slots=True)
class _Suspicion:
    """Workers whose answer to one body broke, with their incarnation, and those of them found lost since."""

    broken: dict[tuple[str, int], float] = field(default_factory=dict)
    lost: set[tuple[str, int]] = field(default_factory=set)
    until: float = 0.0


class PoisonGuard:
    """Remembers broken answers by the digest of their body, and connects them with lost workers.

    State: at most a bounded number of bodies, the oldest forgotten first.

    Args:
        hold_s: how long a body is refused, and how long after a broken answer the loss of its worker counts.
        victims: workers that must have been lost.
    """

    def __init__(self, *, hold_s: float = 60.0, victims: int = 2) -> None:
        self._hold_s = hold_s
        self._victims = victims
        self._bodies: OrderedDict[bytes, _Suspicion] = OrderedDict()

    def refuses(self, body: bytes, now: float) -> bool:
        """Whether this body is refused now."""
        found = self._bodies.get(_digest(body)) if self._bodies else None
        return found is not None and now < found.until

    def broke(self, body: bytes, worker: str, incarnation: int, now: float) -> None:
        """The answer of this worker to this body broke off."""
        digest = _digest(body)
        suspicion = self._bodies.setdefault(digest, _Suspicion())
        self._bodies.move_to_end(digest)
        if len(self._bodies) > _MAX_BODIES:
            self._bodies.popitem(last=False)
        if len(suspicion.broken) < _MAX_VICTIMS:
            suspicion.broken[worker, incarnation] = now

    def lost(self, worker: str, now: float) -> None:
        """This worker refuses connections, or was born anew: the process that it was is gone."""
        for suspicion in self._bodies.values():
            for victim, since in suspicion.broken.items():
                if victim[0] == worker and now - since <= self._hold_s:
                    suspicion.lost.add(victim)
            if len(suspicion.lost) >= self._victims:
                suspicion.until = now + self._hold_s
                suspicion.broken.clear()
                suspicion.lost.clear()

    def __repr__(self) -> str:
        return f"<PoisonGuard [{len(self._bodies)} suspected bodies]>"


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
