"""What happened on one worker's event stream, as plain numbers.

Separate from telemetry, which gives them names and help texts: the listener only counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KvEventCounters:
    """Of one worker since it was registered; all of them only grow, but `up`.

    Attributes:
        up: whether the connection to the publisher is there.
        batches: taken in, live and replayed.
        replayed: of these, replayed.
        blocks_stored, blocks_removed: that the index was told of.
        cleared: times that the engine forgot everything.
        ignored: events of blocks elsewhere than on the GPU, or of layers that see only a part of a prompt.
        unknown: events of types that this router does not know.
        orphans: stored events whose parent is not known.
        broken: messages and events that could not be read.
        oversized: batches that were dropped unread, for their size.
        foreign: batches of another data-parallel rank.
        duplicates: batches that had been taken already.
        gaps, missed: times that batches were missing, and how many batches that were.
        filled: of the missed ones, those that a replay brought.
        replays, replays_failed: requests for a replay, and those of them that were not served to the end.
        restarts: times that the engine counted anew.
        lost: times that the record of its blocks had to be given up.
        full: of these, for lack of room in the index.
        disconnects: times that the connection was lost.
    """

    up: bool = False
    batches: int = 0
    replayed: int = 0
    blocks_stored: int = 0
    blocks_removed: int = 0
    cleared: int = 0
    ignored: int = 0
    unknown: int = 0
    orphans: int = 0
    broken: int = 0
    oversized: int = 0
    foreign: int = 0
    duplicates: int = 0
    gaps: int = 0
    missed: int = 0
    filled: int = 0
    replays: int = 0
    replays_failed: int = 0
    restarts: int = 0
    lost: int = 0
    full: int = 0
    disconnects: int = 0
