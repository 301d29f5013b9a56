"""Laws of one worker's coefficients: when they are believed, when given up, and what is told of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from router.core.calibration import ONLINE, Calibration, CalibrationState, StepErrors
from router.core.calibration_fit import OnlineSettings, Ratio, WorkerFit
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role

TRUTH = StepModel(
    prefill_base_s=8e-3,
    prefill_per_token_s=130e-6,
    prefill_per_token_squared_s=2e-9,
    step_base_s=24e-3,
    step_per_sequence_s=0.2e-3,
    step_per_kv_token_s=0.2e-6,
)
WRONG = StepModel(8e-3 / 7.4, 130e-6 / 7.4, 24e-3 / 7.4, 0.2e-3 / 7.4, 0.2e-6 / 7.4, 2e-9 / 7.4)
"""As in the study whose simulator's constants were 7.4 times too small."""


class Traffic:
    """Samples of a worker of known coefficients, a quarter of a second apart."""

    def __init__(self, fit: WorkerFit, truth: StepModel = TRUTH, seed: int = 1) -> None:
        self.fit, self.truth = fit, truth
        self.source = random.Random(seed)
        self.now = 0.0
        self.load = self._loads()

    def _loads(self) -> Iterator[tuple[float, float]]:
        sequences, kv_tokens = 20.0, 20_000.0
        while True:
            sequences = min(max(sequences + self.source.choice((-4, -2, 0, 2, 4)), 1), 60)
            kv_tokens = 0.7 * kv_tokens + 0.3 * sequences * self.source.lognormvariate(6.8, 0.4)
            yield sequences, kv_tokens

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.now += 0.25
            sequences, kv_tokens = next(self.load)
            step_s = self.truth.step_s(round(sequences), round(kv_tokens))
            self.fit.add_step(
                round(sequences), round(kv_tokens), step_s * self.source.gauss(1, 0.04), self.now
            )

    def prefills(self, count: int) -> None:
        for _ in range(count):
            self.now += 1.0
            tokens = round(min(self.source.lognormvariate(6.5, 1.0), 30_000)) + 1
            cached = self.source.choice((0, 0, 2_000))
            seconds = self.truth.prefill_s(tokens, cached) * self.source.gauss(1, 0.05)
            self.fit.add_prefill(tokens, cached, seconds, self.now)


def fit_of(loaded: Calibration | None = None, role: Role = Role.BOTH, **settings: float) -> WorkerFit:
    return WorkerFit(loaded or Calibration(), role, OnlineSettings(**settings))  # type: ignore[arg-type]  # an example names only what it is about


def from_file(step: StepModel = TRUTH, **errors: float) -> Calibration:
    transfers = {"p": TransferModel(0.002, 2e-6)}
    return Calibration.loaded(step, transfers, "calibration.yaml", StepErrors(**errors))


# --- from nothing ----------------------------------------------------------------------------------------


def test_a_cold_start_is_uncalibrated_until_steps_and_prefills_are_known() -> None:
    fit = fit_of()
    traffic = Traffic(fit)
    states = [fit.state]
    traffic.steps(400)
    states.append(fit.state)
    traffic.prefills(60)
    states.append(fit.state)
    assert [state.value for state in states] == ["uncalibrated", "uncalibrated", "online"]
    told = fit.calibration()
    assert (told.source, told.state) == (ONLINE, CalibrationState.ONLINE)
    assert told.samples.step == 400
    assert told.updated == traffic.now


@pytest.mark.parametrize(("role", "what"), [(Role.DECODE, "steps"), (Role.PREFILL, "prefills")])
def test_a_worker_needs_only_what_its_role_does(role: Role, what: str) -> None:
    fit = fit_of(role=role)
    getattr(Traffic(fit), what)(400)
    assert fit.state is CalibrationState.ONLINE


