"""A recorded trace is a workload: its sharing, its lengths and its rhythm come over."""

from pathlib import Path

import pytest

from router.studies.traces import TraceError, read_trace
from router.studies.workloads import describe, workload_named

MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 700, "output_length": 6, "hash_ids": [0, 9]}
{"timestamp": 4000, "input_length": 1200, "output_length": 7, "hash_ids": [0, 1, 3]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    return path


def test_calls_are_the_requests_of_the_file(file: Path) -> None:
    workload = workload_named(f"trace:{file}")
    entries = read_trace(file).entries
    calls = workload.calls(3, workload.natural_rate or 0.0, 1)
    assert [call.prompt_tokens for call in calls] == [entry.prompt_tokens for entry in entries]
    assert [call.output_tokens for call in calls] == [5, 6, 7]
    assert [call.at for call in calls] == pytest.approx([0.0, 1.0, 4.0])
    assert calls[0].parts[:1] == calls[1].parts[:1]
    assert calls[0].parts[:2] == calls[2].parts[:2]
    assert calls[0].parts[2] != calls[2].parts[2]


def test_a_rate_stretches_the_recorded_rhythm(file: Path) -> None:
    workload = workload_named(f"trace:{file}")
    natural = workload.natural_rate or 0.0
    assert natural == pytest.approx(0.5)
    fast = workload.calls(3, 2 * natural, 1)
    assert [call.at for call in fast] == pytest.approx([0.0, 0.5, 2.0])


def test_a_longer_run_begins_the_trace_anew_with_prompts_of_its_own(file: Path) -> None:
    calls = workload_named(f"trace:{file}").calls(6, 1.0, 1)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    assert calls[3].prompt_tokens == calls[0].prompt_tokens
    assert calls[3].parts[:2] == calls[0].parts[:2]
    assert calls[3].parts[-1] != calls[0].parts[-1]
    assert describe(calls).shared_share > 0.5


def test_a_format_may_be_named(file: Path) -> None:
    assert workload_named(f"trace:{file}:mooncake").published_size == 3


def test_a_file_that_cannot_be_a_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        workload_named(f"trace:{tmp_path / 'none.csv'}")
    one = tmp_path / "one.jsonl"
    one.write_text(MOONCAKE.splitlines()[0] + "\n")
    with pytest.raises(TraceError, match="too few requests"):
        workload_named(f"trace:{one}")


def test_an_unknown_name_is_no_workload() -> None:
    with pytest.raises(KeyError):
        workload_named("toolbenhc")
