"""Laws of what is known about a worker's coefficients."""

from __future__ import annotations

import pytest

from router.core.calibration import Calibration, CalibrationState, StepErrors
from router.core.roster import Roster
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Worker

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)
TRANSFERS = {"p": TransferModel(0.001, 1e-6)}


def _roster() -> Roster:
    roster = Roster()
    roster.add(Worker(name="w"), 0.0)
    return roster


def test_a_worker_is_uncalibrated_until_somebody_says_more() -> None:
    worker = Worker(name="w")
    assert worker.calibration == Calibration()
    assert worker.calibration.state is CalibrationState.UNCALIBRATED
    assert worker.step is None
    assert worker.calibration.age_s(5.0) is None


def test_coefficients_of_a_file_are_relied_on_at_once() -> None:
    roster = _roster()
    errors = StepErrors(step_base_s=1e-3)
    roster.calibrate("w", STEP, TRANSFERS, "calibration.yaml", errors)
    worker = roster.workers["w"]
    assert worker.step is STEP
    assert worker.transfers == TRANSFERS
    assert worker.calibration.state is CalibrationState.FILE
    assert (worker.calibration.source, worker.calibration.errors) == ("calibration.yaml", errors)


def test_coefficients_can_be_withdrawn() -> None:
    roster = _roster()
    roster.calibrate("w", STEP, TRANSFERS, "calibration.yaml")
    roster.calibrate("w", None, {}, "admin")
    worker = roster.workers["w"]
    assert worker.step is None
    assert worker.transfers == {}
    assert worker.calibration.state is CalibrationState.UNCALIBRATED


@pytest.mark.parametrize("state", list(CalibrationState))
def test_policies_see_only_what_can_be_relied_on(state: CalibrationState) -> None:
    worker = Worker(name="w")
    worker.calibrate(Calibration(state=state, step=STEP, transfers=TRANSFERS, updated=2.0))
    assert (worker.step is STEP) == state.trusted
    assert (worker.transfers == TRANSFERS) == state.trusted
    assert worker.calibration.step is STEP
    assert worker.calibration.age_s(5.0) == 3.0


def test_an_unknown_worker_is_nobody_to_calibrate() -> None:
    roster = _roster()
    roster.calibrate("stranger", STEP, {}, "calibration.yaml")
    assert roster.workers["w"].step is None
