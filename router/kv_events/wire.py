"""The way to engines' event streams, as the listener sees it.

Separate because the listener is all about what is missing and when, which tests tell in virtual time with a
publisher in memory; sockets are one implementation of this.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from router.kv_events.source import EventSource


class WireFailed(Exception):
    """An address cannot be used: it is not one, or somebody else has it. The text says which."""


class Link(enum.Enum):
    """What became of the connection to the publisher."""

    UP = "up"
    """It is there, and what is published from now on arrives."""
    DOWN = "down"
    """It is gone; another one is being tried for."""


Arrival = Link | Sequence[bytes]
"""News of the connection, or the frames of one message."""


class Line(Protocol):
    """One socket. What has arrived and was not asked for yet waits in it, bounded."""

    async def receive(self, until: float) -> Sequence[Arrival]:
        """What has arrived, in order; waits for the first until that time (s). Empty when there is none."""

    def close(self) -> None:
        """Lets go of it at once; harmless when it is closed."""


class Wire(Protocol):
    """Opens lines. Raises WireFailed."""

    def close(self) -> None:
        """Lets go of everything that is still open; harmless when nothing is."""

    def subscribe(self, source: EventSource) -> Line:
        """Messages as they are published. It connects by itself, and again when the connection is lost."""

    def replay(self, source: EventSource, start: int) -> Line:
        """Answers to one request for everything from number `start` on; a line without news of its link."""
