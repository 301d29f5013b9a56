"""One scenario, from its file to its figures: repeatable to the byte, and refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.__main__ import main

SCENARIO = """
pools:
  default:
    policy: round_robin
    slots: 32
    workers: [http://a:9001, http://a:9002, http://a:9003]
mock: {fleet: [{port: 9001, count: 3, kv_tokens: 60000}]}
slo: {tight: {ttft_s: 0.3, tpot_s: 0.05}}
workload: {name: mixed_bursty, rate: 6, requests: 60, seeds: 2}
"""
RANKS = """
pools: {default: {policy: balance_route_0, slots: 16, dp_size: 4, workers: [http://a:9001]}}
mock: {fleet: [{port: 9001, kv_tokens: 60000, flags: {dp-size: 4}}]}
workload: {name: chat_short, rate: 20, requests: 80}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    return file


def simulate(*words: object) -> int:
    return main(["simulate", *(str(word) for word in words)])


def test_all_figures_are_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(file, "--jobs", "1") == 0
    out = capsys.readouterr().out
    assert "round_robin: mixed_bursty at 6 calls/s on scenario.yaml, 2 runs, ±" in out
    words = out.split()
    for word in ("TTFT", "goodput", "tight", "loose", "long_prefill", "a:9002", "preemptions"):
        assert word in words, word
    assert "calls ok" in out
    assert "120" in words


def test_equal_seeds_give_equal_bytes_whatever_the_number_of_processes(file: Path, tmp_path: Path) -> None:
    written = []
    for jobs in ("1", "2"):
        out, page = tmp_path / f"{jobs}.json", tmp_path / f"{jobs}.html"
        assert simulate(file, "--jobs", jobs, "--json", out, "--html", page) == 0
        written.append((out.read_bytes(), page.read_bytes()))
    assert written[0] == written[1]
    assert b"tmp" not in written[0][0]


def test_every_run_is_a_line_with_its_parts(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert simulate(file, "--jobs", "1", "--json", out, "--seeds", "3") == 0
    assert sum(line.startswith('{"task"') for line in out.read_text().splitlines()) == 3
    cells = json.loads(out.read_text())["cells"]
    assert [cell["task"]["seed"] for cell in cells] == [1, 2, 3]
    parts = cells[0]["breakdown"]
    for what in ("classes", "families", "workers"):
        assert sum(part["calls"] for part in parts[what].values()) == 60
    assert set(parts["classes"]) == {"tight", "loose"}
    assert cells[0]["figures"]["goodput_by_class"].keys() == parts["classes"].keys()


def test_another_policy_can_be_tried(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert simulate(file, "--jobs", "1", "--policy", "preble:window_s=60", "--json", out) == 0
    [task, _] = [cell["task"] for cell in json.loads(out.read_text())["cells"]]
    assert (task["policy"], task["params"]) == ("preble", {"window_s": 60})


def test_barrier_groups_have_figures_and_loads_of_bounded_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, page = tmp_path / "ranks.yaml", tmp_path / "out.json", tmp_path / "page.html"
    file.write_text(RANKS)
    assert simulate(file, "--jobs", "1", "--seeds", "2", "--json", out, "--html", page) == 0
    assert "max − min KV" in capsys.readouterr().out
    first, second = json.loads(out.read_text())["cells"]
    [loads] = first["loads"].values()
    assert len(loads["kv_tokens"]) == 4
    assert 1 < len(loads["at_s"]) <= 120
    assert all(len(row) == len(loads["at_s"]) for row in loads["kv_tokens"])
    assert second["loads"] == {}
    assert "KV tokens in use at each worker over time" in page.read_text()


def test_calls_that_no_engine_takes_are_told_of(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SCENARIO.replace("kv_tokens: 60000", "flags: {max-model-len: 1000}"))
    assert simulate(file, "--jobs", "1", "--seeds", "1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not all fit into the 1,000 tokens that an engine takes" in out
    assert "are refused as too long, as an engine does" in out
    assert "calls too_long" in out


def test_a_worker_that_crashes_loses_its_calls_to_the_others(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    trouble = "seeds: 1, troubles: [{at_s: 2, worker: 'a:9002', what: crash}]"
    file.write_text(SCENARIO.replace("seeds: 2", trouble))
    assert simulate(file, "--jobs", "1", "--json", out) == 0
    [cell] = json.loads(out.read_text())["cells"]
    workers = cell["breakdown"]["workers"]
    assert workers["a:9002"]["calls"] < min(workers["a:9001"]["calls"], workers["a:9003"]["calls"]) / 2
    assert cell["figures"]["answered"] >= 58


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "scenario.yaml: it has no workload, and so is a configuration but no scenario"),
        ("pools: 7", "pools is 7"),
        (SCENARIO.replace("mixed_bursty", "mixed_brusty"), "did you mean mixed_bursty?"),
        (SCENARIO.replace("9001, count", "9101, count"), "no group of mock.fleet has the port 9001"),
        (SCENARIO.replace("mixed_bursty", "trace:gone.csv"), "cannot read the trace gone.csv"),
        (SCENARIO + "calibration: {file: gone.yaml}", "gone.yaml cannot be read"),
        (SCENARIO.replace("rate: 6", "rate: -6"), "workload.rate is -6"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(
    text: str, sentence: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert simulate(file) == 2
    assert sentence in capsys.readouterr().err


def test_flags_that_do_not_fit_the_file_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SCENARIO.replace("    slots: 32\n", ""))
    assert simulate(file, "--policy", "balance_route_h") == 2
    assert "set pools.default.slots to its max_num_seqs" in capsys.readouterr().err
    assert simulate(file.with_name("gone.yaml")) == 2
    assert "gone.yaml does not exist" in capsys.readouterr().err


def test_check_says_what_a_scenario_lets_come(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "simulated     60 calls of mixed_bursty, 6 a second, 2 runs" in out
    assert "warning" not in out
    for before, after, sentence in (
        ("mixed_bursty", "mixed_brusty", "refuses this file: workload.name is 'mixed_brusty'"),
        ("9001, count", "9101, count", "refuses this file: nothing says how fast the worker a:9001 is"),
        ("workload:", "retry: {poison_guard: true}\nworkload:", "retry.poison_guard is not simulated"),
    ):
        file.write_text(SCENARIO.replace(before, after))
        assert main(["check", "--config", str(file)]) == 0
        [warning] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
        assert sentence in warning
