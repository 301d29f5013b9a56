"""What is known of every worker's coefficients: where from, how well, and whether they hold.

Separate from the other gauges because it is one subject, most of which is absent for a worker of which
nothing was learned or loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.core.calibration import COEFFICIENTS, CalibrationState
from router.telemetry.exposition import SampleFamily
from router.telemetry.samples import WorkerSample

_WORKER = ("worker", "model", "role")


def calibration_gauges(workers: Sequence[WorkerSample], now: float) -> Iterator[SampleFamily]:
    """Every family, those without samples included."""
    yield _states(workers)
    yield from _coefficients(workers)
    yield from _evidence(workers, now)


def _states(workers: Sequence[WorkerSample]) -> SampleFamily:
    family = SampleFamily(
        "pointsman_worker_calibration_state",
        "1 for where the worker's coefficients come from: nowhere, a file, live traffic, or given up.",
        (*_WORKER, "state"),
    )
    for worker in workers:
        for state in CalibrationState:
            holds = int(worker.calibration.state is state)
            family.set(holds, worker.name, worker.model, worker.role, state.value)
    return family


def _coefficients(workers: Sequence[WorkerSample]) -> Iterator[SampleFamily]:
    values = SampleFamily(
        "pointsman_worker_coefficient_seconds",
        "Step and prefill times of the worker: base, per token, per sequence, per KV token.",
        (*_WORKER, "coefficient"),
    )
    errors = SampleFamily(
        "pointsman_worker_coefficient_error_seconds",
        "One standard error of each coefficient.",
        (*_WORKER, "coefficient"),
    )
    relative = SampleFamily(
        "pointsman_worker_coefficient_relative_error",
        "The same over the coefficient; absent for one that is 0.",
        (*_WORKER, "coefficient"),
    )
    speculation = SampleFamily(
        "pointsman_worker_tokens_per_step",
        "Output tokens that a step gives each sequence; above 1 where the engine speculates.",
        _WORKER,
    )
    for worker in workers:
        step, whose = worker.calibration.step, (worker.name, worker.model, worker.role)
        if step is None:
            continue
        speculation.set(step.tokens_per_step, *whose)
        for name in COEFFICIENTS:
            value, error = getattr(step, name), getattr(worker.calibration.errors, name)
            word = name.removesuffix("_s")
            values.set(value, *whose, word)
            errors.set(error, *whose, word)
            relative.set(error / value if value and error is not None else None, *whose, word)
    yield from (values, errors, relative, speculation)


def _evidence(workers: Sequence[WorkerSample], now: float) -> Iterator[SampleFamily]:
    samples = SampleFamily(
        "pointsman_worker_calibration_samples",
        "Samples that the coefficients rest on, by what they were of; those of a file are not known.",
        (*_WORKER, "kind"),
    )
    ratio = SampleFamily(
        "pointsman_worker_observed_over_predicted",
        "How long steps and prefills take over what the coefficients say, smoothed; absent until compared.",
        (*_WORKER, "kind"),
    )
    age = SampleFamily(
        "pointsman_worker_calibration_age_seconds",
        "Since the coefficients last changed; absent when they never did.",
        _WORKER,
    )
    for worker in workers:
        known, whose = worker.calibration, (worker.name, worker.model, worker.role)
        for kind in ("step", "prefill", "transfer"):
            samples.set(getattr(known.samples, kind), *whose, kind)
        ratio.set(known.step_ratio, *whose, "step")
        ratio.set(known.prefill_ratio, *whose, "prefill")
        age.set(known.age_s(now), *whose)
    yield from (samples, ratio, age)
