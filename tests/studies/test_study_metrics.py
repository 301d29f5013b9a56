"""Figures say what became of the calls: who waited where, what nobody could serve, what decisions cost."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from engines.model.parts import Part
from router.core.binding import Mode
from router.policies import POLICIES
from router.studies.compare import Plan, cell
from router.studies.lines import e2e_s, goodput, lines, of_groups, regret
from router.studies.metrics import RunFigures, Slo, figures
from router.studies.simulation.call import Call
from router.studies.simulation.judging import JudgeFailed
from router.studies.simulation.run import RunResult, simulate
from tests.studies.simulation_examples import CLOCK, calls, fleet, split_fleet

EASY = {"": Slo(1e6, 1e6)}
JUDGES = sorted(name for name in POLICIES if name != "random")


def judged(result: RunResult) -> RunFigures:
    return figures(result, EASY)


# --- what nobody can serve --------------------------------------------------------------------------------


def test_a_prompt_that_no_engine_takes_is_counted_apart() -> None:
    made = [*calls(9), Call(number=9, at=0.0, parts=(Part(5, 9_000),), output_tokens=5)]
    found = judged(simulate(fleet(2), made))
    assert found.too_long == 1
    assert found.outcomes == {"ok": 9, "too_long": 1}
    assert found.goodput == 1.0
    assert found.goodput_by_class == {"": 1.0}


def test_a_prompt_that_just_fits_is_answered_as_far_as_there_is_room() -> None:
    [record] = simulate(fleet(1), [Call(number=0, at=0.0, parts=(Part(5, 7_990),), output_tokens=50)]).calls
    assert (record.outcome, record.tokens) == ("ok", 10)


def test_nothing_but_what_nobody_can_serve_has_no_goodput() -> None:
    found = judged(simulate(fleet(1), [Call(number=0, at=0.0, parts=(Part(5, 9_000),), output_tokens=5)]))
    assert (found.goodput, found.answered, found.too_long) == (0.0, 0, 1)


# --- waits ------------------------------------------------------------------------------------------------


def waits(result: RunResult) -> tuple[float, float]:
    found = judged(result).latencies
    assert found.pool_wait_s is not None
    assert found.engine_wait_s is not None
    return found.pool_wait_s.mean, found.engine_wait_s.mean


def test_waits_are_told_where_they_happen() -> None:
    burst = calls(60, rate=2_000.0)
    early = waits(simulate(fleet(1, slots=16), burst))
    late = waits(simulate(fleet(1, slots=16, mode=Mode.LATE), burst))
    assert early[0] == 0.0
    assert early[1] > 0.1
    assert late[0] > 0.1
    assert late[1] < 0.05
    assert sum(early) == pytest.approx(sum(late), rel=0.2)


def test_a_prefill_is_no_wait_in_the_pool_of_decodes() -> None:
    pool_s, _ = waits(simulate(split_fleet(), calls(5, rate=1.0)))
    assert pool_s == 0.0


def test_waits_and_work_are_the_time_to_the_first_token() -> None:
    [record] = simulate(fleet(1), [Call(number=0, at=0.0, parts=(Part(1, 400),), output_tokens=1)]).calls
    assert record.ttft_s == pytest.approx(record.engine_wait + CLOCK.step_s([(400, 0)], []) + 0.002)


# --- regret -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("plan", [fleet(3, policy="power_of_two", slots=16), split_fleet("least_requests")])
def test_a_judge_changes_nothing(judge: str, plan: object) -> None:
    made = calls(40, shared=200)
    alone = simulate(plan, made)  # type: ignore[arg-type]  # a parameter
    watched = simulate(plan, made, judge=judge)  # type: ignore[arg-type]  # a parameter
    assert watched.regrets
    assert alone.regrets == {}
    assert replace(watched, regrets={}) == alone


@pytest.mark.parametrize("policy", ["least_requests", "least_tokens", "least_work", "cache_aware"])
def test_no_policy_regrets_what_it_would_have_done_itself(policy: str) -> None:
    [found] = simulate(fleet(4, policy=policy), calls(80, shared=500), judge=policy).regrets.values()
    assert (found.decisions, found.agreed, found.total) == (80, 80, 0.0)


def test_who_does_not_look_is_regretted() -> None:
    def of(policy: str) -> float:
        found = regret(judged(simulate(fleet(4, policy=policy), calls(120, rate=40.0), judge="least_tokens")))
        assert found is not None
        return found

    assert of("random") > of("power_of_two") > 0.0


def test_a_judge_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("router.core.seat.Seat.explain", fails)
    with pytest.raises(JudgeFailed, match="the judge least_tokens failed: a bug"):
        simulate(fleet(2), calls(3), judge="least_tokens")


# --- over the seeds ---------------------------------------------------------------------------------------


def test_a_line_has_the_mean_of_every_figure_and_pairs_it_with_the_first_policy() -> None:
    plan = Plan(
        policies=[("round_robin", {}), ("least_tokens", {})],
        workloads=["balanceroute_azure"],
        seeds=3,
        calls=40,
        judge="least_tokens",
    )
    first, second = lines([cell(task) for task in plan.tasks()])
    for read in (e2e_s, goodput, regret, of_groups("idle_share"), of_groups("imbalance_tokens")):
        mean, base, gain = second.mean(read), first.mean(read), second.against_first(read)
        assert mean is not None
        assert base is not None
        assert gain is not None
        assert gain.mean == pytest.approx(mean.mean - base.mean)
        assert first.against_first(read) is None
    assert first.mean(lambda run: run.tenant_fairness) is None


def test_what_was_not_answered_and_what_could_not_be_are_two_numbers() -> None:
    made = [*calls(9), Call(number=9, at=0.0, parts=(Part(5, 9_000),), output_tokens=5)]
    found = judged(simulate(fleet(2), made))
    task = Plan(policies=[("random", {})], workloads=["chat_short"], seeds=1, calls=10).tasks()[0]
    run = cell(task)
    [line] = lines([msgspec.structs.replace(run, figures=found)])
    assert (line.unanswered, line.too_long) == (0, 1)


def test_where_nothing_was_answered_times_are_infinite_and_no_error() -> None:
    nobody = judged(simulate(fleet(1), [Call(number=0, at=0.0, parts=(Part(5, 9_000),), output_tokens=5)]))
    assert nobody.mean_e2e_s == math.inf
    assert e2e_s(nobody) == math.inf
