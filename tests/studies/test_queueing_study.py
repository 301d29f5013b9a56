"""Policies before plain servers show what queueing theory says."""

import functools

import pytest

from router.studies.metrics import figures
from router.studies.queueing import QueuePlan, balls_in_bins, serve
from router.studies.workloads import WORKLOADS

JOBS, WARM_UP = 12_000, 1_500


@functools.cache
def mean_s(policy: str, workload: str = "classic_exponential", stale_s: float = 0.0) -> float:
    calls = WORKLOADS[workload].calls(JOBS, 0.9 * 16, 7)
    result = serve(QueuePlan(policy=policy, params={}, stale_s=stale_s, warm_up=WARM_UP), calls, 1)
    assert len(result.calls) == JOBS - WARM_UP
    return figures(result).mean_e2e_s


def test_the_order_of_the_lecture_holds() -> None:
    order = ["random", "round_robin", "power_of_two", "least_requests", "least_work"]
    means = [mean_s(policy) for policy in order]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [
        ("random", 7.0, 16.0),
        ("round_robin", 3.5, 8.0),
        ("power_of_two", 2.4, 3.3),
        ("least_requests", 1.4, 1.8),
    ],
)
def test_means_lie_in_their_bands(policy: str, low: float, high: float) -> None:
    assert low < mean_s(policy) < high


def test_work_beats_counts_under_a_heavy_tail() -> None:
    assert mean_s("least_work", "classic_heavy_tail") < 0.9 * mean_s("least_requests", "classic_heavy_tail")


def test_old_counts_ruin_the_shortest_queue_and_hardly_hurt_two_choices() -> None:
    assert mean_s("least_requests", stale_s=4.0) > 4.0 * mean_s("least_requests")
    assert mean_s("power_of_two", stale_s=4.0) < 1.8 * mean_s("power_of_two")
    assert mean_s("power_of_two", stale_s=4.0) < mean_s("least_requests", stale_s=4.0)


def test_two_choices_keep_the_fullest_bin_low() -> None:
    one, two = balls_in_bins(20_000, 1, 3), balls_in_bins(20_000, 2, 3)
    assert 5 <= one <= 9
    assert 3 <= two <= 4


def test_equal_seeds_give_equal_runs() -> None:
    calls = WORKLOADS["classic_exponential"].calls(500, 14.4, 7)
    plan = QueuePlan(policy="power_of_two", params={})
    assert serve(plan, calls, 1) == serve(plan, calls, 1)
    assert serve(plan, calls, 1) != serve(plan, calls, 2)
