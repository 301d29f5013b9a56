"""The knobs of the data path, with the reason for each default.

Separate because client, idle connections and wire share them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Times in seconds, sizes in bytes.

    Attributes:
        idle_s: a connection unused for longer is never used again; 2 s below the 5 s after which
            uvicorn, and so vLLM and SGLang, close theirs.
        max_idle_per_origin, max_idle: connections kept for reuse; a further one is closed.
        dials_at_once: connections to one origin under way at a time; others wait their turn, within the
            request's own deadline. Half the backlog that small servers have.
        stale_s: a reused connection that closes unanswered within this time of the request was closing
            already when the request left; later, the worker has seen it. One connect deadline long.
        write_stall_s: the worker must take some of the request within this time.
        read_ahead_bytes: buffered per answer before reading is paused.
        one_write_bytes: a body up to this size leaves in one write with its head; a larger one leaves in
            pieces of this size, so that an early answer stops the rest.
        close_s: how long `aclose` waits for sockets to go.
    """

    idle_s: float = 3.0
    max_idle_per_origin: int = 256
    max_idle: int = 4_096
    dials_at_once: int = 64
    stale_s: float = 1.0
    write_stall_s: float = 30.0
    read_ahead_bytes: int = 65_536
    one_write_bytes: int = 262_144
    close_s: float = 2.0
