"""How much the router holds at once. Everything it queues or buffers has its bound here.

Separate from the deadlines: a limit refuses at the door, a deadline ends what was let in.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from router.settings.section import Bytes, Seconds, Section

MAX_IN_FLIGHT: Final = 10_000
"""Most requests in flight of one process, whatever the limit of open files allows."""
_FILES_PER_REQUEST: Final = 3  # a client socket, a worker socket, and one to spare
_FILES_RESERVED: Final = 256  # listeners, logs, scrapes, probes


class LimitSettings(Section):
    """Bounds on requests, bodies and buffers."""

    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests in flight at most, a hard limit held to the last byte. null: a third of the open files the
    process may have, less 256, and at most 10,000."""
    queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    """Requests of one model that may wait; 0 refuses at once what cannot start at once."""
    queue_bytes: Bytes = 256 * 2**20
    """Request bodies of one model that may wait."""
    queue_timeout_s: Seconds = 30.0
    """Longest wait in the queue, then 429."""
    handover_releases_per_s: Annotated[float, Field(gt=0, le=10_000)] = 20.0
    """Hand-overs that nobody wants any more, of clients that left, given back to their prefill worker by a
    request of its own; others wait their turn, or for the end of their lease."""
    body_bytes: Bytes = 64 * 2**20
    """Largest JSON body, counted after gzip or zstd is undone."""
    buffered_bytes: Bytes = 2**30
    """Request bodies held in memory in all, then 503."""
    multipart_bytes: Bytes = 512 * 2**20
    """Largest multipart body; it is streamed, never buffered, and so never retried."""
    stream_buffer_bytes: Bytes = 256 * 2**10
    """Bytes held for a slow client before reading from its worker pauses."""

    def in_flight_bound(self, open_files: int) -> int:
        """Requests in flight at most, when the process may have `open_files` files open.

        Returns:
            The configured limit, else min(10,000, (open_files - 256) / 3), and never less than 1.
        """
        if self.max_in_flight is not None:
            return self.max_in_flight
        return max(1, min(MAX_IN_FLIGHT, (open_files - _FILES_RESERVED) // _FILES_PER_REQUEST))

    def connections_bound(self, open_files: int) -> int:
        """Client connections at most, idle or not, when the process may have `open_files` files open.

        What is left over is for the connections to workers, for probes and for operators: whoever only opens
        connections must not cut the router off from its workers. Never less than half of what there is.
        """
        free = max(open_files - _FILES_RESERVED, 2)
        return max(free - self.in_flight_bound(open_files), free // 2)
