"""Laws of the open loop, against a sender that takes as long as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from router.studies.replay.records import Ledger, Record, Workload
from router.studies.replay.run import Replay, Reply
from router.studies.replay.schedule import Pace, plan
from router.studies.replay.settings import ReplaySettings
from router.studies.replay.stream import Failure, StreamMeter, Usage
from router.studies.traces import Trace, TraceEntry
from router.virtual.clock import run

WORKLOAD = Workload(trace_digest="", trace_format="made", seed=0, model="m", api="chat", ignore_eos=True)


def trace_of(times: list[float], prompt_tokens: int = 8) -> Trace:
    return Trace(
        format="made",
        name="made",
        digest="",
        entries=[
            TraceEntry(arrival_s=at, prompt_tokens=prompt_tokens, output_tokens=4, line=line)
            for line, at in enumerate(times, 1)
        ],
    )


class Stage:
    """One run on the virtual clock with a sender that answers after `takes_s`."""

    def __init__(self, takes_s: float = 1.0, failure: Failure | None = None, **settings: Any) -> None:
        self.takes_s = takes_s
        self.failure = failure
        self.settings = ReplaySettings(url="http://e", model="m", **settings)
        self.ledger = Ledger(WORKLOAD, "then")
        self.sent: list[float] = []
        self.in_flight = self.peak = 0

    async def send(self, body: bytes, meter: StreamMeter, reply: Reply) -> None:
        now = asyncio.get_running_loop().time
        self.sent.append(now())
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.takes_s)
            meter.first = meter.last = now()
            meter.usage = Usage(prompt_tokens=8, completion_tokens=4)
            reply.failure, reply.ended = self.failure, now()
        finally:
            self.in_flight -= 1

    def replay(self, now: Callable[[], float]) -> Replay:
        return Replay(self.settings, 0, self.send, self.ledger, now)

    def run(self, trace: Trace, speed: float = 1.0) -> list[Record]:
        """Runs the trace to its end; `sent` then counts from the start of the run."""

        async def main() -> None:
            now = asyncio.get_running_loop().time
            start = now()
            await self.replay(now).run(plan(trace, Pace(speed=speed), 0))
            self.sent = [at - start for at in self.sent]

        run(main())
        return self.ledger.records


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_arrivals_are_honoured_under_speed_however_slow_the_answers(speed: float) -> None:
    times = [0.0, 0.5, 0.5, 2.0, 30.0]
    stage = Stage(takes_s=1_000.0)
    records = stage.run(trace_of(times), speed)
    assert stage.sent == pytest.approx([at / speed for at in times])
    assert stage.peak == len(times)
    assert [record.late_s for record in records] == pytest.approx([0.0] * 5)


def test_the_cap_is_respected_and_its_wait_is_lateness_but_no_lag() -> None:
    stage = Stage(takes_s=10.0, concurrency_cap=2)
    records = stage.run(trace_of([0.0, 1.0, 2.0, 3.0]))
    assert stage.peak == 2
    assert stage.sent == pytest.approx([0.0, 1.0, 10.0, 11.0])
    assert [record.late_s for record in records] == pytest.approx([0.0, 0.0, 8.0, 8.0])
    assert [record.lag_s for record in records] == pytest.approx([0.0] * 4)


def test_a_client_that_cannot_keep_up_says_so() -> None:
    """Preparing takes time on this clock: what that costs is lag, whatever the cap."""
    ticks = iter(range(10_000))
    stage = Stage(takes_s=0.0)

    async def main() -> None:
        base = asyncio.get_running_loop().time
        await stage.replay(lambda: base() + next(ticks)).run(plan(trace_of([0.0, 0.0, 0.0]), Pace(), 0))

    run(main())
    lags = [record.lag_s or 0.0 for record in stage.ledger.records]
    assert lags == sorted(lags)
    assert lags[0] > 0
    assert lags[2] > lags[0]


def test_every_request_is_recorded_with_its_outcome() -> None:
    records = Stage(failure=Failure("http_500", "no")).run(trace_of([0.0, 1.0]))
    assert [(r.outcome, r.error, r.message) for r in records] == [("failed", "http_500", "no")] * 2
    for record in Stage().run(trace_of([0.0, 1.0])):
        assert record.outcome == "ok"
        assert record.ttft_s == record.e2e_s == pytest.approx(1.0)
        assert record.told_output_tokens == 4


def test_prompts_without_room_are_skipped_and_never_sent() -> None:
    stage = Stage(max_model_len=8)
    records = stage.run(trace_of([0.0, 1.0], prompt_tokens=8))
    assert stage.sent == []
    assert [(r.outcome, r.error) for r in records] == [("skipped", "too_long")] * 2


def test_a_cancelled_run_records_what_it_cut_and_nothing_of_what_it_never_sent() -> None:
    stage = Stage(takes_s=10.0)

    async def main() -> Replay:
        replay = stage.replay(asyncio.get_running_loop().time)
        task = asyncio.create_task(replay.run(plan(trace_of([0.0, 5.0, 20.0]), Pace(), 0)))
        await asyncio.sleep(12.0)
        task.cancel()
        await asyncio.wait([task])
        return replay

    replay = run(main())
    assert [(r.line, r.outcome) for r in stage.ledger.records] == [(1, "ok"), (2, "interrupted")]
    assert stage.in_flight == replay.tally.in_flight == 0


def test_the_tally_follows_the_run() -> None:
    stage = Stage(takes_s=10.0)

    async def main() -> list[tuple[int, int, int]]:
        replay = stage.replay(asyncio.get_running_loop().time)
        task = asyncio.create_task(replay.run(plan(trace_of([0.0, 5.0]), Pace(), 0)))
        seen = []
        for _ in range(3):
            await asyncio.sleep(6.0)
            tally = replay.tally
            seen.append((tally.sent, tally.in_flight, tally.done))
        await task
        return seen

    assert run(main()) == [(2, 2, 0), (2, 1, 1), (2, 0, 2)]


def test_a_bug_in_the_sender_is_not_counted_as_a_failure_but_raised() -> None:
    stage = Stage()

    async def broken(body: bytes, meter: StreamMeter, reply: Reply) -> None:
        raise ZeroDivisionError

    stage.send = broken  # type: ignore[method-assign]  # this sender is the test
    with pytest.raises(ExceptionGroup) as caught:
        stage.run(trace_of([0.0]))
    assert caught.value.subgroup(ZeroDivisionError) is not None
