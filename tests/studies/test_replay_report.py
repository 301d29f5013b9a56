"""Laws of the report: its counts add up, and it is a function of records and settings alone."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.replay.records import Record
from router.studies.replay.report import Report, RunFacts, TraceSource, build, meets
from router.studies.replay.settings import ReplaySettings, Slo
from router.studies.traces import Trace, TraceEntry, statistics

DOCS = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
FACTS = RunFacts(version="0", started="then", runs=1, interrupted=False, cpu_share=0.5)


def record(line: int, outcome: str = "ok", **fields: Any) -> Record:
    known = {"run": 1, "due_s": 0.0, "prompt_tokens": 10, "output_tokens": 5}
    return Record(line=line, outcome=outcome, **{**known, **fields})  # type: ignore[arg-type]  # given by name


def answer(line: int, **fields: Any) -> Record:
    """A success that was sent at its line's second, took 2 s and made 5 tokens in the second of them."""
    known = {
        "due_s": float(line),
        "sent_s": float(line),
        "lag_s": 0.0,
        "ttft_s": 1.0,
        "generation_s": 1.0,
        "e2e_s": 2.0,
        "itl_us": array("Q", [250_000] * 4),
        "told_prompt_tokens": 10,
        "told_output_tokens": 5,
        "finish_reason": "length",
        "status": 200,
    }
    return record(line, **{**known, **fields})


def source() -> TraceSource:
    entries = [TraceEntry(arrival_s=0, prompt_tokens=10, output_tokens=5, line=1)]
    trace = Trace(format="azure", name="t.csv", digest="d", entries=entries)
    return TraceSource(name="t.csv", format="azure", digest="d", block_tokens=0, statistics=statistics(trace))


def report(*records: Record, planned: int | None = None, slo: Slo | None = None) -> Report:
    lines = range(1, (planned or len(records)) + 1)
    settings = ReplaySettings(url="http://e:1", model="m", slo=slo or Slo())
    return build(records, planned=lines, settings=settings, trace=source(), run=FACTS)


outcomes = st.lists(st.sampled_from(["ok", "failed", "skipped", "interrupted"]), max_size=30)


@given(outcomes, st.integers(0, 5))
def test_every_planned_request_is_counted_once(found: list[str], unsent: int) -> None:
    records = [record(line, outcome, error="x") for line, outcome in enumerate(found, 1)]
    counts = report(*records, planned=len(found) + unsent or 1).requests
    assert counts.planned == len(found) + unsent or counts.planned == 1
    assert counts.ok + counts.failed + counts.skipped + counts.interrupted + counts.not_sent == counts.planned


def test_records_outside_the_plan_do_not_count() -> None:
    assert report(answer(1), answer(2), planned=1).requests.ok == 1


def test_latencies_are_those_of_the_successes() -> None:
    latency = report(
        answer(1), answer(2, ttft_s=3.0, e2e_s=4.0), answer(3, outcome="failed", ttft_s=99.0)
    ).latency
    assert latency.ttft_s is not None
    assert (latency.ttft_s.count, latency.ttft_s.mean, latency.ttft_s.max) == (2, 2.0, 3.0)
    assert latency.e2e_s is not None
    assert latency.e2e_s.mean == 3.0
    assert latency.tpot_s is not None
    assert latency.tpot_s.mean == 0.25
    assert latency.itl_s is not None
    assert (latency.itl_s.count, latency.itl_s.p50) == (8, 0.25)


def test_lateness_is_added_only_to_what_counts_from_the_due_time() -> None:
    found = report(answer(1, sent_s=1.75, lag_s=0.25))
    assert found.latency.ttft_s is not None
    assert found.latency.ttft_from_due_s is not None
    assert (found.latency.ttft_s.mean, found.latency.ttft_from_due_s.mean) == (1.0, 1.75)
    assert found.latency.e2e_from_due_s is not None
    assert found.latency.e2e_from_due_s.mean == 2.75
    assert found.client.late_s is not None
    assert found.client.lag_s is not None
    assert (found.client.late_s.max, found.client.lag_s.max) == (0.75, 0.25)


def test_throughput_is_over_the_active_time_of_all_runs() -> None:
    records = [answer(1), answer(2), answer(3, run=2, sent_s=100.0, e2e_s=3.0)]
    throughput = report(*records).throughput
    assert throughput is not None
    assert throughput.active_s == pytest.approx(3.0 + 3.0)
    assert throughput.requests_per_s == pytest.approx(0.5)
    assert throughput.output_tokens_per_s == pytest.approx(15 / 6)
    assert throughput.total_tokens_per_s == pytest.approx(45 / 6)


