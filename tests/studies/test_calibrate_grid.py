"""Laws of what is measured: within what an engine holds, and so that the terms of a law can be told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.calibrate.fit import fit
from router.studies.calibrate.grid import (
    Effort,
    Room,
    full_sequences,
    ladders,
    operating_sequences,
    prefill_lengths,
    transfer_lengths,
)

ROOMY = Room(context_tokens=32_768, kv_tokens=1_000_000, slots=256)
FULL, QUICK = Effort(), Effort(quick=True)
OUTPUT = 64

rooms = st.builds(
    Room,
    context_tokens=st.none() | st.integers(512, 131_072),
    kv_tokens=st.none() | st.integers(2_048, 2_000_000),
    slots=st.none() | st.integers(1, 1024),
)


def test_the_prefill_curve_goes_from_128_to_8192_and_through_the_prompt_that_targets_are_for() -> None:
    assert prefill_lengths(ROOMY, FULL, 2735) == [128, 256, 512, 1024, 2048, 2735, 4096, 8192]


def test_a_context_of_2048_ends_the_curve_with_room_for_a_token() -> None:
    assert max(prefill_lengths(Room(context_tokens=2048, kv_tokens=100_000), FULL)) == 1024


def test_an_engine_too_small_for_the_grid_is_measured_at_parts_of_its_longest_prompt() -> None:
    assert prefill_lengths(Room(context_tokens=121, kv_tokens=100_000), FULL) == [38, 76, 114]


def test_hand_overs_fit_the_smaller_engine_of_a_pair() -> None:
    small = Room(context_tokens=3000, kv_tokens=100_000)
    assert transfer_lengths((ROOMY, small), FULL) == [256, 1024, 2048]
    assert transfer_lengths((small, ROOMY), QUICK)[-1] <= 2998


def test_the_operating_point_is_among_the_batches() -> None:
    sequences = operating_sequences(ROOMY, 1227, OUTPUT)
    assert sequences == 32
    found = {ladder.context_tokens: ladder.sequences for ladder in ladders(ROOMY, QUICK, OUTPUT, (32, 1227))}
    assert found[1227] == (32,)


def test_few_slots_bound_the_batches_and_the_operating_point() -> None:
    room = Room(context_tokens=8192, kv_tokens=1_000_000, slots=6)
    assert operating_sequences(room, 512, OUTPUT) == 6
    assert {n for ladder in ladders(room, FULL, OUTPUT) for n in ladder.sequences} == {1, 2, 4, 6}
    assert full_sequences(room, 512) == 6


def test_a_full_engine_runs_what_its_kv_holds() -> None:
    assert full_sequences(Room(kv_tokens=60_000, slots=256), 600) == 80
    assert full_sequences(Room(kv_tokens=1_000_000), 600) == 256


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_quick_takes_fewer_of_everything(effort: Effort) -> None:
    assert (effort.repeats, effort.steps) == ((2, 24) if effort.quick else (3, 48))
    batches = sum(len(ladder.sequences) for ladder in ladders(ROOMY, effort, OUTPUT))
    assert batches == (7 if effort.quick else 24)


@given(rooms, st.booleans())
def test_no_batch_exceeds_slots_or_kv_or_context(room: Room, quick: bool) -> None:
    for ladder in ladders(room, Effort(quick=quick), OUTPUT):
        most = max(ladder.sequences)
        assert room.slots is None or most <= room.slots
        assert most * (ladder.context_tokens + OUTPUT) <= room.usable_kv_tokens
        assert room.context_tokens is None or ladder.context_tokens + OUTPUT <= room.context_tokens


@given(rooms, st.booleans())
def test_no_prompt_is_longer_than_the_context(room: Room, quick: bool) -> None:
    lengths = prefill_lengths(room, Effort(quick=quick), 2735)
    assert len(lengths) >= 3
    assert lengths == sorted(set(lengths))
    assert room.context_tokens is None or lengths[-1] < room.context_tokens


@given(rooms.filter(lambda room: room.slots is None or room.slots >= 2))
def test_batches_always_tell_sequences_from_kv(room: Room) -> None:
    points = [(ladder.context_tokens, n) for ladder in ladders(room, QUICK, OUTPUT) for n in ladder.sequences]
    rows = [(1.0, float(n), float(n * context)) for context, n in points]
    assert fit(rows, [0.01 + 1e-4 * n + 1e-7 * n * c for c, n in points]).mean_error < 1e-6
