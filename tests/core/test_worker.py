"""Laws of a worker and its view."""

from __future__ import annotations

import pytest

from router.core.engine_stats import EngineStats
from router.core.health import Health, State
from router.core.worker import StepModel, Worker, WorkerView


def test_a_worker_is_what_policies_may_see() -> None:
    view: WorkerView = Worker(name="a")
    assert (view.in_flight, view.kv_tokens, view.kv_capacity_tokens, view.free_slots) == (0, 0, None, None)
    assert (view.capacity, view.warmup, view.step, view.stats) == (1.0, 1.0, None, None)


def test_its_label_is_the_first_of_its_models_and_empty_without_any() -> None:
    assert Worker(name="a", models=frozenset({"b", "a"})).model == "a"
    assert Worker(name="a").model == ""


def test_a_configured_kv_capacity_goes_before_the_scraped_one() -> None:
    stats = EngineStats(taken=0.0, kv_capacity_tokens=500)
    assert Worker(name="a", stats=stats).kv_capacity_tokens == 500
    assert Worker(name="a", stats=stats, configured_kv_tokens=900).kv_capacity_tokens == 900
    assert Worker(name="a", stats=EngineStats(taken=0.0)).kv_capacity_tokens is None


@pytest.mark.parametrize(("running", "free"), [(0, 4), (3, 1), (4, 0), (9, 0)])
def test_free_slots_are_never_below_zero(running: int, free: int) -> None:
    worker = Worker(name="a", slots=4)
    worker.mirror.sequences = running
    assert worker.free_slots == free


def test_a_context_that_nobody_stated_takes_every_prompt() -> None:
    worker = Worker(name="a", max_model_len={"m": 4096})
    assert worker.fits("m", 4096)
    assert not worker.fits("m", 4097)
    assert worker.fits("other", 10**9)


def test_workers_of_equal_content_are_different_workers() -> None:
    assert Worker(name="a") != Worker(name="a")


def test_its_state_is_visible() -> None:
    worker = Worker(name="a", incarnation=2, health=Health(state=State.DRAINING))
    assert repr(worker) == "<Worker a#2 both draining [0 in flight | 0 KV tokens]>"


def test_a_signal_that_an_engine_does_not_export_is_absent_and_not_zero() -> None:
    stats = EngineStats(taken=1.0)
    assert {getattr(stats, name) for name in stats.__slots__ if name != "taken"} == {None}


def test_step_times_are_affine_in_what_they_depend_on() -> None:
    step = StepModel(0.01, 1e-4, 0.005, 1e-3, 1e-6)
    assert step.prefill_s(1000) == pytest.approx(0.11)
    assert step.step_s(8, 10_000) == pytest.approx(0.005 + 0.008 + 0.01)