def test_few_samples_are_not_enough_however_well_they_agree() -> None:
    fit = fit_of(role=Role.DECODE, min_samples=500, max_relative_error=1.0)
    Traffic(fit).steps(499)
    assert fit.state is CalibrationState.UNCALIBRATED


def test_many_samples_are_not_enough_while_they_tell_nothing_apart() -> None:
    fit = fit_of(role=Role.DECODE)
    for n in range(2_000):
        sequences = 5.0 + n % 40
        fit.add_step(
            sequences, 1_000 * sequences, TRUTH.step_s(int(sequences), int(1_000 * sequences)), n / 4
        )
    assert fit.state is CalibrationState.UNCALIBRATED
    assert fit.step.relative_error > 0.1


def test_the_coefficients_are_found() -> None:
    fit = fit_of()
    traffic = Traffic(fit)
    traffic.steps(2_000)
    traffic.prefills(400)
    found = fit.calibration().step
    assert found is not None
    for sequences, kv_tokens in ((1, 500), (20, 20_000), (50, 60_000)):
        assert found.step_s(sequences, kv_tokens) == pytest.approx(
            TRUTH.step_s(sequences, kv_tokens), rel=0.03
        )
    for tokens, cached in ((500, 0), (2_000, 2_000), (8_000, 0)):
        assert found.prefill_s(tokens, cached) == pytest.approx(TRUTH.prefill_s(tokens, cached), rel=0.05)


def test_its_own_error_bars_hold_the_truth_in_95_of_100_runs() -> None:
    names = ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s")
    hits = dict.fromkeys(names, 0)
    for seed in range(100):
        fit = fit_of(role=Role.DECODE)
        Traffic(fit, seed=seed).steps(200)
        told = fit.calibration()
        for name in names:
            error = getattr(told.errors, name)
            hits[name] += abs(getattr(told.step, name) - getattr(TRUTH, name)) <= 2 * error
    assert min(hits.values()) >= 95, hits


# --- from a file -----------------------------------------------------------------------------------------


def test_a_file_is_told_as_it_was_loaded_until_live_traffic_knows_better() -> None:
    loaded = from_file(step_base_s=1e-3)
    fit = fit_of(loaded, Role.DECODE)
    Traffic(fit).steps(10)
    told = fit.calibration()
    assert (told.state, told.source) == (CalibrationState.FILE, "calibration.yaml")
    assert (told.step, told.errors, told.transfers) == (loaded.step, loaded.errors, loaded.transfers)
    assert told.step_ratio == pytest.approx(1.0, abs=0.05)
    Traffic(fit).steps(400)
    assert fit.calibration().state is CalibrationState.ONLINE


def test_a_file_that_was_right_stays_right_where_traffic_says_little() -> None:
    """A load that hardly varies tells the sum alone; the file tells its parts."""
    fit = fit_of(from_file(), Role.DECODE)
    for n in range(400):
        fit.add_step(10.0, 10_000.0, TRUTH.step_s(10, 10_000), n / 4)
    found = fit.calibration().step
    assert found is not None
    assert found.step_s(50, 60_000) == pytest.approx(TRUTH.step_s(50, 60_000), rel=0.05)


def test_speculation_of_a_file_is_kept() -> None:
    spec = StepModel(0, 1e-4, 0.02, 1e-4, 1e-7, tokens_per_step=2.5)
    assert fit_of(from_file(spec)).tokens_per_step == 2.5


# --- drift -----------------------------------------------------------------------------------------------


