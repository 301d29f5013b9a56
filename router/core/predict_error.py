"""How well the predictions came true, and whether that got worse: what a policy may rely on.

Separate from the predictors because it judges all of them alike, from the outside.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import msgspec

RECENT = 64
"""Finished requests that the recent error remembers, about."""

BASELINE_S = 3600.0
"""Half-life of the error that the recent one is compared with."""

MIN_JUDGED = 256
"""Finished requests before there is a verdict."""

HOLD_S = 30.0
"""A better verdict than the present one waits so long, so that nobody switches to and fro."""

_LOW, _LOST = 1.5, 2.5  # recent error over the baseline
_BRIER_SLACK, _LENGTH_SLACK = 0.02, 0.05  # a ratio of two tiny errors says nothing


class Trust(enum.IntEnum):
    """How far predictions can be relied on."""

    LOST = 0
    """Their error has become a multiple of what it was: decide without them."""
    LOW = 1
    """It has grown: weigh the far future less."""
    FULL = 2


class Errors(msgspec.Struct, frozen=True):
    """How predictions of one source came true. None: not known yet.

    Attributes:
        samples: finished requests that were predicted.
        brier: recent mean of (P(ends within the horizon) − whether it did)²; `baseline_brier`: of hours.
        bias_steps: recent mean of predicted less true min(rest, horizon); above 0: things end sooner.
        length_error: recent mean of |predicted − true length| over the larger, 0 to 1, so that long answers
            and short ones count alike; `baseline_length_error`: of hours.
        mae_tokens: recent mean of |predicted − true length|.
    """

    samples: int = 0
    brier: float | None = None
    baseline_brier: float | None = None
    bias_steps: float | None = None
    length_error: float | None = None
    baseline_length_error: float | None = None
    mae_tokens: float | None = None


@dataclass(slots=True)
class _Drifting:
    """A recent mean and a slow one of the same error."""

    recent: float | None = None
    baseline: float | None = None

    def add(self, error: float, fast: float, slow: float, *, judged: bool) -> None:
        """
        Args:
            fast, slow: weights of this error in the recent mean and in the slow one.
            judged: the slow mean is settled, and follows the recent one rather than single requests.
        """
        recent = self.recent
        recent = self.recent = error if recent is None else recent + (error - recent) * fast
        baseline, value = self.baseline, recent if judged else error
        self.baseline = value if baseline is None else baseline + (value - baseline) * slow

    def ratio(self, slack: float) -> float:
        if self.recent is None or self.baseline is None:
            return 1.0
        return self.recent / (self.baseline + slack) if self.baseline + slack > 0.0 else 1.0


def _moved(mean: float | None, value: float, weight: float) -> float:
    return value if mean is None else mean + (value - mean) * weight


class ErrorRecord:
    """Errors of one source, and the verdict on it.

    State: the errors, how many requests they rest on, and the verdict with its time.
    """

    __slots__ = ("_at", "_bias", "_brier", "_length", "_mae_tokens", "_samples", "_since", "_trust")

    def __init__(self) -> None:
        self._samples = 0
        self._at = 0.0
        self._brier = _Drifting()
        self._length = _Drifting()
        self._bias: float | None = None
        self._mae_tokens: float | None = None
        self._trust = Trust.FULL
        self._since = -math.inf

    @property
    def trust(self) -> Trust:
        return self._trust

    def add(self, squared: float, bias_steps: float, lengths: tuple[float, int] | None, now: float) -> None:
        """One finished request.

        Args:
            squared: mean squared error of its end probabilities.
            bias_steps: mean of predicted less true steps within the horizon.
            lengths: predicted and true tokens; None when one of them is not known.
        """
        age_s = now - self._at if self._samples else 0.0
        samples = self._samples = self._samples + 1
        self._at = now
        judged = samples >= MIN_JUDGED
        fast = 1.0 / min(samples, RECENT)
        slow = 1.0 - math.exp2(-age_s / BASELINE_S) if age_s > 0.0 else 0.0
        if not judged:
            slow = max(slow, 1.0 / samples)
        self._brier.add(squared, fast, slow, judged=judged)
        self._bias = _moved(self._bias, bias_steps, fast)
        if lengths is not None:
            error = abs(lengths[0] - lengths[1])
            self._mae_tokens = _moved(self._mae_tokens, error, fast)
            self._length.add(error / max(lengths), fast, slow, judged=judged)
        if judged:
            self._judge(now)

    def _judge(self, now: float) -> None:
        worst = max(self._brier.ratio(_BRIER_SLACK), self._length.ratio(_LENGTH_SLACK))
        verdict = Trust.LOST if worst > _LOST else Trust.LOW if worst > _LOW else Trust.FULL
        if verdict < self._trust or (verdict > self._trust and now - self._since >= HOLD_S):
            self._trust = verdict
        if verdict <= self._trust:
            self._since = now

    def errors(self) -> Errors:
        return Errors(
            samples=self._samples,
            brier=self._brier.recent,
            baseline_brier=self._brier.baseline,
            bias_steps=self._bias,
            length_error=self._length.recent,
            baseline_length_error=self._length.baseline,
            mae_tokens=self._mae_tokens,
        )

    def copy(self) -> ErrorRecord:
        """The same errors, with a future of their own; the verdict is passed anew."""
        twin = ErrorRecord()
        twin.restore(self.errors(), self._at)
        return twin

    def restore(self, errors: Errors, now: float) -> None:
        """Goes on from errors that were saved."""
        self._samples, self._at = errors.samples, now
        self._brier = _Drifting(errors.brier, errors.baseline_brier)
        self._length = _Drifting(errors.length_error, errors.baseline_length_error)
        self._bias, self._mae_tokens = errors.bias_steps, errors.mae_tokens

    def __repr__(self) -> str:
        return f"<ErrorRecord {self._trust.name.lower()} [{self._samples} requests]>"
