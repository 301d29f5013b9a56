"""Laws of what live traffic teaches: which moments count, and that a pool's engines are found out by them."""

from __future__ import annotations

from typing import Any

import pytest

from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.answer import Usage
from router.core.calibration import CalibrationState
from router.core.calibration_fit import OnlineSettings
from router.core.calibration_online import OnlineCalibration, Watch
from router.core.engine_stats import EngineStats
from router.core.lease import Lease, Outcome
from router.core.request import Api
from router.core.step_model import StepModel
from router.core.worker import Worker
from tests.core.fleet_examples import pool, request
from tests.core.pair_examples import Couple, couple
from tests.core.step_examples import Engine

STEP = StepModel(8e-3, 130e-6, 24e-3, 0.2e-3, 0.2e-6, 2e-9)
FLAT_S = 0.02


def straight(prompts: list[tuple[int, int]], contexts: list[int]) -> float:
    """An engine that is as the model of it."""
    decode_s = STEP.step_s(len(contexts), sum(contexts)) if contexts else 0.0
    return decode_s + sum(STEP.prefill_s(new, cached) for new, cached in prompts)


def watch(engine: Engine) -> Watch:
    return engine.online._watch(engine.worker)


def samples(engine: Engine) -> tuple[int, int]:
    fit = watch(engine).fit
    return fit.step.fit.samples, fit.prefill.fit.samples


def stream(engine: Engine, steps: int, *, output: int = 10_000) -> Lease:
    """A stream that has shown its first output, and `steps` more."""
    lease = engine.send(500, output, stream=True)
    for _ in range(steps + 1):
        engine.step()
    return lease


# --- engines are found out -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "rate"),
    [("qwen2.5-3b", "a40", 1, 6), ("mistral-7b", "a6000", 1, 2), ("llama-3-70b", "h100", 4, 2)],
)
def test_rooflines_are_fitted_within_a_tenth(model: str, gpu: str, gpus: int, rate: float) -> None:
    roofline = Roofline(MODELS[model], GPUS[gpu], tensor_parallel=gpus)
    engine = Engine(roofline.step_s)
    engine.serve(60, rate=rate)
    found = engine.worker.step
    assert found is not None
    assert engine.worker.calibration.state is CalibrationState.ONLINE
    for count, context in ((1, 500), (4, 1_000), (12, 1_000), (30, 800), (30, 1_500)):
        step_s = roofline.step_s([], [context] * count)
        assert found.step_s(count, count * context) == pytest.approx(step_s, rel=0.1)
    for prompt in (500, 1_000, 2_000):
        prefill_s = roofline.step_s([(prompt, 0)], [])
        assert found.prefill_s(prompt) == pytest.approx(prefill_s, rel=0.15)


def test_an_engine_as_modelled_is_found_with_honest_errors() -> None:
    engine = Engine(straight)
    engine.serve(120, rate=2)
    told = engine.worker.calibration
    assert told.step is not None
    for name in ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s"):
        error = getattr(told.errors, name)
        assert error is not None
        assert abs(getattr(told.step, name) - getattr(STEP, name)) <= 3 * error


def test_a_worker_is_told_at_once_when_it_is_known_and_then_now_and_then() -> None:
    changes: list[tuple[str, CalibrationState, CalibrationState]] = []
    engine = Engine(straight)
    engine.online = OnlineCalibration(OnlineSettings(), lambda *change: changes.append(change))
    engine.pool.ledger.online = engine.online
    engine.serve(60, rate=2)
    assert changes == [("w", CalibrationState.UNCALIBRATED, CalibrationState.ONLINE)]
    before = engine.worker.calibration
    stream(engine, 20)
    assert engine.worker.calibration in (before, watch(engine).seen)


# --- what of a stream counts -----------------------------------------------------------------------------


def test_a_step_that_many_streams_saw_is_one_sample() -> None:
    few, many = (Engine(lambda _prompts, _contexts: FLAT_S, jitter=0.0) for _ in range(2))
    for engine, count in ((few, 1), (many, 16)):
        for _ in range(count):
            engine.send(500, 100_000)
        for _ in range(count):
            engine.step()
        for _ in range(500):
            engine.step()
    steps_of_few, steps_of_many = samples(few)[0], samples(many)[0]
    assert steps_of_few > 20
    assert steps_of_many < 2 * steps_of_few
    assert watch(many).fit.predicted_step_s(16, 16 * 750) == pytest.approx(FLAT_S, rel=0.02)


def test_the_first_output_is_no_step() -> None:
    engine = Engine(lambda prompts, _contexts: 5.0 if prompts else FLAT_S, jitter=0.0)
    stream(engine, 200)
    assert watch(engine).fit.predicted_step_s(1, 600) == pytest.approx(FLAT_S, rel=0.02)


