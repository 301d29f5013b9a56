"""Laws of the patience with a silent worker."""

from __future__ import annotations

import pytest

from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.patience import Patience
from router.core.worker import StepModel, Worker
from tests.core.fleet_examples import request


def worker(queued: int = 0, *, stream: bool = True, stats: EngineStats | None = None) -> Worker:
    made = Worker(name="a", stats=stats, last_sign=100.0)
    made.mirror.charge(Lease(request(stream=stream), "a", 0, 100.0, queued, 50))
    return made


@pytest.mark.parametrize(
    ("queued", "patience_s"), [(0, 10.0), (10_000, 10.0), (50_000, 45.0), (10**6, 120.0)]
)
def test_patience_is_three_prefills_within_its_bounds(queued: int, patience_s: float) -> None:
    assert Patience().of(worker(queued)) == pytest.approx(patience_s)


def test_a_calibrated_worker_is_given_its_own_time() -> None:
    made = worker(10_000)
    made.step = StepModel(1.0, 1e-3, 0.0, 0.0, 0.0)
    assert Patience().of(made) == pytest.approx(33.0)


def test_a_worker_without_work_owes_no_sign() -> None:
    assert not Patience().exhausted(Worker(name="a"), 1e9)


def test_a_stream_is_heard_until_now() -> None:
    assert not Patience().exhausted(worker(), 110.0)
    assert Patience().exhausted(worker(), 110.1)


def test_a_counter_is_heard_until_the_last_scrape() -> None:
    early = worker(stream=False, stats=EngineStats(taken=105.0, generation_tokens=1.0))
    late = worker(stream=False, stats=EngineStats(taken=111.0, generation_tokens=1.0))
    assert not Patience().exhausted(early, 500.0), "its metrics are lost, which says nothing of its work"
    assert Patience().exhausted(late, 111.0)


@pytest.mark.parametrize("stats", [None, EngineStats(taken=400.0)])
def test_without_streams_and_without_a_counter_silence_says_nothing(stats: EngineStats | None) -> None:
    assert not Patience().exhausted(worker(stream=False, stats=stats), 500.0)
