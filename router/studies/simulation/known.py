"""What a calibration of a simulated engine would find: the coefficients of its clock.

Separate from the fleet because a study may give the router these, none, or wrong ones.
"""

from __future__ import annotations

from dataclasses import replace

from engines.model.roofline import StepClock, StepLoad
from router.core.step_model import StepModel

_PROMPTS = (256, 2_048, 8_192)
_SEQUENCES = (8, 64)
_CONTEXTS = (512, 4_096)


def measured(clock: StepClock) -> StepModel:
    """Coefficients through the points that `pointsman calibrate` would measure.

    A prefill through three lengths, a step through two batches and two contexts; exact for a clock of that
    shape, an approximation of a roofline.
    """
    base, linear, squared = _parabola([(p, _prefill_s(clock, p)) for p in _PROMPTS])
    (few, many), (short, long) = _SEQUENCES, _CONTEXTS
    low = _step_s(clock, many, short)
    per_kv_token = (_step_s(clock, many, long) - low) / (many * (long - short))
    same_kv = few * short
    per_sequence = (low - _step_s(clock, few, short) - per_kv_token * (many * short - same_kv)) / (many - few)
    per_sequence = max(per_sequence, 0.0)
    return StepModel(
        prefill_base_s=max(base, 0.0),
        prefill_per_token_s=linear,
        step_base_s=low - per_sequence * many - per_kv_token * many * short,
        step_per_sequence_s=per_sequence,
        step_per_kv_token_s=per_kv_token,
        prefill_per_token_squared_s=max(squared, 0.0),
    )


def scaled(model: StepModel, decode: float) -> StepModel:
    """The same with every decode coefficient times a factor: a router that has wrong constants."""
    return replace(
        model,
        step_base_s=model.step_base_s * decode,
        step_per_sequence_s=model.step_per_sequence_s * decode,
        step_per_kv_token_s=model.step_per_kv_token_s * decode,
    )


def _prefill_s(clock: StepClock, tokens: int) -> float:
    return clock.step_from_totals(StepLoad.of([(tokens, 0)], []))


def _step_s(clock: StepClock, sequences: int, context: int) -> float:
    return clock.step_from_totals(StepLoad(decode_sequences=sequences, decode_kv_tokens=sequences * context))


def _parabola(points: list[tuple[int, float]]) -> tuple[float, float, float]:
    """Coefficients of 1, x and x² through three points (Newton's divided differences)."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first = (y1 - y0) / (x1 - x0)
    second = ((y2 - y1) / (x2 - x1) - first) / (x2 - x0)
    return y0 - first * x0 + second * x0 * x1, first - second * (x0 + x1), second
