"""Laws of the figures: what is counted, and how ratios come from rounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.client import EventCount, Load, Outcome, Spread, request_bytes
from benchmarks.peers import report, rounds
from benchmarks.peers.targets import DIRECT, POINTSMAN, SMG, VLLM
from benchmarks.processes import client_argv
from benchmarks.verdict import Verdict
from router.core.body import parse_body
from router.core.request import Api


def sample(*, cpu_s: float | None = None, p50_s: float = 0.001, units: int = 1_000) -> rounds.Sample:
    spread = Spread(p50_s, p50_s)
    return rounds.Sample(units, cpu_s, Outcome(1.0, units, 0, spread, spread, spread))


def everywhere(**by_target: list[rounds.Sample]) -> rounds.Samples:
    return {course.name: dict(by_target) for course in rounds.COURSES}


@given(st.lists(st.integers(1, 12), max_size=20))
def test_events_are_counted_however_the_bytes_are_cut(cuts: list[int]) -> None:
    data = b"data: one\n\ndata: two\n\ndata: [DONE]\n\n"
    count = EventCount()
    at = 0
    for size in cuts:
        count.feed(data[at : at + size])
        at += size
    count.feed(data[at:])
    assert count.events == 3


def test_a_spread_is_the_median_and_the_last_hundredth() -> None:
    assert Spread.of([float(n) for n in range(1, 101)]) == Spread(51.0, 100.0)
    assert Spread.of([]) == Spread(0.0, 0.0)


def test_a_request_is_a_chat_request_with_a_prompt_of_the_asked_length() -> None:
    head, _, body = request_bytes(Load(1, 1, 1, events=7, prompt_bytes=8_192)).partition(b"\r\n\r\n")
    parsed = parse_body(body, Api.CHAT)
    assert b"content-length: %d" % len(body) in head
    assert parsed.stream
    assert parsed.max_tokens == 7
    assert 8_192 <= len(body) < 8_192 + 150


def test_different_prompts_share_nothing_and_have_the_asked_length() -> None:
    load = Load(1, 1, 1, prompt_bytes=2_000, prompts=3)
    texts = [
        json.loads(request_bytes(load, number).partition(b"\r\n\r\n")[2])["messages"][0]["content"]
        for number in range(3)
    ]
    assert [len(text) for text in texts] == [2_000] * 3
    assert len({text[:8] for text in texts}) == 3


def test_with_prompts_that_are_looked_at_smg_is_the_bound() -> None:
    course = {name: [sample(cpu_s=cpu_s)] for name, cpu_s in ((POINTSMAN, 2.0), (SMG, 1.6), (VLLM, 4.0))}
    found = report.prompt_verdicts({rounds.PROMPTS.name: course}, {POINTSMAN: 1, SMG: 1, VLLM: 1})
    assert [(verdict.figure, verdict.bound, verdict.holds) for verdict in found] == [
        (pytest.approx(1.25), 1.0, False),
        (pytest.approx(0.5), None, True),
    ]


def test_the_command_line_of_a_client_names_every_part_of_its_load() -> None:
    argv = client_argv(Load(9, 2, 3, events=4, announce=True))
    assert "--announce" in argv
    assert "--ignore-eos" not in argv
    assert argv[argv.index("--events") + 1] == "4"


def test_a_ratio_is_taken_within_a_round_and_the_median_of_rounds_counts() -> None:
    ours = [sample(cpu_s=2.0), sample(cpu_s=20.0), sample(cpu_s=9.0)]
    theirs = [sample(cpu_s=1.0), sample(cpu_s=10.0), sample(cpu_s=1.0)]
    samples = everywhere(**{POINTSMAN: ours, VLLM: theirs})
    assert rounds.ratio(samples, rounds.SMALL, POINTSMAN, VLLM, report.cpu_us) == pytest.approx(2.0)


def test_added_latency_is_what_lies_above_the_engine_alone() -> None:
    times = {DIRECT: 0.001, POINTSMAN: 0.004, SMG: 0.003}
    samples = everywhere(**{name: [sample(p50_s=p50_s)] for name, p50_s in times.items()})
    assert report.added_ratio(samples, POINTSMAN, SMG) == pytest.approx(1.5)


def test_only_peers_that_took_part_are_judged_against() -> None:
    samples = everywhere(**{name: [sample(cpu_s=1.0)] for name in (DIRECT, POINTSMAN, VLLM)})
    found = report.verdicts(samples, {POINTSMAN: 60, VLLM: 80})
    assert len(found) == 4
    assert all(verdict.holds for verdict in found)


def test_a_figure_above_its_bound_is_missed_and_one_without_is_not_judged() -> None:
    assert not Verdict("a", 1.1, "x", 1.0).holds
    assert Verdict("a", 1.0, "x", 1.0).word == "holds"
    assert Verdict("a", 99.0, "µs").holds
