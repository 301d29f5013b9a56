"""What is known of one worker's coefficients: where they come from, how well they are known, and since when.

Separate from the coefficients, which policies read, and from the fit, which learns them: files, the admin API
and the metrics all speak of this record.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from router.core.step_model import StepModel, TransferModel

ONLINE = "online"
"""Source of coefficients that were learned from live traffic."""


class CalibrationState(enum.Enum):
    """How far the coefficients of a worker can be relied on."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    UNCALIBRATED = "uncalibrated"
    """Nothing is known, or too little yet."""
    FILE = "file"
    """Measured offline and loaded; nothing seen since contradicts it."""
    ONLINE = "online"
    """Fitted to live traffic, with error bars that are small enough."""
    DRIFTED = "drifted"
    """What is seen does not fit the coefficients any more; they are being fitted anew."""

    @property
    def trusted(self) -> bool:
        """Whether policies may compute with the coefficients."""
        return self in (CalibrationState.FILE, CalibrationState.ONLINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrors:
    """One standard error of each coefficient of a `StepModel`, in its unit; None: not known."""

    prefill_base_s: float | None = None
    prefill_per_token_s: float | None = None
    prefill_per_token_squared_s: float | None = None
    step_base_s: float | None = None
    step_per_sequence_s: float | None = None
    step_per_kv_token_s: float | None = None


COEFFICIENTS = tuple(one.name for one in fields(StepErrors))
"""Names of the coefficients, as `StepModel` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """How many observations the coefficients rest on."""

    step: int = 0
    prefill: int = 0
    transfer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The coefficients of one worker with all that is known about them.

    Attributes:
        source: "online", or the name of the file that they were loaded from; "" for none.
        step: the best estimate there is, also while it is not trusted.
        transfers: by the name of the prefill worker that the KV comes from.
        updated: when they last changed (s), None when they never did.
        step_ratio, prefill_ratio: observed over predicted time, smoothed; None before anything was compared.
    """

    state: CalibrationState = CalibrationState.UNCALIBRATED
    source: str = ""
    step: StepModel | None = None
    errors: StepErrors = field(default_factory=StepErrors)
    transfers: Mapping[str, TransferModel] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    updated: float | None = None
    step_ratio: float | None = None
    prefill_ratio: float | None = None

    @classmethod
    def loaded(
        cls,
        step: StepModel | None,
        transfers: Mapping[str, TransferModel],
        source: str,
        errors: StepErrors | None = None,
    ) -> Calibration:
        """What a file, or an operator, says of a worker; without `step` there is nothing to rely on."""
        state = CalibrationState.UNCALIBRATED if step is None else CalibrationState.FILE
        return cls(state=state, source=source, step=step, transfers=transfers, errors=errors or StepErrors())

    def age_s(self, now: float) -> float | None:
        """Seconds since the coefficients last changed, None when they never did."""
        return None if self.updated is None else now - self.updated
