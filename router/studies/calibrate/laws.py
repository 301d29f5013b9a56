"""From samples to the laws of the file.

Separate from the fit, which knows terms and no units, and from the measuring, which knows no fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from router.settings.calibration_file import (
    PrefillErrors,
    PrefillLaw,
    StepErrorsLaw,
    StepLaw,
    TransferErrors,
    TransferMeasured,
)
from router.studies.calibrate.fit import Fit, fit
from router.studies.calibrate.plateau import StepSample

_SHORTEST_S = 1e-6
"""What remains of a hand-over is at least this: a relative fit needs something above zero."""


@dataclass(frozen=True, slots=True)
class Timed:
    """How long something took for a prompt of so many tokens: the median of several times."""

    tokens: int
    seconds: float


def prefill_law(samples: Sequence[Timed]) -> PrefillLaw:
    """base + per token · p + per token squared · p². Raises FitError."""
    found = fit([(1.0, one.tokens, one.tokens**2) for one in samples], [one.seconds for one in samples])
    base, per_token, squared = found.coefficients
    errors = PrefillErrors(
        base_s=found.errors[0], per_token_s=found.errors[1], per_token_squared_s=found.errors[2]
    )
    return PrefillLaw(
        base_s=base,
        per_token_s=per_token,
        per_token_squared_s=squared,
        errors=errors,
        longest_tokens=max(one.tokens for one in samples),
        **_quality(found),
    )


def step_law(samples: Sequence[StepSample]) -> StepLaw:
    """base + per sequence · n + per KV token · KV. Raises FitError."""
    times = [one.step_s for one in samples]
    if len({one.sequences for one in samples}) > 1:
        found = fit([(1.0, one.sequences, one.kv_tokens) for one in samples], times)
        base, per_sequence, per_kv_token = found.coefficients
        errors = found.errors
    else:  # an engine of one slot: what its one sequence costs is part of the base
        found = fit([(1.0, one.kv_tokens) for one in samples], times)
        (base, per_kv_token), per_sequence = found.coefficients, 0.0
        errors = (found.errors[0], None, found.errors[1])
    return StepLaw(
        base_s=base,
        per_sequence_s=per_sequence,
        per_kv_token_s=per_kv_token,
        errors=StepErrorsLaw(base_s=errors[0], per_sequence_s=errors[1], per_kv_token_s=errors[2]),
        most_sequences=max(one.sequences for one in samples),
        most_kv_tokens=round(max(one.kv_tokens for one in samples)),
        tokens_per_step=sum(one.tokens_per_step for one in samples) / len(samples),
        **_quality(found),
    )


@dataclass(frozen=True, slots=True)
class Route:
    """From whom to whom, and how."""

    prefill: str
    decode: str
    connector: str


def transfer_law(route: Route, samples: Sequence[Timed], first_s: float) -> TransferMeasured:
    """base + per token · p. Raises FitError."""
    found = fit([(1.0, one.tokens) for one in samples], [_positive(one.seconds) for one in samples])
    return TransferMeasured(
        prefill=route.prefill,
        decode=route.decode,
        connector=route.connector,
        base_s=found.coefficients[0],
        per_token_s=found.coefficients[1],
        errors=TransferErrors(base_s=found.errors[0], per_token_s=found.errors[1]),
        first_s=max(first_s, 0.0),
        **_quality(found),
    )


def _positive(seconds: float) -> float:
    return max(seconds, _SHORTEST_S)


def _quality(found: Fit) -> dict[str, Any]:
    return {"r_squared": found.r_squared, "mean_error": found.mean_error, "samples": found.samples}
