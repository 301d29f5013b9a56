"""The search ends at the highest rate that holds, and says what it tried."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from router.__main__ import main
from router.studies import saturate as module
from router.studies.compare import Plan, Task, cell
from router.studies.metrics import RunFigures
from router.studies.saturate import NeverHolds, Point, saturate


def task(workload: str = "chat_short", calls: int = 60) -> Task:
    [made] = Plan(policies=[("least_requests", {})], workloads=[workload], seeds=1, calls=calls).tasks()
    return made


@pytest.fixture
def cliff(monkeypatch: pytest.MonkeyPatch) -> float:
    """A policy that is worth everything up to a rate, and nothing beyond."""
    edge = 37.0

    def point(_task: Task, rate: float, _seeds: Sequence[int], _idle_s: float) -> Point:
        return Point(rate=rate, worth=float(rate <= edge), e2e_s=1.0, ttft_p99_s=1.0)

    monkeypatch.setattr(module, "_point", point)
    return edge


@pytest.mark.parametrize("start", [0.01, 1.0, 37.0, 5_000.0])
def test_the_edge_is_found_from_either_side(cliff: float, start: float) -> None:
    made = saturate(msgspec.structs.replace(task(), rate=start), 0.9, [1])
    assert cliff / 1.031 <= made.rate <= cliff
    assert [point.rate for point in made.points] == sorted(point.rate for point in made.points)


def test_what_always_holds_is_no_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "_point", lambda _t, rate, _s, _i: Point(rate=rate, worth=1.0, e2e_s=1.0, ttft_p99_s=1.0)
    )
    with pytest.raises(ValueError, match="holds at every rate"):
        saturate(task(), 0.9, [1])


def test_what_no_rate_holds_is_found_out_at_once_with_what_to_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def point(_task: Task, rate: float, _seeds: Sequence[int], _idle_s: float) -> Point:
        return Point(rate=rate, worth=0.813, e2e_s=1.0, ttft_p99_s=1.0)

    monkeypatch.setattr(module, "_point", point)
    tried: list[Point] = []
    with pytest.raises(NeverHolds, match=r"no rate holds 90 %: .* 81.3 % .*, say --goodput 0.75$") as caught:
        saturate(msgspec.structs.replace(task(), rate=100.0), 0.9, [1], told=tried.append)
    assert caught.value.ceiling == 0.813
    assert [each.rate for each in tried] == [5.0, 0.5]


@pytest.mark.parametrize("ceiling", [step / 50 for step in range(51)])
def test_what_is_advised_is_below_the_ceiling(ceiling: float) -> None:
    words = str(NeverHolds(0.9, ceiling, 1.0)).rpartition("--goodput ")[2]
    if ceiling <= 0.05:
        assert "too slow for these targets" in words
    else:
        assert 0.0 < float(words) < ceiling


def test_a_fleet_that_is_busy_at_the_first_look_gets_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = 0.9

    def point(_task: Task, rate: float, _seeds: Sequence[int], _idle_s: float) -> Point:
        return Point(rate=rate, worth=float(rate <= edge), e2e_s=1.0, ttft_p99_s=1.0)

    monkeypatch.setattr(module, "_point", point)
    made = saturate(msgspec.structs.replace(task(), rate=100.0), 0.9, [1])
    assert edge / 1.031 <= made.rate <= edge


def test_calls_that_miss_their_targets_alone_end_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", "long_prefill", "--policy", "round_robin", "--requests", "400", "--goodput", "1"]
    assert main(["saturate", *words]) == 1
    said = capsys.readouterr().err
    assert "pointsman saturate: no rate holds 100 %" in said
    assert "say --goodput 0." in said


def test_more_load_is_worth_less() -> None:
    def worth(rate: float) -> RunFigures:
        return cell(msgspec.structs.replace(task("mixed_bursty", 200), rate=rate)).figures

    low, high = worth(4.0).goodput, worth(300.0).goodput
    assert low is not None
    assert high is not None
    assert low > 0.8
    assert high < low - 0.2


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    words = ["saturate", "--workload", "classic_heavy_tail", "--policy", "round_robin", "--requests", "400"]
    assert main([*words, "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["rate"] > 0
    assert f"up to {written['rate']:.3g}" in " ".join(capsys.readouterr().out.split())


def test_a_workload_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["saturate", "--workload", "toolbenhc"]) == 2
    assert "did you mean toolbench?" in capsys.readouterr().err
