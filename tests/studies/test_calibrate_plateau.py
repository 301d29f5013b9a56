"""Laws of reading the length of a step off streams that ran side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.calibrate.plateau import (
    SETTLING_STEPS,
    StepSample,
    Stream,
    lead_tokens,
    middle_mean,
    read_plateau,
)

STEP_S = 0.01


def stream(
    begins: float, events: int, *, prompt: int = 100, per_event: int = 1, step_s: float = STEP_S
) -> Stream:
    times = tuple(begins + step_s * k for k in range(events))
    return Stream(times, prompt, events * per_event)


def read(*streams: Stream, least: int = 4) -> StepSample:
    found = read_plateau(streams, least)
    assert found is not None
    return found


def test_one_stream_tells_its_own_gaps() -> None:
    found = read(stream(5.0, 25))
    assert found.step_s == pytest.approx(STEP_S)
    assert found.tpot_p50_s == pytest.approx(STEP_S)
    assert found.steps == 24 - SETTLING_STEPS
    assert (found.sequences, found.tokens_per_step) == (1, 1.0)


def test_the_plateau_lasts_from_the_last_beginning_to_the_first_end() -> None:
    """While others are prefilled, steps are longer; after the first end, the batch is smaller."""
    early = Stream(
        tuple([k * 0.1 for k in range(10)] + [1.0 + k * STEP_S for k in range(31)] + [2.0]), 100, 42
    )
    found = read(early, stream(1.0, 31))
    assert found.step_s == pytest.approx(STEP_S)
    assert found.steps == 30 - SETTLING_STEPS


def test_kv_is_prompts_and_what_had_come_in_the_middle() -> None:
    found = read(stream(0.0, 25, prompt=100), stream(0.0, 25, prompt=300))
    middle = (SETTLING_STEPS + 24) / 2 + 1
    assert found.kv_tokens == pytest.approx(100 + 300 + 2 * middle)


def test_speculative_decoding_is_told_apart_from_the_step() -> None:
    found = read_plateau((stream(0.0, 25, per_event=3),), 4, speculates=True)
    assert found is not None
    assert found.step_s == pytest.approx(STEP_S)
    assert found.tokens_per_step == pytest.approx(3.0)
    assert found.tpot_p50_s == pytest.approx(STEP_S / 3)


def test_tokens_that_are_sent_together_are_as_many_steps() -> None:
    """A stream interval of vLLM, or outputs that were merged because the client was slow."""
    found = read(stream(0.0, 25, per_event=3))
    assert found.step_s == pytest.approx(STEP_S / 3)
    assert found.tokens_per_step == 1.0
    assert found.tpot_p50_s == pytest.approx(STEP_S / 3)


def test_streams_that_never_ran_together_say_nothing() -> None:
    assert read_plateau((stream(0.0, 10), stream(1.0, 10)), 1) is None
    assert read_plateau((), 1) is None
    assert read_plateau((Stream((1.0,), 10, 1),), 1) is None


def test_a_plateau_shorter_than_asked_for_says_nothing() -> None:
    assert read_plateau((stream(0.0, 20),), 20) is None


def test_a_stumble_and_what_makes_up_for_it_change_nothing() -> None:
    gaps = [STEP_S] * 20 + [0.5] + [STEP_S / 10] * 3 + [STEP_S] * 20
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    assert read(Stream(tuple(times), 10, len(times))).step_s == pytest.approx(STEP_S)


def test_events_that_arrive_two_by_two_mean_half_of_their_gap() -> None:
    times = tuple(2 * STEP_S * (k // 2) for k in range(60))
    assert read(Stream(times, 10, 60)).step_s == pytest.approx(STEP_S)


def test_events_that_arrive_in_heaps_say_as_much() -> None:
    """A client that reads now and then: most gaps are nothing, and a few are long."""
    times = tuple(10 * STEP_S * (k // 10) for k in range(120))
    found = read(Stream(times, 10, 120), least=30)
    assert found.step_s == pytest.approx(STEP_S)


def test_the_lead_is_what_the_first_had_when_the_last_began() -> None:
    assert lead_tokens((stream(0.0, 20), stream(0.095, 20))) == 10
    assert lead_tokens((stream(0.0, 20, per_event=2), stream(0.095, 20))) == 20
    assert lead_tokens(()) == 0


@given(st.lists(st.floats(0.0, 10.0), min_size=1))
def test_the_middle_mean_lies_within_what_it_is_the_mean_of(values: list[float]) -> None:
    values.sort()
    assert values[0] - 1e-9 <= middle_mean(values) <= values[-1] + 1e-9


@given(
    sequences=st.integers(1, 8),
    stagger=st.floats(0.0, 0.02),
    step_s=st.floats(1e-3, 0.1),
)
def test_streams_of_one_pace_always_tell_that_pace(sequences: int, stagger: float, step_s: float) -> None:
    found = read(*(stream(k * stagger * step_s, 40, step_s=step_s) for k in range(sequences)))
    assert found.step_s == pytest.approx(step_s, rel=1e-6)
    assert found.sequences == sequences
