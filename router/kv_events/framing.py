"""The frames around KV events, live and replayed.

Separate from what is inside them because the frames alone tell whether something is missing. Live messages
have three frames: topic, sequence number, payload; numbers count from 0 in each engine process. Answers to a
replay request come behind an empty delimiter, with the topic since vLLM 0.26 and without it before, and in
SGLang; a marker in place of a number ends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SEQUENCE_BYTES = 8
END = b"\xff" * SEQUENCE_BYTES
"""Stands where the sequence number would, after the last replayed batch."""


class BrokenFrames(Exception):
    """These frames are no message of a KV event stream."""


class Message(NamedTuple):
    """One batch as it came.

    Attributes:
        sequence: its number in the life of the engine process.
        payload: encoded events.
    """

    sequence: int
    payload: bytes


def live_message(frames: Sequence[bytes]) -> Message:
    """A published message. Raises BrokenFrames."""
    if len(frames) != 3:
        raise BrokenFrames(f"a live message has 3 frames, this one {len(frames)}")
    _topic, sequence, payload = frames
    return Message(_number(sequence), payload)


def replay_request(start: int) -> tuple[bytes, bytes]:
    """Asks for every batch that is still kept from number `start` on."""
    return b"", start.to_bytes(SEQUENCE_BYTES, "big")


def replayed_message(frames: Sequence[bytes]) -> Message | None:
    """An answer to a replay request, None for the end of all answers. Raises BrokenFrames."""
    if len(frames) not in (3, 4) or frames[0]:
        raise BrokenFrames("an answer has an empty frame, perhaps a topic, a number and a payload")
    sequence, payload = frames[-2:]
    return None if sequence == END else Message(_number(sequence), payload)


def _number(frame: bytes) -> int:
    """Engines write it signed; all that is below 0 is a marker, as END, or nonsense."""
    number = int.from_bytes(frame, "big", signed=True)
    if len(frame) != SEQUENCE_BYTES or number < 0:
        raise BrokenFrames(f"{frame[:16]!r} is no sequence number")
    return number
