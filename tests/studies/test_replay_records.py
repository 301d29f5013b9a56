"""Laws of the records file: nothing is lost, nothing is mixed, successes are not sent twice."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.studies.replay.records import (
    Ledger,
    Record,
    RecordsError,
    Run,
    Workload,
    decode,
    encode,
    open_ledger,
)

WORKLOAD = Workload(trace_digest="d", trace_format="azure", seed=1, model="m", api="chat", ignore_eos=True)


def record(line: int, outcome: str = "ok", **fields: Any) -> Record:
    known = {"run": 1, "due_s": 0.0, "prompt_tokens": 10, "output_tokens": 5}
    return Record(line=line, outcome=outcome, **{**known, **fields})  # type: ignore[arg-type]  # given by name


def reopen(path: Path, **changed: Any) -> Ledger:
    return open_ledger(path, msgspec.structs.replace(WORKLOAD, **changed), "now", resume=True)


def test_a_resumed_ledger_knows_every_record_and_counts_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_ledger(path, WORKLOAD, "then", resume=False) as first:
        first.add(record(1))
        first.add(record(2, "failed", error="http_500"))
        first.add(record(3, "skipped"))
        first.add(record(4, "interrupted"))
    with reopen(path) as second:
        assert second.run == 2
        assert second.records == first.records
        assert second.done == {1}
        second.add(record(2, run=2))
    with reopen(path) as third:
        assert third.run == 3
        assert third.done == {1, 2}
        assert repr(third) == "<Ledger run 3 [4 records | 2 ok]>"


def test_resuming_a_file_that_is_not_there_begins_it(tmp_path: Path) -> None:
    with reopen(tmp_path / "new.jsonl") as ledger:
        assert (ledger.run, ledger.records) == (1, [])
    assert (tmp_path / "new.jsonl").read_bytes().count(b"\n") == 1


def test_records_are_on_disk_when_they_are_added(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_ledger(path, WORKLOAD, "then", resume=False) as ledger:
        ledger.add(record(1))
        lines = path.read_bytes().splitlines()
    assert isinstance(decode(lines[0]), Run)
    assert decode(lines[1]) == record(1)


def test_gaps_survive_the_file_however_long() -> None:
    one = record(1, itl_us=array("Q", [0, 1, 5_000_000_000]))
    assert decode(encode(one)) == one


@pytest.mark.parametrize("gaps", ["[-1]", "[1.5]", '"x"', "[1e99]"])
def test_gaps_that_are_no_microseconds_are_refused_by_line(tmp_path: Path, gaps: str) -> None:
    path = tmp_path / "r.jsonl"
    open_ledger(path, WORKLOAD, "then", resume=False).close()
    with path.open("ab") as file:
        file.write(encode(record(1)).replace(b'"itl_us":[]', f'"itl_us":{gaps}'.encode()) + b"\n")
    with pytest.raises(RecordsError, match="line 2: not a replay record"):
        reopen(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to write to")
def test_a_full_disk_is_a_sentence() -> None:
    with pytest.raises(RecordsError, match="cannot write records"):
        Ledger(WORKLOAD, "then").write_to(Path("/dev/full"))


def test_a_line_that_a_kill_cut_is_removed_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_ledger(path, WORKLOAD, "then", resume=False) as ledger:
        ledger.add(record(1))
    with path.open("ab") as file:
        file.write(b'{"kind":"request","line":2')
    with reopen(path) as ledger:
        ledger.add(record(3))
    with reopen(path) as ledger:
        assert [one.line for one in ledger.records] == [1, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"trace_digest": "e"},
        {"trace_format": "mooncake"},
        {"seed": 2},
        {"model": "n"},
        {"api": "completions"},
        {"ignore_eos": False},
    ],
)
def test_another_workload_is_refused_by_the_field_that_differs(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = tmp_path / "r.jsonl"
    open_ledger(path, WORKLOAD, "then", resume=False).close()
    before = path.read_bytes()
    with pytest.raises(RecordsError, match=next(iter(changed))):
        reopen(path, **changed)
    assert path.read_bytes() == before


def test_records_are_not_overwritten_without_resume(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    open_ledger(path, WORKLOAD, "then", resume=False).close()
    with pytest.raises(RecordsError, match="--resume"):
        open_ledger(path, WORKLOAD, "then", resume=False)


@pytest.mark.parametrize("content", [b"somebody's notes", b"a,b\n1,2\n", b'{"kind":"request"}\n'])
@pytest.mark.parametrize("resume", [True, False])
def test_a_file_that_is_no_records_file_is_left_alone(tmp_path: Path, content: bytes, resume: bool) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(RecordsError):
        open_ledger(path, WORKLOAD, "then", resume=resume)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="cannot write"):
        open_ledger(tmp_path / "no" / "r.jsonl", WORKLOAD, "then", resume=False)
    with pytest.raises(RecordsError, match="cannot read"):
        open_ledger(tmp_path, WORKLOAD, "then", resume=True)


def test_without_a_file_records_live_in_memory() -> None:
    with open_ledger(None, WORKLOAD, "then", resume=False) as ledger:
        ledger.add(record(2))
        ledger.add(record(1))
    assert [one.line for one in ledger.records] == [1, 2]


def test_the_last_record_of_a_line_counts() -> None:
    ledger = Ledger(WORKLOAD, "then")
    ledger.add(record(1, "failed"))
    ledger.add(record(1, "ok"))
    assert [one.outcome for one in ledger.records] == ["ok"]


def test_tpot_leaves_the_first_token_out_and_needs_two() -> None:
    assert record(1, generation_s=2.0, told_output_tokens=5).tpot_s == 0.5
    assert record(1, generation_s=2.0, told_output_tokens=1).tpot_s is None
    assert record(1, generation_s=2.0).tpot_s is None
    assert record(1, told_output_tokens=5).tpot_s is None


def test_lateness_is_what_lies_between_due_and_sent() -> None:
    assert record(1, due_s=1.0, sent_s=1.5).late_s == 0.5
    assert record(1, due_s=1.0).late_s == 0.0