def test_steps_that_a_prefill_made_longer_are_left_out() -> None:
    engine = Engine(lambda prompts, _contexts: 0.3 if prompts else FLAT_S, jitter=0.0)
    stream(engine, 50)
    for _ in range(60):
        engine.send(2_000, 3)
        for _ in range(10):
            engine.step()
    assert watch(engine).fit.predicted_step_s(1, 1_000) == pytest.approx(FLAT_S, rel=0.03)


def test_a_stream_that_stood_still_says_nothing_until_its_burst_is_over() -> None:
    engine = Engine(lambda _prompts, _contexts: FLAT_S, jitter=0.0)
    lease = stream(engine, 200)
    before, written = samples(engine)[0], lease.generated_tokens
    for elapsed_s, tokens in ((5.0, 3), (0.06, 240)):
        engine.now += elapsed_s
        written += tokens
        engine.pool.progress(lease, engine.now, generated_tokens=written)
    assert samples(engine)[0] == before
    assert watch(engine).fit.predicted_step_s(1, 700) == pytest.approx(FLAT_S, rel=0.02)


def test_answers_in_one_piece_and_several_sequences_are_left_out() -> None:
    engine = Engine(lambda _prompts, _contexts: FLAT_S, jitter=0.0)
    engine.send(500, 1_000, stream=False)
    engine.send(500, 1_000, sequences=4)
    for _ in range(500):
        engine.step()
    assert samples(engine)[0] == 0


def test_steps_and_tokens_of_speculation_are_told_apart() -> None:
    """Two tokens a step, as the engine counts them."""
    engine = Engine(lambda _prompts, _contexts: FLAT_S / 2, jitter=0.0)
    engine.pool.observe("w", EngineStats(taken=engine.now, tokens_per_step=2.0), engine.now)
    engine.serve(60, rate=2)
    fit = watch(engine).fit
    assert fit.predicted_step_s(1, 700) == pytest.approx(FLAT_S, rel=0.03)
    model = fit.calibration().step
    assert model is not None
    assert model.tokens_per_step == 2.0


def test_the_slowest_of_a_barrier_group_decides_what_a_step_is_of() -> None:
    worker, other = Worker(name="w"), Worker(name="v")
    worker.barrier_peers = other.barrier_peers = (worker, other)
    other.mirror.sequences, other.mirror.kv_tokens = 30, 90_000
    worker.mirror.sequences, worker.mirror.kv_tokens = 10, 10_000
    assert Watch(worker, OnlineSettings()).load_now() == (30, 90_000)


# --- prefills --------------------------------------------------------------------------------------------


def _alone(engine: Engine, prompt: int, cached: int = 0, **what: Any) -> None:
    engine.send(prompt, 2, cached, **what)
    while engine.waiting or engine.running:
        engine.step()


def test_a_prompt_that_met_another_says_nothing() -> None:
    engine = Engine(straight)
    _alone(engine, 500)
    assert samples(engine)[1] == 1
    engine.send(500, 2)
    engine.send(700, 2)
    while engine.waiting or engine.running:
        engine.step()
    assert samples(engine)[1] == 1


def test_cached_tokens_are_not_charged_for() -> None:
    engine = Engine(straight)
    for n in range(200):
        _alone(engine, 400 + 37 * n % 4_000, cached=(n % 3) * 128)
    predicted = watch(engine).fit.calibration().step
    assert predicted is not None
    assert predicted.prefill_s(2_000) == pytest.approx(STEP.prefill_s(2_000), rel=0.05)


@pytest.mark.parametrize(("hits", "counts"), [(0.0, True), (900.0, False), (None, True)])
def test_an_engine_that_tells_no_cached_tokens_is_believed_when_it_caches_little(
    hits: float | None, counts: bool
) -> None:
    made = pool("w")
    online = made.ledger.online = OnlineCalibration()
    made.roster.workers["w"].stats = EngineStats(taken=0.0, prefix_queries=1_000.0, prefix_hits=hits)
    lease = made.place_now(request(stream=True), 1.0)
    assert lease is not None
    made.progress(lease, 1.5, generated_tokens=1)
    made.ledger.reported(lease, Usage(prompt_tokens=100), 2.0)
    made.release(lease, Outcome.OK, 2.0)
    assert online._watch(made.roster.workers["w"]).fit.prefill.fit.samples == counts


def test_usage_that_comes_after_the_end_counts_too() -> None:
    made = pool("w")
    online = made.ledger.online = OnlineCalibration()
    lease = made.place_now(request(stream=True), 1.0)
    assert lease is not None
    made.progress(lease, 1.5, generated_tokens=1)
    made.release(lease, Outcome.OK, 2.0)
    fit = online._watch(made.roster.workers["w"]).fit
    assert fit.prefill.fit.samples == 0
    made.ledger.reported(lease, Usage(prompt_tokens=100, cached_tokens=32), 2.0)
    made.ledger.reported(lease, Usage(prompt_tokens=100, cached_tokens=32), 2.1)
    assert fit.prefill.fit.samples == 1