def test_constants_of_a_simulator_are_given_up_and_fitted_anew() -> None:
    fit = fit_of(from_file(WRONG), Role.DECODE)
    traffic = Traffic(fit)
    traffic.steps(12)
    given_up = fit.calibration()
    assert given_up.state is CalibrationState.DRIFTED
    traffic.steps(400)
    assert fit.state is CalibrationState.ONLINE
    assert fit.predicted_step_s(20, 20_000) == pytest.approx(TRUTH.step_s(20, 20_000), rel=0.03)


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_hardware_that_changes_is_noticed_in_seconds(factor: float) -> None:
    fit = fit_of(role=Role.DECODE)
    traffic = Traffic(fit)
    traffic.steps(1_000)
    traffic.truth = StepModel(0, 0, factor * 24e-3, factor * 0.2e-3, factor * 0.2e-6)
    states = []
    for _ in range(40):
        traffic.steps(1)
        states.append(fit.state)
    assert CalibrationState.DRIFTED in states[:12]
    traffic.steps(400)
    assert fit.state is CalibrationState.ONLINE
    assert fit.predicted_step_s(20, 20_000) == pytest.approx(traffic.truth.step_s(20, 20_000), rel=0.03)


def test_a_smaller_change_is_made_up_for_in_seconds() -> None:
    fit = fit_of(role=Role.DECODE)
    traffic = Traffic(fit)
    traffic.steps(500)
    traffic.truth = StepModel(0, 0, 1.4 * 24e-3, 1.4 * 0.2e-3, 1.4 * 0.2e-6)
    for _ in range(60):
        traffic.steps(50)
        assert fit.state is CalibrationState.ONLINE
    assert fit.predicted_step_s(20, 20_000) == pytest.approx(traffic.truth.step_s(20, 20_000), rel=0.05)


def test_prefills_drift_apart_from_steps() -> None:
    fit = fit_of(from_file())
    traffic = Traffic(fit)
    traffic.steps(60)
    traffic.truth = StepModel(8e-2, 13e-4, 24e-3, 0.2e-3, 0.2e-6, 2e-8)
    traffic.prefills(10)
    assert fit.state is CalibrationState.DRIFTED
    assert fit.step.fit.samples == 60


def test_one_pause_is_no_drift() -> None:
    fit = fit_of(role=Role.DECODE)
    traffic = Traffic(fit)
    traffic.steps(400)
    before = fit.calibration().step
    fit.add_step(20, 20_000, 3.0, traffic.now)
    assert fit.state is CalibrationState.ONLINE
    assert fit.calibration().step == before


def test_a_night_without_traffic_forgets_nothing() -> None:
    fit = fit_of(role=Role.DECODE, half_life_s=60.0)
    traffic = Traffic(fit)
    traffic.steps(1_000)
    before = fit.step.fit.errors
    traffic.now += 10 * 3600
    traffic.steps(1)
    assert all(after < 2 * error for after, error in zip(fit.step.fit.errors, before, strict=True))


# --- the rest --------------------------------------------------------------------------------------------


def test_transfers_are_told_after_five_and_may_go_against_the_file() -> None:
    fit = fit_of(from_file())
    source = random.Random(2)
    for n in range(200):
        if n == 4:
            assert "q" not in fit.calibration().transfers
        tokens = source.randrange(200, 20_000)
        fit.add_transfer("q", tokens, 0.004 + 3e-6 * tokens + source.uniform(0, 0.004))
        fit.add_transfer("p", tokens, 0.004 + 3e-6 * tokens + source.uniform(0, 0.004))
    told = fit.calibration().transfers
    for producer in ("p", "q"):
        assert told[producer].transfer_s(10_000) == pytest.approx(0.036, rel=0.1)


def test_a_ratio_weighs_twice_and_half_alike() -> None:
    ratio = Ratio(10)
    assert ratio.value is None
    for observed in (2.0, 0.5) * 20:
        ratio.add(observed, 1.0)
    assert ratio.value == pytest.approx(1.0, abs=0.1)
    assert not ratio.beyond(2.0)
    ratio.add(1.0, 0.0)
    ratio.add(-1.0, 1.0)
    assert ratio.value == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("observed", [2.5, 0.3])
def test_a_ratio_is_judged_after_half_of_its_memory(observed: float) -> None:
    ratio = Ratio(10)
    judged = []
    for _ in range(6):
        ratio.add(observed, 1.0)
        judged.append(ratio.beyond(2.0))
    assert judged == [False] * 4 + [True] * 2
