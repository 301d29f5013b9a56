"""Whatever is asked of a study, it answers in a sentence and with the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.__main__ import main
from router.studies.compare import Cell, cells
from router.studies.processes import LostProcess

SCENARIO = """
pools: {default: {policy: round_robin, slots: 32, workers: [http://a:9001, http://a:9002]}}
mock: {fleet: [{port: 9001, count: 2, kv_tokens: 60000}]}
workload: {name: chat_short, rate: 6, requests: 10}
"""
TWO_MODELS = """
pools:
  one: {model: m1, policy: round_robin, workers: [http://a:9001]}
  two: {model: m2, policy: round_robin, workers: [http://a:9002]}
mock: {fleet: [{port: 9001, count: 2, kv_tokens: 60000}]}
workload: {name: chat_short, rate: 6, requests: 10}
"""
QUICK = ("--requests", "4", "--seeds", "1", "--jobs", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(SCENARIO)
    (tmp_path / "two.yaml").write_text(TWO_MODELS)
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01" * 100)
    (tmp_path / "folder").mkdir()
    return tmp_path


def said(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and what was said on stderr."""
    try:
        code = main(words.split())
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compare --seeds 0", "argument --seeds: '0' is no whole number above 0"),
        ("compare --jobs -1", "argument --jobs: '-1' is no whole number above 0"),
        ("compare --requests 1.5", "argument --requests: '1.5' is no whole number above 0"),
        ("compare --rate nan", "--rate is 'nan': calls per second above 0"),
        ("compare --rate -1", "--rate is '-1': calls per second above 0"),
        ("compare --rates 1,inf", "--rates is '1,inf': numbers above 0"),
        ("compare --workers 1e9", "--workers is '1e9': whole numbers, at most 4,096"),
        ("compare --workers 0", "--workers is '0': numbers above 0"),
        ("compare --policies random,random", "--policies names random twice"),
        ("compare --workloads toolbench,toolbench", "--workloads names toolbench twice"),
        ("compare --workloads trace:", "trace: names no file: write trace:FILE"),
        ("compare --workloads trace:folder", "cannot read the trace folder: Is a directory"),
        ("compare --workloads trace:empty", "empty is empty: it holds no request"),
        ("compare --judge prebel", "policy 'prebel' is unknown, did you mean preble?"),
        ("compare --judge random --workloads classic_exponential", "classic_16 has plain servers"),
        ("compare --json folder", "folder cannot be written: it is a folder; name a file in it"),
        ("compare --json a --html a", "--json and --html both name a: give each a file of its own"),
        ("compare --describe --html a", "--describe says what the calls are like, and has no page"),
        ("saturate --goodput nan", "argument --goodput: 'nan' is no number above 0 and at most 1"),
        ("saturate --goodput most", "argument --goodput: 'most' is no number above 0 and at most 1"),
        ("saturate --goodput 0", "argument --goodput: '0' is no number above 0 and at most 1"),
        ("saturate --html no/where", "no/where cannot be written: there is no folder no"),
        ("simulate", "the following arguments are required: SCENARIO"),
        ("simulate nowhere.yaml", "the configuration file nowhere.yaml does not exist"),
        ("simulate binary", "the configuration file binary cannot be read"),
        ("simulate empty", "empty: it has no workload"),
        ("simulate two.yaml", "a simulation has one pool or one pair: name their model"),
        ("simulate good.yaml --seeds 0", "argument --seeds: '0' is no whole number above 0"),
        ("simulate good.yaml --judge round_robni", "did you mean round_robin?"),
        ("whatif --log empty --config good.yaml", "empty is empty: it holds no request"),
        ("whatif --log binary --config good.yaml", "binary is not UTF-8 text"),
        ("whatif --log folder --config good.yaml", "cannot read the trace folder: Is a directory"),
        ("whatif --log good.yaml --config good.yaml", "good.yaml is no trace that is known here"),
        ("whatif --log empty --config good.yaml --speeds 0", "--speeds is '0': numbers above 0"),
        ("whatif --log empty --config good.yaml --speeds nan", "--speeds is 'nan': numbers above 0"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(words, capsys)
    assert code == 2
    assert text.startswith(f"pointsman {words.split(maxsplit=1)[0]}: ")
    assert sentence in text
    assert "Traceback" not in text


def test_a_file_that_may_not_be_written_is_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("router.cli.study_output.os.access", lambda *_: False)
    code, text = said("compare --json out.json", capsys)
    assert (code, text) == (2, "pointsman compare: out.json cannot be written: you may not write there\n")


def test_a_table_is_shown_even_where_its_file_cannot_be_written_after_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    words = ["compare", "--policies", "random", "--workloads", "chat_short", *QUICK, "--json", "out.json"]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert "chat_short at" in shown.out
    assert shown.err == "pointsman compare: out.json was not written: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "pointsman compare: interrupted after 1 of 2 runs; nothing was written\n"),
        (LostProcess("a process is gone"), 1, "pointsman compare: a process is gone\n"),
    ],
)
def test_what_stops_in_the_middle_says_how_far_it_was(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stops(tasks: list[object], _jobs: int, told: object) -> list[Cell]:
        cells(tasks[:1], 1, told)  # type: ignore[arg-type]  # as the command calls it
        raise error

    monkeypatch.setattr("router.cli.compare.cells", stops)
    words = ["compare", "--policies", "random,round_robin", "--workloads", "chat_short", *QUICK]
    assert main([*words, "--json", "out.json"]) == code
    assert capsys.readouterr().err == sentence
    assert not Path("out.json").exists()


@pytest.mark.parametrize(
    "command_line", ["compare --workloads chat_short --policies random", "simulate good.yaml"]
)
def test_a_judge_adds_a_figure_in_its_own_unit(command_line: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = QUICK if command_line.startswith("compare") else ("--jobs", "1")
    assert main([*command_line.split(), *quick, "--judge", "least_requests"]) == 0
    assert "regret, requests" in " ".join(capsys.readouterr().out.split())