@pytest.mark.parametrize("what", [{"slots": 1}, {"stats": EngineStats(taken=0.0, waiting=2)}])
def test_a_worker_that_is_full_teaches_no_prefills(what: dict[str, Any]) -> None:
    engine = Engine(straight)
    for name, value in what.items():
        setattr(engine.worker, name, value)
    _alone(engine, 500)
    assert samples(engine)[1] == 0


def test_embeddings_are_no_prefills_of_a_chat() -> None:
    engine = Engine(straight)
    _alone(engine, 500, api=Api.OTHER)
    assert samples(engine)[1] == 0


def test_what_an_engine_never_tells_is_bounded() -> None:
    made = pool("w", in_flight=10_000)
    online = made.ledger.online = OnlineCalibration()
    for n in range(200):
        lease = made.place_now(request(stream=True), float(n))
        assert lease is not None
        made.progress(lease, n + 0.5, generated_tokens=1)
        made.release(lease, Outcome.OK, n + 0.9)
    kept = online._watch(made.roster.workers["w"])
    assert len(kept.untold) <= 64
    assert kept.unsteady == set()


# --- transfers -------------------------------------------------------------------------------------------


def _hand_over(made: Couple, now: float, prompt: int, transfer_s: float) -> None:
    handed = made.prefilled(now, stream=True, prompt_tokens=prompt)
    made.decode.submit(handed, now + 0.2)
    (lease,) = made.decode.assign(now + 0.2)
    made.decode.progress(lease, now + 0.2 + transfer_s, generated_tokens=1)
    made.decode.release(lease, Outcome.OK, now + 1.0)


def test_hand_overs_are_timed_by_pair_once_the_pair_is_warm() -> None:
    made = couple("p", "d")
    online = made.decode.ledger.online = OnlineCalibration()
    made.consumer("d").step = None
    _hand_over(made, 10.0, 1_000, 9.0)  # the first sets up the connection
    fit = online._watch(made.consumer("d")).fit
    assert fit.transfers == {}
    step_s = fit.predicted_step_s(1.0, 1_000.0)
    for n in range(60):
        prompt = 500 + 353 * n % 8_000
        _hand_over(made, 20.0 + 2 * n, prompt, 0.01 + 4e-6 * prompt + step_s)
    told = fit.calibration().transfers["p"]
    assert told.transfer_s(4_000) == pytest.approx(0.01 + 4e-6 * 4_000, rel=0.1)
    made.assert_idle()


def test_kv_that_is_on_its_way_is_in_no_step() -> None:
    made = couple("p", "d")
    made.decode.ledger.online = OnlineCalibration()
    waits = made.decoding(1.0, stream=True, prompt_tokens=3_000)
    runs = made.decoding(1.0, stream=True, prompt_tokens=700)
    made.decode.progress(runs, 1.5, generated_tokens=1)
    assert waits.transferring
    assert Watch(made.consumer("d"), OnlineSettings()).load_now() == (1, 701)


# --- lives -----------------------------------------------------------------------------------------------


def test_a_restart_keeps_what_was_learned_and_forgets_its_streams() -> None:
    engine = Engine(straight)
    engine.serve(60, rate=2)
    before = samples(engine)
    engine.send(500, 100)
    engine.pool.roster._reincarnate(engine.worker, engine.now, "restarted")
    kept = watch(engine)
    assert samples(engine) == before
    assert kept.alone is None
    assert kept.unsteady == set()
    assert engine.worker.step is not None


def test_coefficients_that_somebody_else_gives_are_where_it_begins_anew() -> None:
    engine = Engine(straight)
    engine.serve(60, rate=2)
    engine.pool.roster.calibrate("w", STEP, {}, "calibration.yaml")
    assert watch(engine).fit.state is CalibrationState.FILE
    assert samples(engine) == (0, 0)


def test_a_worker_that_left_is_forgotten_when_another_comes() -> None:
    made = pool("a")
    online = made.ledger.online = OnlineCalibration()
    online._watch(made.roster.workers["a"])
    made.roster.remove("a", 1.0)
    newcomer = Worker(name="b")
    made.roster.add(newcomer, 2.0)
    online._watch(newcomer)
    assert set(online._watches) == {"b"}


def test_a_new_worker_of_an_old_name_is_another_one() -> None:
    engine = Engine(straight)
    engine.serve(60, rate=2)
    engine.pool.roster.add(Worker(name="w"), engine.now)
    assert samples(engine) == (0, 0)
    assert repr(engine.online) == "<OnlineCalibration [1 uncalibrated]>"
