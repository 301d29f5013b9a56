"""Workloads repeat under a seed and match the figures that their pages claim."""

import math
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.workloads import WORKLOADS, describe
from router.studies.workloads.arrivals import Arrivals, all_at_once, bursts, gamma, poisson, recorded
from router.studies.workloads.lengths import Zipf, lognormal
from router.studies.workloads.preble import FAMILIES, Family


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_give_equal_calls(name: str) -> None:
    workload = WORKLOADS[name]
    assert workload.calls(200, 5.0, 1) == workload.calls(200, 5.0, 1)
    assert workload.calls(200, 5.0, 1) != workload.calls(200, 5.0, 2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_calls_are_numbered_in_order_and_come_in_order(name: str) -> None:
    calls = WORKLOADS[name].calls(300, 5.0, 1)
    assert [call.number for call in calls] == list(range(300))
    times = [call.at for call in calls if call.after is None]
    assert times == sorted(times)
    assert all(call.after < call.number for call in calls if call.after is not None)
    assert all(call.output_tokens >= 1 for call in calls)
    assert all(part.tokens >= 0 for call in calls for part in call.parts)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_preble_families_have_the_published_moments(family: Family) -> None:
    figures = describe(WORKLOADS[family.name].calls(family.calls, 1.0, 3))
    assert figures.prompt_tokens is not None
    assert figures.output_tokens is not None
    assert figures.prompt_tokens.mean == pytest.approx(family.prompt, rel=0.1)
    assert figures.prompt_sd == pytest.approx(family.prompt_sd, rel=0.6)
    assert figures.output_tokens.mean == pytest.approx(family.output, rel=0.15)
    assert figures.shared_share == pytest.approx(family.shared, abs=0.13)


def test_the_traces_of_balanceroute_have_the_published_means() -> None:
    azure = describe(WORKLOADS["balanceroute_azure"].calls(8_000, 1.0, 1))
    own = describe(WORKLOADS["balanceroute_proprietary"].calls(8_000, 1.0, 1))
    assert azure.prompt_tokens is not None
    assert azure.output_tokens is not None
    assert own.prompt_tokens is not None
    assert own.output_tokens is not None
    assert azure.prompt_tokens.mean == pytest.approx(4_652, rel=0.05)
    assert azure.output_tokens.mean == pytest.approx(1_052, rel=0.01)
    assert own.prompt_tokens.mean == pytest.approx(3_197, rel=0.07)
    assert own.output_tokens.mean == pytest.approx(1_185, rel=0.1)
    assert own.output_sd > own.output_tokens.mean


def test_jobs_of_the_classics_take_a_second_on_the_mean() -> None:
    for name, squared_cv in (("classic_exponential", 1.0), ("classic_heavy_tail", 4.75)):
        works = [call.work_s for call in WORKLOADS[name].calls(40_000, 1.0, 1)]
        mean = math.fsum(works) / len(works)
        variance = math.fsum((work - mean) ** 2 for work in works) / len(works)
        assert mean == pytest.approx(1.0, rel=0.03)
        assert variance / mean**2 == pytest.approx(squared_cv, rel=0.05)


def test_samples_of_one_problem_ask_the_same_prompt_in_a_row() -> None:
    calls = WORKLOADS["programming"].calls(80, 1.0, 1)
    for first in range(0, 80, 8):
        assert len({call.parts for call in calls[first : first + 8]}) == 1
    assert calls[0].parts != calls[8].parts


def test_turns_of_an_agent_go_on_from_the_answer_before() -> None:
    calls = WORKLOADS["agents"].calls(400, 1.0, 1)
    later = [call for call in calls if call.after is not None]
    assert len(later) > 300
    for call in later:
        assert call.after is not None
        before = calls[call.after]
        assert call.session == before.session
        assert call.parts[: len(before.parts)] == before.parts
        assert call.parts[len(before.parts)] == (before.answer, before.output_tokens)


def test_half_of_the_calls_of_the_bursty_mix_are_tight() -> None:
    figures = describe(WORKLOADS["mixed_bursty"].calls(2_500, 13.0, 1))
    assert figures.classes["tight"] == pytest.approx(1_250, rel=0.1)
    assert figures.gap_cv is not None
    assert figures.gap_cv > 1.15


PROCESSES: dict[str, Arrivals] = {
    "poisson": poisson,
    "gamma": gamma(3.0),
    "bursts": bursts(change=0.05),
    "recorded": recorded([0.0, 0.5, 0.6, 2.0, 7.0]),
}


@pytest.mark.parametrize("name", PROCESSES)
@given(rate=st.floats(0.1, 100), seed=st.integers(0, 20))
def test_arrivals_come_at_the_rate_asked_for(name: str, rate: float, seed: int) -> None:
    times = list(islice(PROCESSES[name](rate, Random(seed)), 6_000))
    assert times == sorted(times)
    assert (len(times) - 1) / (times[-1] - times[0]) == pytest.approx(rate, rel=0.3)


def test_all_at_once_is_all_at_once() -> None:
    assert list(islice(all_at_once(3.0, Random(1)), 4)) == [0.0] * 4


@pytest.mark.parametrize("times", [[], [1.0], [2.0, 2.0]])
def test_a_trace_without_time_is_no_arrival_process(times: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two times"):
        recorded(times)


@given(mean=st.floats(1, 1e4), cv=st.floats(0.1, 2))
def test_lognormals_have_the_moments_asked_for(mean: float, cv: float) -> None:
    chance = Random(5)
    values = [lognormal(mean, cv * mean, chance) for _ in range(4_000)]
    assert math.fsum(values) / len(values) == pytest.approx(mean, rel=0.2)


def test_zipf_draws_by_rank() -> None:
    zipf, chance = Zipf(300, 1.1), Random(1)
    drawn = [zipf.draw(chance) for _ in range(50_000)]
    for rank, share in enumerate((0.203, 0.095, 0.061, 0.044)):
        assert drawn.count(rank) / len(drawn) == pytest.approx(share, abs=0.006)
        assert zipf.shares()[rank] == pytest.approx(share, abs=0.002)
    assert math.fsum(zipf.shares()) == pytest.approx(1.0)
