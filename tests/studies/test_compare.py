"""A comparison is a function of its plan, says what it compared, and is refused in words."""

import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from router.__main__ import main
from router.policies import POLICIES, Shape
from router.studies.compare import Cell, Plan, cells
from router.studies.compare_table import render
from router.studies.confidence import estimate, paired
from router.studies.lines import e2e_s, lines
from router.studies.setups import SETUPS, Choosing
from router.studies.simulation.known import measured, scaled
from router.studies.workloads import WORKLOADS


def plan(**what: object) -> Plan:
    knobs = {
        "policies": [("round_robin", {}), ("least_requests", {})],
        "workloads": ["chat_short"],
        "seeds": 2,
        "calls": 60,
    }
    return Plan(**knobs | what)  # type: ignore[arg-type]  # any field


def test_the_number_of_processes_changes_nothing() -> None:
    tasks = plan().tasks()
    assert cells(tasks, 1) == cells(tasks, 2)


def test_policies_meet_the_same_calls() -> None:
    made = cells(plan().tasks())
    assert [each.task.seed for each in made] == [1, 1, 2, 2]
    assert made[0].figures.calls == made[1].figures.calls == 60
    assert made[0].figures.answered == 60


def test_results_come_by_workload_and_policy_with_the_difference_to_the_first() -> None:
    made = lines(cells(plan(workloads=["chat_short", "long_decode"], calls=40).tasks()))
    assert [(line.workload, line.policy) for line in made] == [
        ("chat_short", "round_robin"),
        ("chat_short", "least_requests"),
        ("long_decode", "round_robin"),
        ("long_decode", "least_requests"),
    ]
    assert made[0].against_first(e2e_s) is None
    gain, first, second = made[1].against_first(e2e_s), made[0].mean(e2e_s), made[1].mean(e2e_s)
    assert gain is not None
    assert first is not None
    assert second is not None
    assert gain.mean == pytest.approx(second.mean - first.mean)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs_on_its_own_setup(name: str) -> None:
    workload = WORKLOADS[name]
    assert name in SETUPS[workload.setup].rates
    small = plan(policies=[("least_tokens", {})], workloads=[name], seeds=1, calls=24)
    [made] = cells(small.tasks())
    assert made.figures.answered == made.figures.calls > 0


@pytest.mark.parametrize("setup", [name for name, setup in SETUPS.items() if not setup.plain])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_on_every_setup(policy: str, setup: str) -> None:
    if POLICIES[policy].shape is Shape.PAIR:
        pytest.skip("it only chooses pairs")
    small = plan(
        policies=[(policy, {})], workloads=["chat_short"], setup=setup, seeds=1, calls=20,
        rates={"chat_short": 5.0},
    )  # fmt: skip
    [made] = cells(small.tasks())
    assert made.figures.answered == 20


def test_all_calls_at_once_keep_the_order_of_the_classics() -> None:
    saturated = plan(rates={"chat_short": None}, calls=100, seeds=1)
    made = cells(saturated.tasks())
    assert all(each.figures.answered == 100 for each in made)


def test_a_rate_that_nobody_knows_must_be_said() -> None:
    with pytest.raises(ValueError, match="no rate is known for agents on calibrated_a40"):
        plan(workloads=["agents"], setup="calibrated_a40").tasks()


# --- the command ----------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    words = ["compare", "--workloads", "chat_short", "--policies", "random,least_tokens", "--requests", "30"]
    assert main([*words, "--seeds", "2", "--jobs", "1", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "chat_short" in out
    assert "least_tokens" in out
    written = json.loads(file.read_text())
    assert [cell["task"]["policy"] for cell in written["cells"]] == ["random", "least_tokens"] * 2
    assert written["plan"]["calls"] == 30


def test_the_calls_can_be_described_without_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    assert main(["compare", "--workloads", "toolbench,chat_short", "--describe", "--json", str(file)]) == 0
    told = json.loads(file.read_text())["workloads"]
    assert told["toolbench"]["calls"] == 2_000
    assert told["toolbench"]["shared_share"] > 0.5 > told["chat_short"]["shared_share"]
    assert "shared %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workloads", "toolbenhc"], "did you mean toolbench?"),
        (["--policies", "prebel"], "did you mean preble?"),
        (["--policies", "preble:window=5"], "has no parameter 'window'"),
        (["--rate", "fast"], "calls per second above 0, or saturated"),
        (["--full", "--requests", "5"], "contradict each other"),
        (["--workloads", "agents", "--setup", "calibrated_a40"], "no rate is known"),
    ],
)
def test_flags_that_mean_nothing_are_refused_in_words(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_parameters_are_part_of_the_name() -> None:
    assert Choosing(policy="preble", params={"window_s": 60}).name == "preble(window_s=60)"
    assert Choosing(policy="preble").name == "preble"


def test_a_table_fits_a_wide_terminal_and_marks_what_is_certain() -> None:
    made: list[Cell] = cells(plan(seeds=3).tasks())
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render(lines(made)))
    text = console.export_text()
    assert "…" not in text
    assert "±" in text


# --- the pieces -----------------------------------------------------------------------------------------


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=40))
def test_an_interval_is_around_the_mean(values: list[float]) -> None:
    made = estimate(values)
    assert made.mean == pytest.approx(math.fsum(values) / len(values))
    assert made.half is not None
    assert made.half >= 0


def test_an_interval_by_hand() -> None:
    made = estimate([1.0, 2.0, 3.0, 4.0])
    assert made.mean == 2.5
    assert made.half == pytest.approx(3.182 * math.sqrt(5 / 3 / 4), rel=1e-4)
    assert estimate([7.0]).half is None
    assert paired([2.0, 4.1], [1.0, 3.0]).mean == pytest.approx(1.05)
    assert paired([2.0, 4.1], [1.0, 3.0]).certain_sign == 1
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_what_has_no_end_is_no_certain_difference() -> None:
    """A policy that answers nothing has infinite latencies."""
    nothing = [math.inf, math.inf]
    for made in (estimate(nothing), paired(nothing, [1.0, 2.0]), paired(nothing, nothing)):
        assert (made.half, made.certain_sign) == (None, 0)
    assert paired([math.inf, 1.0], [1.0, math.inf]).certain_sign == 0


@pytest.mark.parametrize("setup", [name for name, setup in SETUPS.items() if not setup.plain])
def test_the_coefficients_that_a_router_is_told_are_those_of_the_clock(setup: str) -> None:
    fleet = SETUPS[setup].plan(Choosing(policy="least_requests"))
    for pool in fleet.pools:
        for worker in pool.workers:
            model = measured(worker.clock)
            assert worker.calibrated == model
            load = worker.clock.step_s([], [2_000] * 32)  # type: ignore[attr-defined]  # both clocks have it
            assert model.step_s(32, 64_000) == pytest.approx(load, rel=0.05)
            prompt = worker.clock.step_s([(1_000, 0)], [])  # type: ignore[attr-defined]  # both clocks have it
            assert model.prefill_s(1_000) == pytest.approx(prompt, rel=0.1, abs=2e-3)


def test_wrong_constants_are_wrong_by_the_factor() -> None:
    fleet = SETUPS["calibrated_a40"].plan(Choosing(policy="least_requests"))
    model = measured(fleet.pools[0].workers[0].clock)
    assert scaled(model, 1 / 7.4).step_s(10, 1_000) == pytest.approx(model.step_s(10, 1_000) / 7.4)
    assert scaled(model, 1 / 7.4).prefill_s(100) == model.prefill_s(100)
