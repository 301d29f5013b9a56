"""The open loop: every request leaves when it is due, however slow the answers are.

Separate from the endpoint so that the schedule can be tested against any sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.studies.replay.prompts import Prompts, Tokenizer
from router.studies.replay.records import Ledger, Record
from router.studies.replay.requests import Prepared, prepare, too_long
from router.studies.replay.schedule import Planned
from router.studies.replay.settings import ReplaySettings
from router.studies.replay.stream import Failure, StreamMeter


@dataclass(slots=True)
class Reply:
    """What came back besides the stream's own events.

    Attributes:
        ended: when the answer was over, by the clock of the run; None while it is not.
        failure: why it is no success; None for one.
    """

    status: int | None = None
    worker: str | None = None
    request_id: str | None = None
    ended: float | None = None
    failure: Failure | None = None


class Sender(Protocol):
    """Sends one request and reads its stream; fills `reply` on the way, so that a cut leaves what was known.

    Failures of the other side end up in the reply; only cancellation and bugs are raised.
    """

    async def __call__(self, body: bytes, meter: StreamMeter, reply: Reply) -> None: ...


@dataclass(slots=True)
class Tally:
    """The state of a run for those who watch it."""

    planned: int = 0
    sent: int = 0
    in_flight: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    output_tokens: int = 0

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped

    @property
    def beside(self) -> str:
        """What needs watching, in a few words."""
        return f"{self.in_flight} in flight, {self.failed} failed"

    @property
    def line(self) -> str:
        """The state in one line."""
        return (
            f"{self.done}/{self.planned} done: {self.ok} ok, {self.failed} failed, {self.skipped} skipped, "
            f"{self.in_flight} in flight, {self.output_tokens} output tokens"
        )


class Replay:
    """One run of a plan.

    Mutable state: `tally`, the slots of the concurrency cap, `_start` (clock time of the run's zero) and
    `_free_from` (when a slot last had to be waited for; lateness before it is the cap's, not the client's).
    """

    def __init__(
        self,
        settings: ReplaySettings,
        block_tokens: int,
        send: Sender,
        ledger: Ledger,
        now: Callable[[], float],
    ) -> None:
        self.tally = Tally()
        self._settings = settings
        self._prompts = Prompts(
            seed=settings.seed,
            block_tokens=block_tokens,
            tokenizer=Tokenizer(
                overhead_tokens=settings.overhead_tokens, tokens_per_word=settings.tokens_per_word
            ),
        )
        self._send = send
        self._ledger = ledger
        self._now = now
        self._slots = asyncio.Semaphore(settings.concurrency_cap)
        self._start = 0.0
        self._free_from = 0.0

    async def run(self, planned: Sequence[Planned]) -> None:
        """Sends the plan and waits for all answers.

        Cancelling it cuts what is in flight; those requests are recorded as interrupted.
        """
        self.tally.planned = len(planned)
        self._start = self._free_from = self._now()
        async with asyncio.TaskGroup() as requests:
            for one in planned:
                if too_long(self._settings, one.entry):
                    self._skip(one)
                    continue
                prepared = prepare(self._settings, self._prompts, one.entry)
                await self._wait_until(self._start + one.due_s)
                await self._take_slot()
                requests.create_task(self._request(one, prepared))

    async def _wait_until(self, moment: float) -> None:
        """Sleeps until then. Gives way at least once, or a client that is late would never send anything."""
        await asyncio.sleep(0)
        while (wait_s := moment - self._now()) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(wait_s)

    async def _take_slot(self) -> None:
        if self._slots.locked():
            await self._slots.acquire()
            self._free_from = self._now()
        else:
            await self._slots.acquire()

    async def _request(self, one: Planned, prepared: Prepared) -> None:
        meter, reply = StreamMeter(), Reply()
        sent = self._now()
        lag_s = max(0.0, sent - max(self._start + one.due_s, self._free_from))
        self.tally.sent += 1
        self.tally.in_flight += 1
        interrupted = True
        try:
            await self._send(prepared.body, meter, reply)
            interrupted = False
        finally:
            self.tally.in_flight -= 1
            self._slots.release()
            self._settle(self._record(one, prepared, sent, meter, reply), lag_s, interrupted=interrupted)

    def _record(
        self, one: Planned, prepared: Prepared, sent: float, meter: StreamMeter, reply: Reply
    ) -> Record:
        usage = meter.usage
        ended = reply.ended if reply.ended is not None else self._now()
        return Record(
            line=one.entry.line,
            run=self._ledger.run,
            outcome="failed" if reply.failure is not None else "ok",
            due_s=one.due_s,
            prompt_tokens=one.entry.prompt_tokens,
            output_tokens=prepared.max_tokens,
            clipped=prepared.clipped,
            sent_s=sent - self._start,
            ttft_s=meter.first - sent if meter.first is not None else None,
            generation_s=meter.last - meter.first
            if meter.first is not None and meter.last is not None
            else None,
            e2e_s=ended - sent,
            itl_us=meter.itl_us,
            told_prompt_tokens=usage.prompt_tokens if usage is not None else None,
            told_output_tokens=usage.completion_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            finish_reason=meter.finish_reason,
            status=reply.status,
            error=reply.failure.kind if reply.failure is not None else None,
            message=reply.failure.message if reply.failure is not None else None,
            worker=reply.worker,
            request_id=reply.request_id,
        )

    def _settle(self, record: Record, lag_s: float, *, interrupted: bool) -> None:
        record.lag_s = lag_s
        if interrupted:
            record.outcome = "interrupted"
        elif record.outcome == "ok":
            self.tally.ok += 1
            self.tally.output_tokens += record.told_output_tokens or 0
        else:
            self.tally.failed += 1
        self._ledger.add(record)

    def _skip(self, one: Planned) -> None:
        entry = one.entry
        self.tally.skipped += 1
        self._ledger.add(
            Record(
                line=entry.line,
                run=self._ledger.run,
                outcome="skipped",
                due_s=one.due_s,
                prompt_tokens=entry.prompt_tokens,
                output_tokens=entry.output_tokens,
                error="too_long",
                message=f"the prompt leaves no room in max_model_len {self._settings.max_model_len}",
            )
        )
