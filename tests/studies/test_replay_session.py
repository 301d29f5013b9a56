"""Laws of a whole replay: trace in, report out, over a virtual network and a virtual clock."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from router.studies.data import SYNTHETIC
from router.studies.replay.endpoint import EndpointError
from router.studies.replay.prompts import WORDS
from router.studies.replay.records import Ledger, Record, RecordsError
from router.studies.replay.report import Report
from router.studies.replay.schedule import Pace
from router.studies.replay.session import Options, Surroundings, batched, replay
from router.studies.replay.settings import Slo
from router.studies.traces import TraceError, read_trace
from router.upstream.client import Upstream
from router.virtual.asgi import serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network
from tests.studies.fake_engine import FakeEngine, Seen

TRACE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1000, "input_length": 1300, "output_length": 4, "hash_ids": [0, 1, 3]}
{"timestamp": 2500, "input_length": 40, "output_length": 3, "hash_ids": [4]}
{"timestamp": 2500, "input_length": 700, "output_length": 2, "hash_ids": [5, 6]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE, encoding="utf-8")
    return path


class Play:
    """One replay against a fake engine; afterwards all that can be looked at."""

    def __init__(self, engine: FakeEngine | None = None, stop_after_s: float | None = None) -> None:
        self.engine = engine or FakeEngine()
        self.stop_after_s = stop_after_s
        self.said = ""

    def __call__(self, trace: Path, **options: Any) -> Report:
        return run(self._main(Options(trace=trace, url="http://engine/v1", **options)))

    async def _main(self, options: Options) -> Report:
        network = Network()
        serve_asgi(network, "engine", 80, self.engine)
        loop = asyncio.get_running_loop()
        upstream = Upstream(network.connect, loop.time)
        console = Console(file=io.StringIO(), width=200)
        stop = asyncio.Event()
        if self.stop_after_s is not None:
            loop.call_later(self.stop_after_s, stop.set)
        try:
            return await replay(
                options,
                Surroundings(upstream=upstream, now=loop.time, started="then", console=console, stop=stop),
            )
        finally:
            assert isinstance(console.file, io.StringIO)
            self.said = console.file.getvalue()
            await upstream.aclose()


def test_every_request_of_the_trace_succeeds_with_exact_lengths(trace: Path) -> None:
    play = Play(FakeEngine(cached_tokens=10, worker="w"))
    report = play(trace)
    assert report.all_succeeded
    assert report.requests.ok == 4
    assert report.prompt_fit is not None
    assert (report.prompt_fit.exact, report.prompt_fit.max_error_tokens) == (4, 0)
    assert report.output_fit is not None
    assert report.output_fit.exact == 4
    assert report.workers == {"w": 4}
    assert report.finish_reasons == {"length": 4}
    assert report.cache is not None
    assert report.cache.cached_tokens == 40
    assert (report.settings.overhead_tokens, report.settings.tokens_per_word) == (6, 1)


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(("overhead", "bytes_per_token"), [(6, 4.0), (17, 3.0), (0, 1.5)])
def test_lengths_are_met_on_engines_that_count_otherwise(
    trace: Path, api: str, overhead: int, bytes_per_token: float
) -> None:
    engine = FakeEngine(overhead_tokens=overhead, bytes_per_token=bytes_per_token, max_model_len=32_768)
    report = Play(engine)(trace, api=api)
    assert report.prompt_fit is not None
    assert report.prompt_fit.max_error_tokens <= 4 / bytes_per_token + 2


def test_the_engine_sees_the_shared_prefixes_of_the_trace(trace: Path) -> None:
    play = Play()
    play(trace)
    first, second, third, fourth = (seen.prompt.split() for seen in play.engine.streams)
    assert first[:1024] == second[:1024]
    assert first[1024:1034] != second[1024:1034]
    assert third[:10] != first[:10]
    assert fourth[:10] != third[:10]
    assert set(first) <= set(WORDS)


def bodies(play: Play) -> list[bytes]:
    return [seen.body for seen in play.engine.streams]


def test_the_same_seed_sends_the_same_bytes_and_another_seed_none_of_them(trace: Path) -> None:
    plays = [Play() for _ in range(3)]
    for play, seed in zip(plays, (1, 1, 2), strict=True):
        play(trace, seed=seed)
    assert bodies(plays[0]) == bodies(plays[1])
    assert not set(bodies(plays[0])) & set(bodies(plays[2]))


def test_a_limit_changes_no_byte_of_what_it_keeps(trace: Path) -> None:
    whole, part = Play(), Play()
    whole(trace)
    part(trace, limit=2)
    assert bodies(part) == bodies(whole)[:2]


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_requests_arrive_when_the_trace_says_though_answers_are_slow(trace: Path, speed: float) -> None:
    play = Play(FakeEngine(prefill_s=100.0))
    play(trace, pace=Pace(speed=speed))
    start = play.engine.streams[0].at
    gaps = [seen.at - start for seen in play.engine.streams]
    assert gaps == pytest.approx([0.0, 1.0 / speed, 2.5 / speed, 2.5 / speed], abs=0.01)


def test_the_engine_never_sees_more_at_once_than_the_cap(trace: Path) -> None:
    play = Play(FakeEngine(prefill_s=100.0))
    report = play(trace, concurrency_cap=1)
    assert play.engine.peak == 1
    assert report.client.late_s is not None
    assert report.client.lag_s is not None
    assert report.client.late_s.max > 200
    assert report.client.lag_s.max < 0.01


def test_failures_are_counted_by_kind_and_the_rest_goes_on(trace: Path) -> None:
    def behave(seen: Seen) -> str:
        return {5: "500", 4: "cut", 3: "error_event"}.get(seen.fields["max_tokens"], "")

    report = Play(FakeEngine(behave=behave))(trace)
    assert report.errors == {"cut": 1, "error_event": 1, "http_500": 1}
    assert (report.requests.ok, report.requests.failed) == (1, 3)
    assert report.error_examples["error_event"] == "engine died"


def test_prompts_longer_than_the_context_are_skipped_and_outputs_clipped(trace: Path) -> None:
    play = Play(FakeEngine(max_model_len=701))
    report = play(trace)
    assert report.skipped == {"too_long": 2}
    assert (report.requests.ok, report.requests.clipped) == (2, 1)
    assert [seen.fields["max_tokens"] for seen in play.engine.streams] == [3, 1]


def test_resume_sends_only_what_has_not_succeeded(trace: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    first = Play(FakeEngine(behave=lambda seen: "500" if seen.fields["max_tokens"] < 4 else ""))
    assert first(trace, records=records).requests.failed == 2
    second = Play()
    report = second(trace, records=records, resume=True)
    assert [seen.fields["max_tokens"] for seen in second.engine.streams] == [3, 2]
    assert bodies(second) == bodies(first)[2:]
    assert (report.requests.ok, report.run.runs) == (4, 2)
    assert "resuming: 2 have succeeded before" in second.said
    third = Play()
    assert third(trace, records=records, resume=True).all_succeeded
    assert third.engine.streams == []


def test_resume_refuses_another_seed(trace: Path, tmp_path: Path) -> None:
    Play()(trace, records=tmp_path / "r.jsonl")
    with pytest.raises(RecordsError, match="seed"):
        Play()(trace, records=tmp_path / "r.jsonl", resume=True, seed=5)


def test_a_stopped_run_reports_what_was_done_and_can_be_resumed(trace: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    report = Play(FakeEngine(prefill_s=1.4, token_s=0.0), stop_after_s=5.0)(trace, records=records)
    assert not report.run.interrupted
    records.unlink()
    report = Play(FakeEngine(prefill_s=1.4, token_s=0.0), stop_after_s=2.0)(trace, records=records)
    assert report.run.interrupted
    counts = report.requests
    assert (counts.ok, counts.interrupted, counts.not_sent) == (1, 1, 2)
    assert report.latency.ttft_s is not None
    resumed = Play()(trace, records=records, resume=True)
    assert resumed.all_succeeded


def test_a_disk_that_fills_up_ends_the_run_with_its_own_sentence(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(ledger: Ledger, record: Record) -> None:
        raise RecordsError("the disk is full")

    monkeypatch.setattr(Ledger, "add", full)
    with pytest.raises(RecordsError, match="the disk is full"):
        Play()(trace, records=tmp_path / "r.jsonl")


def test_goodput_is_reported_under_the_bounds_given(trace: Path) -> None:
    report = Play(FakeEngine(prefill_s=0.5, token_s=0.1))(trace, slo=Slo(ttft_ms=600, e2e_s=0.75))
    assert report.goodput is not None
    assert report.goodput.met == 2


def test_the_prefix_caches_of_the_named_engines_are_reset_before_the_run(trace: Path) -> None:
    play = Play()
    play(trace, reset_prefix_cache=True)
    play(trace, reset_prefix_cache=True, engine_urls=("http://engine", "http://engine/v1"))
    assert play.engine.resets == 3


def test_an_engine_that_does_not_reset_stops_the_run_before_it_begins(trace: Path) -> None:
    play = Play(FakeEngine(reset_path=None))
    with pytest.raises(EndpointError, match="did not reset"):
        play(trace, reset_prefix_cache=True)
    assert play.engine.streams == []


def test_a_given_tokenizer_asks_the_engine_nothing(trace: Path) -> None:
    play = Play(FakeEngine(overhead_tokens=9, bytes_per_token=2.0))
    report = play(trace, bytes_per_token=2.0, overhead_tokens=9)
    assert play.engine.asides == []
    assert report.prompt_fit is not None
    assert report.prompt_fit.max_error_tokens <= 1


def test_answers_without_usage_still_succeed_and_their_lengths_are_unknown(trace: Path) -> None:
    report = Play(FakeEngine(usage=False))(trace)
    assert report.all_succeeded
    assert (report.prompt_fit, report.latency.tpot_s, report.cache) == (None, None, None)


def test_a_trace_in_batches_is_remarked_upon_unless_it_is_spread(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3_000 * (at // 5), "input_length": 9, "output_length": 1, "hash_ids": [at]}
        for at in range(15)
    ]
    path = tmp_path / "batches.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    play = Play()
    play(path)
    assert "--jitter-s" in play.said
    play(path, pace=Pace(jitter_s=3.0))
    assert "--jitter-s" not in play.said
    assert batched(read_trace(path))
    assert not batched(read_trace(SYNTHETIC))


def test_a_wrong_trace_is_refused_before_the_endpoint_is_asked(tmp_path: Path) -> None:
    play = Play()
    with pytest.raises(TraceError):
        play(tmp_path / "none.csv")
    assert play.engine.asides == []


def test_the_shipped_trace_replays_whole() -> None:
    play = Play(FakeEngine(prefill_s=0.05, token_s=0.01))
    report = play(SYNTHETIC, pace=Pace(speed=4.0))
    assert report.requests.ok == 300
    assert report.prompt_fit is not None
    assert report.prompt_fit.exact == 300


def test_two_replays_on_the_virtual_clock_are_the_same_report(trace: Path) -> None:
    make: Callable[[], Report] = lambda: Play()(trace, seed=3, pace=Pace(jitter_s=1.0))  # noqa: E731 - made twice
    assert msgspec.json.encode(make()) == msgspec.json.encode(make())
