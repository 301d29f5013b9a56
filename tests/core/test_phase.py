"""Laws of a request's life: the whole table."""

from __future__ import annotations

import itertools

import pytest

from router.core.errors import InternalError
from router.core.phase import FINAL, PHASES, Phase, Step, advance

_FORWARD = {
    ("received", "submit"): "queued",
    ("queued", "assign"): "prefilling",
    ("prefilling", "first_event"): "decoding",
    ("prefilling", "prefilled"): "pooled",
    ("prefilling", "retry"): "received",
    ("pooled", "assign"): "transferring",
    ("pooled", "retry"): "received",
    ("transferring", "first_event"): "decoding",
    ("transferring", "retry"): "received",
    ("transferring", "returned"): "pooled",
    ("decoding", "finish"): "done",
}
_ENDINGS = {"cancel": "cancelled", "expire": "expired", "fail": "failed"}


def _expected(phase: Phase, step: Step) -> Phase | None:
    if phase in FINAL:
        return None
    after = _FORWARD.get((phase.value, step.value)) or _ENDINGS.get(step.value)
    return Phase(after) if after is not None else None


@pytest.mark.parametrize(("phase", "step"), list(itertools.product(Phase, Step)))
def test_every_step_leads_every_phase_where_the_table_says(phase: Phase, step: Step) -> None:
    expected = _expected(phase, step)
    if expected is None:
        with pytest.raises(InternalError, match=f"{phase.value} cannot {step.value}"):
            advance(phase, step)
    else:
        assert advance(phase, step) is expected


def test_every_phase_can_be_reached_and_every_one_ends() -> None:
    reached = {Phase.RECEIVED} | set(PHASES.values())
    assert reached == set(Phase)
    assert {phase for phase, _ in PHASES} == set(Phase) - FINAL


def test_nothing_is_tried_again_after_commit() -> None:
    assert (Phase.DECODING, Step.RETRY) not in PHASES


def test_the_aggregated_and_the_disaggregated_way_both_end_well() -> None:
    for story in (
        (Step.SUBMIT, Step.ASSIGN, Step.FIRST_EVENT, Step.FINISH),
        (Step.SUBMIT, Step.ASSIGN, Step.PREFILLED, Step.ASSIGN, Step.FIRST_EVENT, Step.FINISH),
        (Step.SUBMIT, Step.ASSIGN, Step.RETRY, Step.SUBMIT, Step.ASSIGN, Step.FIRST_EVENT, Step.FINISH),
    ):
        phase = Phase.RECEIVED
        for step in story:
            phase = advance(phase, step)
        assert phase is Phase.DONE
