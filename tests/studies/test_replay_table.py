"""Laws of the table: it shows what the report holds and says what is missing."""

from __future__ import annotations

import io
from array import array
from typing import Any

import msgspec
import pytest
from rich.console import Console

from router.studies.replay.records import Record
from router.studies.replay.report import Report, RunFacts, TraceSource, build
from router.studies.replay.settings import ReplaySettings, Slo
from router.studies.replay.table import render
from router.studies.traces import Trace, TraceEntry, statistics

ENTRIES = [TraceEntry(arrival_s=0, prompt_tokens=10, output_tokens=5, line=1)]
SOURCE = TraceSource(
    name="t.csv",
    format="azure",
    digest="d",
    block_tokens=0,
    statistics=statistics(Trace(format="azure", name="t.csv", digest="d", entries=ENTRIES)),
)
OK = Record(
    line=1,
    run=1,
    outcome="ok",
    due_s=0.0,
    prompt_tokens=10,
    output_tokens=5,
    sent_s=0.0,
    lag_s=0.0,
    ttft_s=0.1234,
    generation_s=0.4,
    e2e_s=0.5678,
    itl_us=array("Q", [100_000] * 4),
    told_prompt_tokens=10,
    told_output_tokens=5,
    finish_reason="length",
)


def report(*records: Record, planned: int = 1, slo: Slo | None = None, **facts: Any) -> Report:
    return build(
        records,
        planned=range(1, planned + 1),
        settings=ReplaySettings(url="http://e:1", model="m", slo=slo or Slo()),
        trace=SOURCE,
        run=RunFacts(**{"version": "0", "started": "then", "runs": 1, "interrupted": False, **facts}),
    )


def shown(found: Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def changed(**fields: Any) -> Record:
    return msgspec.structs.replace(OK, **fields)


def test_the_measures_are_there_in_their_units() -> None:
    text = shown(report(OK))
    assert "1 of 1 succeeded" in text
    for name, value in (
        ("TTFT (ms)", "123.4"),
        ("TPOT (ms)", "100.0"),
        ("ITL (ms)", "100.0"),
        ("e2e (s)", "0.57"),
    ):
        row = next(row for row in text.splitlines() if name in row)
        assert row.count(value) == 5
    assert "1.76 requests/s" in text


@pytest.mark.parametrize(("late_s", "twice"), [(0.0, False), (0.0005, False), (0.3, True)])
def test_both_beginnings_are_shown_when_they_differ(late_s: float, twice: bool) -> None:
    text = shown(report(changed(sent_s=late_s)))
    assert ("TTFT from due time" in text) is twice
    assert ("e2e from due time" in text) is twice


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(OK), "not exposed by the endpoint"),
        (report(changed(worker="w7")), "w7 1"),
        (report(OK), "the engines do not say"),
        (report(changed(cached_tokens=5)), "50.0% of the prompt tokens"),
        (report(OK), "all of exactly the length"),
        (report(changed(told_prompt_tokens=12)), "+2.0 tokens from the trace on average (+20.0%)"),
        (report(changed(told_prompt_tokens=None)), "lengths not checked"),
        (report(changed(told_output_tokens=4)), "1 shorter and 0 longer than asked"),
        (report(changed(outcome="failed", error="http_500", message="no")), "1 × http_500: no"),
        (report(changed(outcome="skipped", error="too_long")), "1 × too_long"),
        (report(OK, planned=3), "2 not sent"),
        (report(changed(outcome="interrupted"), interrupted=True), "1 interrupted"),
        (report(changed(clipped=True)), "1 with the output clipped"),
        (report(OK, slo=Slo(ttft_ms=200)), "100.0% (1)"),
        (report(OK, slo=Slo(ttft_ms=200)), "TTFT ≤ 200 ms"),
        (report(OK, cpu_share=0.5), "50% of one core"),
        (report(), "0 of 1 succeeded"),
    ],
)
def test_each_fact_is_said(found: Report, said: str) -> None:
    assert said in shown(found)


def test_engines_words_are_shown_as_they_are() -> None:
    """Square brackets are markup to the console; in an error message they are the engine's own."""
    assert "[/bold] [1]" in shown(report(changed(outcome="failed", error="cut", message="[/bold] [1]")))
