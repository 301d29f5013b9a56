"""Laws of studies that would never end or never fit: they are refused in one sentence, before they begin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import router.studies.simulation.run as run_module
from engines.mock.__main__ import parser
from router.__main__ import main
from router.studies import scenario_engines
from router.studies.compare_table import short
from router.studies.workloads.arrivals import check_length

FLEET = """
pools: {default: {policy: cache_aware, workers: [http://w0:9001]}}
mock: {fleet: [{port: 9001, kv_tokens: 60000}]}
"""
TOO_LONG = "do not come within 366 days"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    lines = [
        {"timestamp": 1_000 * at, "input_length": 600, "output_length": 5, "hash_ids": [1, at + 2]}
        for at in range(4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("rate", [1e-300, 5e-324, 1e-7])
def test_calls_that_take_more_than_a_year_to_come_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=TOO_LONG):
        check_length(60, rate)


def test_a_week_of_calls_and_calls_at_once_are_not_too_long() -> None:
    check_length(7 * 86_400, 1.0)
    check_length(10_000_000, None)


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--rate", "1e-300", "--requests", "20"],
        ["compare", "--rates", "1e-7,5", "--requests", "20"],
        ["compare", "--describe", "--rate", "1e-300"],
    ],
)
def test_compare_refuses_a_rate_at_which_it_never_ends(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert TOO_LONG in capsys.readouterr().err


def test_a_scenario_refuses_a_rate_at_which_it_never_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(f"{FLEET}workload: {{name: agents, rate: 1.0e-9, requests: 20}}\n", encoding="utf-8")
    assert main(["simulate", str(file)]) == 2
    assert TOO_LONG in capsys.readouterr().err


def test_whatif_refuses_a_speed_at_which_it_never_ends(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text(FLEET, encoding="utf-8")
    words = ["whatif", "--log", str(trace), "--config", str(config), "--speeds", "1e-9,1"]
    assert main(words) == 2
    assert TOO_LONG in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "saturate"])
def test_more_calls_than_a_scenario_may_ask_for_are_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--requests", "1000000000000"])
    assert ended.value.code == 2
    assert "more than 10,000,000" in capsys.readouterr().err


def test_a_study_without_enough_memory_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(run_module.Simulation, "_arrive", full)
    words = ["compare", "--policies", "random", "--requests", "5", "--seeds", "1", "--jobs", "1"]
    assert main(words) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "pointsman compare: there is not enough memory for what was asked"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workloads", "toolbench", "--setup", "classic_16"], "toolbench cannot run on classic_16: "),
        (
            ["--workloads", "classic_exponential", "--setup", "agents_a100"],
            "classic_exponential cannot run on ",
        ),
    ],
)
def test_calls_with_tokens_and_servers_without_do_not_go_together(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words, "--rate", "1"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_trace_format_that_is_unknown_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--workloads", f"trace:{trace}:csv"]) == 2
    assert "the trace format 'csv' is unknown; known: azure, " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named_and_the_other_one_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--policies", "random", "--requests", "5", "--seeds", "1", "--jobs", "1"]
    page = tmp_path / "page.html"
    assert main([*words, "--json", "/dev/full", "--html", str(page)]) == 1
    assert capsys.readouterr().err == (
        "pointsman compare: /dev/full was not written: No space left on device\n"
    )
    assert page.exists()


def test_a_flag_that_the_mock_does_not_have_is_refused_and_not_simulated_as_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    fleet = FLEET.replace("kv_tokens: 60000", "flags: {max-num-seq: 8}")
    file.write_text(f"{fleet}workload: {{name: agents, rate: 5, requests: 20}}\n", encoding="utf-8")
    assert main(["simulate", str(file)]) == 2
    assert "mock.fleet[0]: pointsman mock has no flag max-num-seq; did you mean max-num-seqs?" in (
        capsys.readouterr().err
    )


def test_the_flags_that_may_be_set_are_those_of_the_mock() -> None:
    words = {word for action in parser()._actions for word in action.option_strings}
    long = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert long - {"help"} == scenario_engines._FLAGS


@pytest.mark.parametrize(
    ("kv_tokens", "sentence"),
    [(1, "holds 1 tokens, which is less than one block of 16"), (10**12, "at most 10,000,000 are simulated")],
)
def test_a_measured_kv_that_no_gpu_has_is_refused(
    kv_tokens: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "calibration.yaml").write_text(
        "version: 1\nmeasured: 2026-11-29T10:00:00Z\nworkers:\n  w0:9001: {url: http://w0:9001, role: both, "
        f"model: m, kv_capacity_tokens: {kv_tokens}, prefill: {{base_s: 0.004, per_token_s: 0.00006}}, "
        "step: {base_s: 0.0155, per_sequence_s: 0.00012, per_kv_token_s: 0.0000001}}\n",
        encoding="utf-8",
    )
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"calibration: {{file: {tmp_path}/calibration.yaml}}\npools: {{default: {{workers: [http://w0:9001]}}}}\n"
        "workload: {name: chat_short, rate: 5, requests: 20}\n",
        encoding="utf-8",
    )
    assert main(["simulate", str(file)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_described_kv_that_no_gpu_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    fleet = FLEET.replace("60000", "1000000000000")
    file.write_text(f"{fleet}workload: {{name: chat_short, rate: 5, requests: 20}}\n", encoding="utf-8")
    assert main(["simulate", str(file)]) == 2
    assert "at most 10,000,000 are simulated" in capsys.readouterr().err


def test_results_do_not_overwrite_what_a_study_reads(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, link = tmp_path / "fleet.yaml", tmp_path / "link"
    config.write_text(f"{FLEET}workload: {{name: agents, rate: 5, requests: 20}}\n", encoding="utf-8")
    link.symlink_to(trace)
    before = trace.read_bytes(), config.read_bytes()
    for words in (
        ["whatif", "--log", str(trace), "--config", str(config), "--json", str(link)],
        ["whatif", "--log", str(trace), "--config", str(config), "--html", str(config)],
        ["simulate", str(config), "--json", str(config)],
        ["compare", "--workloads", f"toolbench,trace:{trace}", "--json", str(trace)],
        ["saturate", "--workload", f"trace:{trace}", "--html", str(trace)],
    ):
        assert main(words) == 2
        assert "is read by this study" in capsys.readouterr().err
    assert (trace.read_bytes(), config.read_bytes()) == before


def test_the_rate_of_starts_is_not_taken_for_that_of_calls(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--describe", "--workloads", "agents", "--rate", "12", "--requests", "60"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "starts/s" in shown
    assert "calls/s" not in shown


def hostile(trace: Path) -> Path:
    """A log of the live router's kind whose clients called their models what they liked."""
    path = trace.with_name("log[prod].jsonl")
    header = {"format": "pointsman-request-log", "version": 1, "block_characters": 256, "salt_id": ""}
    names = ["[bold]a[/]\x1b[2J", "b\x07", "<script>alert(1)</script>", "m" * 500]
    lines = [
        {
            "arrival": 1_700_000_000.0 + at,
            "id": str(at),
            "tenant": "<img src=x onerror=alert(1)>",
            "model": name,
            "api": "chat",
            "stream": True,
            "prompt_tokens": 100,
            "output_tokens": 5,
            "phases": {"total_s": 1.0},
            "outcome": "ok",
            "status": 200,
        }
        for at, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]), encoding="utf-8")
    return path


def test_names_in_a_log_command_neither_terminal_nor_page(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, page = tmp_path / "fleet.yaml", tmp_path / "page.html"
    config.write_text(FLEET, encoding="utf-8")
    words = ["whatif", "--log", str(hostile(trace)), "--config", str(config), "--policies", "random"]
    assert main([*words, "--seeds", "2", "--jobs", "1", "--html", str(page)]) == 0
    out, written = capsys.readouterr().out, page.read_text(encoding="utf-8")
    assert not {"\x1b", "\x07"} & {*out, *written}
    assert "trace:log[prod].jsonl at" in out
    assert "[bold]a[/]?[2J (1)" in out
    assert "all seeds run the one recording" in out
    assert "<script" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    assert "<img" not in written
    assert "m" * 100 not in written


@pytest.mark.parametrize("name", ["trace:own.jsonl", "trace:./own.jsonl", "trace:/logs/own.jsonl"])
def test_a_trace_is_called_by_its_file_wherever_it_lies(name: str) -> None:
    assert short(name) == "trace:own.jsonl"
