"""Bounds of the listeners of KV events. Separate because listener, replay and socket all read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvEventsSettings:
    """Times in seconds, bounds per worker.

    Attributes:
        quiet_s: after so long without a message the engine's replay is asked whether there was really none.
        redial_s: a connection that does not come about, or back, is tried for on a new socket after so long:
            some errors end a socket's connection for good.
        answer_s: the first answer of a replay comes within.
        next_answer_s: and each further one within; engines send them in one go.
        replay_s: a whole replay is done within.
        resync_min_s, resync_max_s: between two attempts to get a whole record back; each waits twice as long
            as the one before.
        look_s: between two looks for where a worker publishes, while it does not say.
        queue_messages: waiting in the live socket; what is more waits in the engine's, which is asked to
            replay what it could not keep.
        max_message_bytes: a larger batch is dropped unread, and one of four times that ends the connection
            before it is in memory. A step of 64,000 tokens takes some 0.4 MB.
        slice_blocks: taken in between two turns of the event loop.
    """

    quiet_s: float = 30.0
    redial_s: float = 5.0
    answer_s: float = 2.0
    next_answer_s: float = 0.5
    replay_s: float = 60.0
    resync_min_s: float = 30.0
    resync_max_s: float = 600.0
    look_s: float = 60.0
    queue_messages: int = 1_000
    max_message_bytes: int = 4 * 2**20
    slice_blocks: int = 128
