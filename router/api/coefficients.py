"""What is known of a worker's coefficients, for operators.

Separate from the administration, which shows it among much else.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from router.core.calibration import Calibration


def calibration_state(calibration: Calibration, now: float) -> dict[str, Any]:
    """A record in plain types; what is not known is null."""
    age_s, step = calibration.age_s(now), calibration.step
    return {
        "state": calibration.state.value,
        "source": calibration.source or None,
        "age_s": None if age_s is None else round(age_s, 3),
        "coefficients": None if step is None else asdict(step),
        "standard_errors": None if step is None else asdict(calibration.errors),
        "samples": asdict(calibration.samples),
        "observed_over_predicted": {
            "step": _rounded(calibration.step_ratio),
            "prefill": _rounded(calibration.prefill_ratio),
        },
        "transfers": {producer: asdict(model) for producer, model in calibration.transfers.items()},
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)
