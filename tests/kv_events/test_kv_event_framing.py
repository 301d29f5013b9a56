"""Frames as vLLM puts them on the wire, today's and yesterday's, and frames that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.kv_events.framing import (
    END,
    BrokenFrames,
    Message,
    live_message,
    replay_request,
    replayed_message,
)

CAPTURED = [
    [bytes.fromhex(frame) for frame in answer]
    for answer in json.loads(Path("tests/wire/vllm_kv_event_frames.json").read_text())
]


def test_a_captured_replay_is_three_batches_and_an_end() -> None:
    answers = [replayed_message(frames) for frames in CAPTURED]
    assert [answer and answer.sequence for answer in answers] == [0, 1, 2, None]
    assert all(answer.payload[0] == 0x93 for answer in answers if answer is not None)


def test_answers_without_a_topic_are_read_alike() -> None:
    for frames in CAPTURED:
        assert replayed_message([frames[0], *frames[2:]]) == replayed_message(frames)


def test_a_live_message_is_topic_number_and_payload() -> None:
    assert live_message([b"kv@a", (2**40).to_bytes(8, "big"), b"payload"]) == Message(2**40, b"payload")
    assert live_message(CAPTURED[1][1:]).sequence == 1


def test_a_request_names_the_first_batch_wanted_behind_an_empty_frame() -> None:
    assert replay_request(258) == (b"", b"\0\0\0\0\0\0\1\2")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"t", b"\0" * 8],
        [b"t", b"\0" * 7, b""],
        [b"t", b"\0" * 9, b""],
        [b"t", END, b""],
        [b"t", (2**63).to_bytes(8, "big"), b""],
        [b"", b"t", b"\0" * 8, b"p"],
    ],
)
def test_what_is_no_live_message_is_broken(frames: list[bytes]) -> None:
    with pytest.raises(BrokenFrames):
        live_message(frames)


@pytest.mark.parametrize(
    "frames", [[], [b""], [END, b""], [b"t", b"\0" * 8, b""], [b"", b"t", b"\0" * 7, b""], [b""] * 5]
)
def test_what_is_no_answer_is_broken(frames: list[bytes]) -> None:
    with pytest.raises(BrokenFrames):
        replayed_message(frames)
