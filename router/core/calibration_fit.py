"""The coefficients of one worker, learned from samples: how well they are known, and whether they still hold.

Separate from the choice of samples (`calibration_online`): here a sample is a pair of numbers that is taken
as it is, so the fit can be tested against known coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from router.core.calibration import ONLINE, Calibration, CalibrationState, Samples, StepErrors
from router.core.online_fit import LinearFit
from router.core.step_model import PRIOR, StepModel, TransferModel
from router.core.symmetric import Vector
from router.core.worker import Role

_PRIOR_SQUARED_S = 2e-9
"""Attention of a 7B model on an A6000, per token squared."""
_WEAK = 3.0  # standard errors of a prior that nobody measured, over its coefficients
_FILE = 0.25  # the same of a file that does not tell its errors
_TRANSFER_PRIOR: Vector = (5e-3, 2e-6, 0.0)
_TRANSFER_FLOOR_S = 1e-3
"""Arrival of a transfer is seen at the end of a decode step only, whatever its length."""
_MIN_TRANSFERS = 5
_LONGEST_GAP_S = 30.0  # an hour without samples is no hour of traffic, and forgets nothing
_TYPICAL_MEMORY = 50.0
_LOST = 2.5  # times the largest error that is believed
_FEWEST = 10  # fewer mean that the fit began anew


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """What online calibration remembers, and when it is believed.

    Attributes:
        half_life_s: time of traffic after which a sample counts half.
        min_samples: of steps before they are believed; of prefills, which are rarer, a quarter.
        max_relative_error: largest standard error of what one coefficient adds to a typical prediction, over
            that prediction.
        drift_ratio: observed over predicted time, smoothed, from which on (or from one over it) the
            coefficients are given up.
    """

    half_life_s: float = 600.0
    min_samples: int = 40
    max_relative_error: float = 0.1
    drift_ratio: float = 2.0


class Ratio:
    """Observed over predicted time, smoothed over its logarithm, so that twice and half weigh alike.

    State: `_log`, the smoothed logarithm, and `_count` of what it was taken over, up to `memory`.
    """

    __slots__ = ("_count", "_log", "memory")

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._log = 0.0
        self._count = 0

    def add(self, observed: float, predicted: float) -> None:
        if observed <= 0.0 or predicted <= 0.0:
            return
        self._count = min(self._count + 1, self.memory)
        # One absurd sample counts as 16 times, or a sixteenth.
        log = min(max(math.log(observed / predicted), -math.log(16.0)), math.log(16.0))
        self._log += (log - self._log) / self._count

    @property
    def value(self) -> float | None:
        """None before anything was compared."""
        return math.exp(self._log) if self._count else None

    def beyond(self, bound: float) -> bool:
        """Whether it is above `bound` or below 1 / `bound`, after enough was compared."""
        return 2 * self._count >= self.memory and abs(self._log) > math.log(bound)

    def __repr__(self) -> str:
        return f"<Ratio {math.exp(self._log):.3g} [{self._count} compared]>"


class Curve:
    """A fit together with where it is used and how well it does.

    State: `typical`, the sample that is usual lately, and `last`, when one came (s).
    """

    __slots__ = ("_settings", "fit", "last", "ratio", "typical")

    def __init__(self, fit: LinearFit, settings: OnlineSettings, memory: int) -> None:
        self._settings = settings
        self.fit = fit
        self.typical: Vector = (1.0, 0.0, 0.0)
        self.ratio = Ratio(memory)
        self.last: float | None = None

    def add(self, x: Vector, y: float, predicted: float | None, now: float) -> None:
        """Takes in a sample; `predicted` is what trusted coefficients said of it, if there are any."""
        gap_s = 0.0 if self.last is None else min(now - self.last, _LONGEST_GAP_S)
        self.last = now
        if predicted is not None:
            self.ratio.add(y, predicted)
        self.fit.add(x, y, 2.0 ** (-gap_s / self._settings.half_life_s))
        share = 1.0 / min(self.fit.samples + 1.0, _TYPICAL_MEMORY)
        a, b, c = self.typical
        self.typical = (a + share * (x[0] - a), b + share * (x[1] - b), c + share * (x[2] - c))

    @property
    def relative_error(self) -> float:
        """The largest standard error of what one coefficient adds to the typical prediction, over that."""
        predicted = self.fit.predict(self.typical)
        if predicted <= 0.0:
            return math.inf
        errors = self.fit.errors
        return max(error * value for error, value in zip(errors, self.typical, strict=True)) / predicted

    def known(self, min_samples: int) -> bool:
        return self.fit.samples >= min_samples and self.relative_error <= self._settings.max_relative_error

    @property
    def lost(self) -> bool:
        """Whether what was known is so no longer."""
        few = self.fit.samples < _FEWEST
        return few or self.relative_error > _LOST * self._settings.max_relative_error

    def __repr__(self) -> str:
        return f"<Curve {self.fit!r} {self.ratio!r}>"


_STEP_PRIOR: Vector = (PRIOR.step_base_s, PRIOR.step_per_sequence_s, PRIOR.step_per_kv_token_s)
_PREFILL_PRIOR: Vector = (PRIOR.prefill_base_s, PRIOR.prefill_per_token_s, _PRIOR_SQUARED_S)


class WorkerFit:
    """All coefficients of one worker.

    State: the curves of steps and prefills, a fit per producer of KV, and the state, which begins as that of
    what was loaded.

    Args:
        loaded: what is known before; the fit begins from its coefficients and errors.
    """

    __slots__ = (
        "_loaded", "_role", "_settings", "_updated", "prefill", "state", "step", "tokens_per_step",
        "transfers",
    )  # fmt: skip

    def __init__(self, loaded: Calibration, role: Role, settings: OnlineSettings) -> None:
        self._loaded = loaded
        self._role = role
        self._settings = settings
        self._updated: float | None = None
        self.state = loaded.state
        self.tokens_per_step = 1.0 if loaded.step is None else loaded.step.tokens_per_step
        self.step = Curve(_step_fit(loaded), settings, memory=20)
        self.prefill = Curve(_prefill_fit(loaded), settings, memory=10)
        self.transfers: dict[str, LinearFit] = {}

    def add_step(self, sequences: float, kv_tokens: float, step_s: float, now: float) -> None:
        """The mean time of some steps, and what ran in them."""
        x = (1.0, sequences, kv_tokens)
        self.step.add(x, step_s, self._trusted(self.step, x), now)
        self._judge(self.step, now)

    def add_prefill(self, tokens: int, cached_tokens: int, prefill_s: float, now: float) -> None:
        """The time of a prefill of `tokens` uncached tokens that nothing else disturbed."""
        x = (1.0, float(tokens), float(tokens * (tokens + 2 * cached_tokens)))
        self.prefill.add(x, prefill_s, self._trusted(self.prefill, x), now)
        self._judge(self.prefill, now)

    def add_transfer(self, producer: str, tokens: int, transfer_s: float) -> None:
        """The time that KV took to come from a producer."""
        fit = self.transfers.get(producer)
        if fit is None:
            a, b, _ = _TRANSFER_PRIOR
            known = self._loaded.transfers.get(producer)
            prior = _TRANSFER_PRIOR if known is None else (known.base_s, known.per_token_s, 0.0)
            scale = _WEAK if known is None else _FILE
            errors = (scale * max(prior[0], a / 5), scale * max(prior[1], b / 20), 1.0)
            fit = self.transfers[producer] = LinearFit(prior, errors, floor=_TRANSFER_FLOOR_S, noise=0.5)
        fit.add((1.0, float(tokens), 0.0), max(transfer_s, 0.0), 0.999)

    def predicted_step_s(self, sequences: float, kv_tokens: float) -> float:
        """By the best coefficients there are."""
        return self.step.fit.predict((1.0, sequences, kv_tokens))

    def _trusted(self, curve: Curve, x: Vector) -> float | None:
        """What policies are told of such a sample now; None while they are told nothing."""
        if not self.state.trusted:
            return None
        if self.state is CalibrationState.ONLINE or self._loaded.step is None:
            return curve.fit.predict(x)
        step = self._loaded.step
        if curve is self.step:
            told = (step.step_base_s, step.step_per_sequence_s, step.step_per_kv_token_s)
        else:
            told = (step.prefill_base_s, step.prefill_per_token_s, step.prefill_per_token_squared_s)
        return told[0] + told[1] * x[1] + told[2] * x[2]

    def _judge(self, curve: Curve, now: float) -> None:
        """Gives coefficients up that do not hold, and takes those in use that are known well enough."""
        self._updated = now
        if self.state.trusted and curve.ratio.beyond(self._settings.drift_ratio):
            self.state = CalibrationState.DRIFTED
            curve.fit.begin_anew()
            curve.ratio = Ratio(curve.ratio.memory)
        elif self.state is CalibrationState.ONLINE and curve.lost:
            # The fit has seen a jump itself, or the load is one that it knows nothing of.
            self.state = CalibrationState.DRIFTED
            curve.ratio = Ratio(curve.ratio.memory)
        elif self.state is not CalibrationState.ONLINE and self._known():
            self.state = CalibrationState.ONLINE

    def _known(self) -> bool:
        """Whether everything that a worker of its role does is known well enough."""
        enough = self._settings.min_samples
        decodes = self._role is Role.PREFILL or self.step.known(enough)
        return decodes and (self._role is Role.DECODE or self.prefill.known(-(-enough // 4)))

    def calibration(self) -> Calibration:
        """All that is known now."""
        step, errors = self.step.fit, self.step.fit.errors
        prefill, prefill_errors = self.prefill.fit, self.prefill.fit.errors
        of_file = self.state is CalibrationState.FILE
        return Calibration(
            state=self.state,
            source=self._loaded.source if of_file else ONLINE,
            step=self._loaded.step if of_file else self._model(),
            errors=self._loaded.errors
            if of_file
            else StepErrors(
                prefill_base_s=prefill_errors[0],
                prefill_per_token_s=prefill_errors[1],
                prefill_per_token_squared_s=prefill_errors[2],
                step_base_s=errors[0],
                step_per_sequence_s=errors[1],
                step_per_kv_token_s=errors[2],
            ),
            transfers=dict(self._loaded.transfers) | self._known_transfers(),
            samples=Samples(
                step=step.samples,
                prefill=prefill.samples,
                transfer=sum(fit.samples for fit in self.transfers.values()),
            ),
            updated=self._updated,
            step_ratio=self.step.ratio.value,
            prefill_ratio=self.prefill.ratio.value,
        )

    def _model(self) -> StepModel:
        base, per_sequence, per_kv_token = self.step.fit.coefficients
        prefill_base, per_token, per_token_squared = self.prefill.fit.coefficients
        return StepModel(
            prefill_base_s=prefill_base,
            prefill_per_token_s=per_token,
            prefill_per_token_squared_s=per_token_squared,
            step_base_s=base,
            step_per_sequence_s=per_sequence,
            step_per_kv_token_s=per_kv_token,
            tokens_per_step=self.tokens_per_step,
        )

    def _known_transfers(self) -> dict[str, TransferModel]:
        return {
            producer: TransferModel(fit.coefficients[0], fit.coefficients[1])
            for producer, fit in self.transfers.items()
            if fit.samples >= _MIN_TRANSFERS
        }

    def __repr__(self) -> str:
        return f"<WorkerFit {self.state.value} {self.step!r} {self.prefill!r}>"


def _step_fit(loaded: Calibration) -> LinearFit:
    step, known = loaded.step, loaded.errors
    if step is None:
        return _weak(_STEP_PRIOR)
    values = (step.step_base_s, step.step_per_sequence_s, step.step_per_kv_token_s)
    errors = (known.step_base_s, known.step_per_sequence_s, known.step_per_kv_token_s)
    return _from_file(values, errors, _STEP_PRIOR)


def _prefill_fit(loaded: Calibration) -> LinearFit:
    step, known = loaded.step, loaded.errors
    if step is None:
        return _weak(_PREFILL_PRIOR)
    values = (step.prefill_base_s, step.prefill_per_token_s, step.prefill_per_token_squared_s)
    errors = (known.prefill_base_s, known.prefill_per_token_s, known.prefill_per_token_squared_s)
    return _from_file(values, errors, _PREFILL_PRIOR)


def _weak(prior: Vector) -> LinearFit:
    return LinearFit(prior, (_WEAK * prior[0], _WEAK * prior[1], _WEAK * prior[2]))


def _from_file(
    values: Vector, errors: tuple[float | None, float | None, float | None], weakest: Vector
) -> LinearFit:
    """What was measured offline, with its own errors, but never as sure of itself that live traffic could not
    correct it."""
    a, b, c = (
        max(_FILE * value if error is None else error, 0.05 * value, 0.01 * least)
        for value, error, least in zip(values, errors, weakest, strict=True)
    )
    return LinearFit(values, (a, b, c))
