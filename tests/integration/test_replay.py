"""`pointsman replay` against `pointsman up`: every request succeeds and nothing is left behind."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.programs import ROOT, Programs, Router, programs_in

AZURE = ROOT.parent / "shared" / "data" / "azure2023_conv.csv"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A fleet of its own, because its request log is replayed."""
    with programs_in(tmp_path_factory.mktemp("fast")) as started:
        yield started.up({"count": 4, "time_scale": 0.02, "kv_tokens": 400_000})


def replay(programs: Programs, router: Router, *flags: str) -> Any:
    """The report of a replay in which all went well."""
    report = programs.folder / "report.json"
    program = programs.pointsman("replay", "--url", router.url, "--json", str(report), *flags)
    assert program.exit_code(300) == 0, program.out + program.err
    router.assert_idle()
    return json.loads(report.read_text())


def test_the_bundled_trace_replays_exactly(programs: Programs, fast: Router) -> None:
    report = replay(programs, fast, "--limit", "40", "--speed", "10")
    assert report["requests"]["ok"] == 40
    assert report["prompt_fit"]["exact"] == report["output_fit"]["exact"] == 40
    assert set(report["workers"]) == {engine.name for engine in fast.engines}
    assert sum(report["workers"].values()) == 40


def test_the_request_log_of_a_replay_can_be_replayed(programs: Programs, fast: Router) -> None:
    assert fast.request_log is not None
    replay(programs, fast, "--limit", "20", "--speed", "10")
    log = programs.folder / "requests.jsonl"
    log.write_bytes(fast.request_log.read_bytes())
    report = replay(programs, fast, "--trace", str(log), "--speed", "10")
    assert report["trace"]["format"] == "pointsman"
    assert report["requests"]["ok"] >= 20
    assert report["output_fit"]["exact"] == report["requests"]["ok"]


def test_the_azure_conversations_replay_without_a_failure(programs: Programs, fast: Router) -> None:
    if not AZURE.exists():
        pytest.skip(f"{AZURE.name} (Azure LLM inference 2023, conversations) is not beside the repository")
    report = replay(programs, fast, "--trace", str(AZURE), "--limit", "500", "--speed", "20")
    assert report["requests"]["ok"] == 500
    assert report["errors"] == {}
    assert report["output_fit"]["exact"] == 500
    with AZURE.open(newline="") as file:
        lengths = [int(row["ContextTokens"]) for row in itertools.islice(csv.DictReader(file), 500)]
    # A prompt cannot be shorter than the chat template and a word.
    too_short = sum(length <= report["settings"]["overhead_tokens"] for length in lengths)
    assert report["prompt_fit"]["exact"] == 500 - too_short


def test_an_endpoint_that_is_not_there_is_a_sentence(programs: Programs) -> None:
    program = programs.pointsman("replay", "--url", "http://127.0.0.1:1")
    assert program.exit_code() == 2
    assert "http://127.0.0.1:1" in program.err
