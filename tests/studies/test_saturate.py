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
from router.studies.saturate import Point, saturate


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
    monkeypatch.setattr(module, "_idle_s", lambda *_: 1.0)
    return edge


@pytest.mark.parametrize("start", [0.01, 1.0, 37.0, 5_000.0])
def test_the_edge_is_found_from_either_side(cliff: float, start: float) -> None:
    made = saturate(msgspec.structs.replace(task(), rate=start), 0.9, [1])
    assert cliff / 1.031 <= made.rate <= cliff
    assert [point.rate for point in made.points] == sorted(point.rate for point in made.points)


def test_what_always_holds_is_no_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_idle_s", lambda *_: 1.0)
    monkeypatch.setattr(
        module, "_point", lambda _t, rate, _s, _i: Point(rate=rate, worth=1.0, e2e_s=1.0, ttft_p99_s=1.0)
    )
    with pytest.raises(ValueError, match="holds at every rate"):
        saturate(task(), 0.9, [1])


def test_more_load_is_worth_less() -> None:
    def worth(rate: float) -> RunFigures:
        return cell(msgspec.structs.replace(task("mixed_bursty", 200), rate=rate)).figures

    low, high = worth(4.0).goodput, worth(60.0).goodput
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