def test_a_failure_takes_time_and_gives_nothing() -> None:
    throughput = report(answer(1), answer(2, outcome="failed", error="x")).throughput
    assert throughput is not None
    assert throughput.requests_per_s == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft_ms=1_000), True),
        (Slo(ttft_ms=999), False),
        (Slo(tpot_ms=250), True),
        (Slo(tpot_ms=249), False),
        (Slo(e2e_s=2), True),
        (Slo(e2e_s=1.9), False),
        (Slo(ttft_ms=1_000, tpot_ms=250, e2e_s=2), True),
        (Slo(ttft_ms=1_000, tpot_ms=249, e2e_s=2), False),
    ],
)
def test_an_answer_is_good_when_it_meets_every_bound(slo: Slo, met: bool) -> None:
    assert meets(slo, answer(1)) is met


def test_goodput_counts_failures_against_and_starts_at_the_due_time() -> None:
    late = answer(2, sent_s=2.5)
    goodput = report(answer(1), late, answer(3, outcome="failed", error="x"), slo=Slo(ttft_ms=1_200)).goodput
    assert goodput is not None
    assert goodput.met == 1
    assert goodput.share == pytest.approx(1 / 3)


def test_tpot_bounds_a_single_token_never_and_an_unknown_length_always() -> None:
    slo = Slo(tpot_ms=1)
    assert meets(slo, answer(1, told_output_tokens=1))
    assert not meets(slo, answer(1, told_output_tokens=None))


def test_goodput_is_absent_without_an_slo() -> None:
    assert report(answer(1)).goodput is None


def test_errors_are_counted_by_kind_with_an_example_of_each() -> None:
    kinds = ["http_429", "cut", "http_429"]
    records = [record(line, "failed", error=kind, message=f"m{line}") for line, kind in enumerate(kinds, 1)]
    found = report(*records)
    assert found.errors == {"http_429": 2, "cut": 1}
    assert found.error_examples == {"http_429": "m1", "cut": "m2"}
    assert not found.all_succeeded


def test_skipped_requests_are_counted_by_reason_and_are_no_success() -> None:
    found = report(answer(1), record(2, "skipped", error="too_long"))
    assert found.skipped == {"too_long": 1}
    assert found.errors == {}
    assert not found.all_succeeded
    assert report(answer(1)).all_succeeded


def test_workers_are_counted_or_absent() -> None:
    assert report(answer(1, worker="a"), answer(2, worker="b"), answer(3, worker="b")).workers == {
        "b": 2,
        "a": 1,
    }
    assert report(answer(1)).workers is None


def test_cached_share_is_over_the_answers_that_say_so() -> None:
    cache = report(answer(1, cached_tokens=5), answer(2)).cache
    assert cache is not None
    assert (cache.told, cache.share) == (1, 0.5)
    assert report(answer(1)).cache is None


def test_prompt_fit_is_the_distance_from_the_trace() -> None:
    fit = report(answer(1, told_prompt_tokens=12), answer(2, told_prompt_tokens=8), answer(3)).prompt_fit
    assert fit is not None
    assert (fit.told, fit.exact, fit.mean_error_tokens, fit.max_error_tokens) == (3, 1, 0.0, 2)
    assert report(answer(1, told_prompt_tokens=None)).prompt_fit is None


def test_output_fit_counts_both_ways() -> None:
    fit = report(answer(1), answer(2, told_output_tokens=4), answer(3, told_output_tokens=9)).output_fit
    assert fit is not None
    assert (fit.told, fit.exact, fit.shorter, fit.longer) == (3, 1, 1, 1)


def test_an_empty_run_has_a_report() -> None:
    found = report(planned=4)
    assert (found.requests.not_sent, found.throughput, found.latency.ttft_s) == (4, None, None)


def test_the_report_survives_json_and_fits_its_schema() -> None:
    found = report(
        answer(1, worker="a", cached_tokens=3), record(2, "failed", error="cut"), slo=Slo(ttft_ms=1_000)
    )
    data = msgspec.json.encode(found)
    assert msgspec.json.decode(data, type=Report) == found
    jsonschema.validate(msgspec.json.decode(data), msgspec.json.schema(Report))


def _names(schema: dict[str, Any]) -> set[str]:
    return {name for part in schema["$defs"].values() for name in part.get("properties", {})}


def test_every_field_of_the_report_and_of_the_records_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    named = _names(msgspec.json.schema(Report)) | set(Record.__struct_fields__)
    assert {name for name in named if f"`{name}`" not in text} == set()
