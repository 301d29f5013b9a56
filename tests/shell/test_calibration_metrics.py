"""Laws of what is shown of coefficients: to Prometheus, and to operators."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from router.api.coefficients import calibration_state
from router.core.calibration import Calibration, CalibrationState, Samples, StepErrors
from router.core.step_model import StepModel, TransferModel
from router.telemetry.calibration_gauges import calibration_gauges
from router.telemetry.samples import WorkerSample

KNOWN = Calibration(
    state=CalibrationState.ONLINE,
    source="online",
    step=StepModel(4e-3, 60e-6, 0.02, 0.0, 1e-7, tokens_per_step=1.5),
    errors=StepErrors(step_base_s=1e-3, step_per_sequence_s=1e-5),
    transfers={"p": TransferModel(0.001, 1e-6)},
    samples=Samples(step=120, prefill=30, transfer=7),
    updated=40.0,
    step_ratio=1.02,
)


def _read(calibration: Calibration) -> dict[tuple[str, str], float]:
    """Values by metric and last label."""
    sample = WorkerSample(
        name="w", model="m", role="both", state="ready", eligible=True, in_flight=0, calibration=calibration
    )
    text = "".join(line for family in calibration_gauges([sample], 50.0) for line in family.render())
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            rest = [value for name, value in one.labels.items() if name not in ("worker", "model", "role")]
            found[one.name.removeprefix("pointsman_worker_"), rest[0] if rest else ""] = one.value
    return found


def test_a_worker_of_which_nothing_is_known_says_so_and_has_no_coefficients() -> None:
    found = _read(Calibration())
    assert found["calibration_state", "uncalibrated"] == 1
    assert sum(value for (name, _), value in found.items() if name == "calibration_state") == 1
    assert not [name for name, _ in found if name.startswith("coefficient")]
    assert found["calibration_samples", "step"] == 0
    assert ("observed_over_predicted", "step") not in found


def test_coefficients_come_with_their_errors() -> None:
    found = _read(KNOWN)
    assert found["calibration_state", "online"] == 1
    assert found["coefficient_seconds", "step_base"] == 0.02
    assert found["coefficient_error_seconds", "step_base"] == 1e-3
    assert found["coefficient_relative_error", "step_base"] == 0.05
    assert ("coefficient_relative_error", "step_per_sequence") not in found  # of 0 there is none
    assert ("coefficient_error_seconds", "prefill_base") not in found
    assert found["tokens_per_step", ""] == 1.5
    assert found["observed_over_predicted", "step"] == 1.02
    assert found["calibration_age_seconds", ""] == 10.0
    assert found["calibration_samples", "transfer"] == 7


def test_operators_see_the_same_in_plain_types() -> None:
    state = calibration_state(KNOWN, 50.0)
    assert json.loads(json.dumps(state)) == state
    assert (state["state"], state["source"], state["age_s"]) == ("online", "online", 10.0)
    assert state["coefficients"]["step_per_kv_token_s"] == 1e-7
    assert state["standard_errors"]["step_per_kv_token_s"] is None
    assert state["transfers"] == {"p": {"base_s": 0.001, "per_token_s": 1e-6}}


def test_what_is_not_known_is_null() -> None:
    state = calibration_state(Calibration(), 50.0)
    assert state["state"] == "uncalibrated"
    assert {state[key] for key in ("source", "age_s", "coefficients", "standard_errors")} == {None}
    assert state["observed_over_predicted"] == {"step": None, "prefill": None}
