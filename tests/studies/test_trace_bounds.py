"""Laws of traces that are damaged or hostile: each ends with one sentence, in bounded time and memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from router.studies.traces import TraceError, read_trace
from router.studies.traces import bounds as bounds_module
from router.telemetry import log_lines

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n"
BURST = "Timestamp,Model,Request tokens,Response tokens\n5,m,472,18\n6,m,47,18\n7,m,47,18\n"
DEEP = "[" * 100_000 + "]" * 100_000


def mooncake(*lines: str) -> str:
    sound = [
        json.dumps({"timestamp": at, "input_length": 600, "output_length": 5, "hash_ids": [1, at + 2]})
        for at in range(3)
    ]
    return "\n".join([*sound, *lines]) + "\n"


def request_log(**fields: object) -> str:
    header = {"format": "pointsman-request-log", "version": 1, "block_characters": 256, "salt_id": ""}
    known = {
        "arrival": 1_700_000_000.0,
        "id": "r",
        "model": "m",
        "api": "chat",
        "stream": True,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "phases": {"total_s": 1.0},
        "outcome": "ok",
        "status": 200,
    }
    lines = [header, *({**known, "arrival": 1_700_000_000.0 + at} for at in range(3)), {**known, **fields}]
    return "".join(json.dumps(line) + "\n" for line in lines)


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{AZURE}2023-11-16 18:15:51,1000000000,44\n", 4),
        (f"{AZURE}2023-11-16 18:15:51,44,1000000000\n", 4),
        (f"{BURST}8,m,1000000000,44\n", 5),
        (mooncake('{"timestamp": 9, "input_length": 1000000000, "output_length": 5, "hash_ids": [1]}'), 4),
        (request_log(prompt_tokens=10**9), 5),
        (request_log(output_tokens=10**30), 5),
    ],
)
def test_more_tokens_than_any_engine_takes_refuse_the_file_with_the_line(
    tmp_path: Path, text: str, line: int
) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(f"trace, line {line}: it has more than 16,777,216 ")


@pytest.mark.parametrize("fields", [{"prompt_tokens": -4}, {"output_tokens": -4}])
def test_lengths_below_zero_refuse_a_request_log(tmp_path: Path, fields: dict[str, object]) -> None:
    assert refusal(tmp_path, request_log(**fields)).startswith("trace, line 5: its number of ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{AZURE}9999-12-31 23:59:59,10,44\n", 4),
        (f"{AZURE}0001-01-01 00:00:00,10,44\n", 4),
        (f"{BURST}-1e18,m,10,44\n", 5),
        (f"{BURST}1e308,m,10,44\n", 5),
        (mooncake('{"timestamp": 1e308, "input_length": 10, "output_length": 5, "hash_ids": [1]}'), 4),
        (request_log(arrival=-5.0), 5),
    ],
)
def test_a_request_of_another_age_refuses_the_file_with_its_line(
    tmp_path: Path, text: str, line: int
) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(f"trace, line {line}: it comes ")
    assert len(said) < 150


def test_a_trace_may_last_a_year(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(f"{BURST}{6 + 365 * 86_400},m,10,44\n", encoding="utf-8")
    assert read_trace(path).entries[-1].arrival_s == 1 + 365 * 86_400


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (mooncake('{"timestamp": 9, "x": ' + DEEP + "}"), 4),
        (request_log().rstrip("\n").replace('"status": 200}', '"status": 200, "x": ' + DEEP + "}") + "\n", 2),
    ],
)
def test_deep_nesting_refuses_the_file_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert f"line {line}" in refusal(tmp_path, text)


def test_deep_nesting_in_the_first_line_is_no_trace_that_is_known(tmp_path: Path) -> None:
    assert "is no trace that is known here" in refusal(tmp_path, '{"x": ' + DEEP + "}\n")


@pytest.mark.parametrize("cell", ["9" * 5_000, "1" * 200_000])
def test_endless_cells_refuse_the_file_in_a_short_sentence(tmp_path: Path, cell: str) -> None:
    said = refusal(tmp_path, f"{AZURE}2023-11-16 18:15:51,{cell},44\n")
    assert said.startswith("trace, line 4: ")
    assert len(said) < 150


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_module, "_LONGEST_LINE", 1_000)
    assert "line 1: it is longer than" in refusal(tmp_path, "x" * 1_001)
    assert "line 4: it is longer than" in refusal(tmp_path, AZURE + "x" * 1_001)


def test_an_endless_record_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_LONGEST", 1_000)
    path = tmp_path / "requests.jsonl"
    path.write_text(request_log(id="r" * 1_001), encoding="utf-8")
    with pytest.raises(TraceError, match=r"line 5 of .* is longer than 1,000 bytes"):
        read_trace(path)


def test_rotated_request_logs_may_be_put_together(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(request_log() + request_log(arrival=1_700_000_009.0), encoding="utf-8")
    assert [entry.line for entry in read_trace(path).entries] == [2, 5, 7, 3, 8, 4, 9, 10]
    assert refusal(tmp_path, request_log() + request_log(prompt_tokens=-1)).startswith("trace, line 10: ")


def test_a_later_version_in_the_middle_refuses_a_request_log(tmp_path: Path) -> None:
    later = request_log().replace('"version": 1', '"version": 99')
    assert "of version 99; this program reads up to 1" in refusal(tmp_path, request_log() + later)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="pipe is a pipe or a device"):
        read_trace(tmp_path / "pipe")


def test_a_device_that_never_ends_is_not_read() -> None:
    with pytest.raises(TraceError, match="zero is a pipe or a device"):
        read_trace(Path("/dev/zero"))
