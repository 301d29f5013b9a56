"""Following the events of one worker, for ever.

Whatever comes is counted and lowers the trust in what is known of the worker, or restores it; nothing that an
engine sends, or does not send, ends the following. Separate from the intake because this is about order and
time: what is missing, what comes twice, who was restarted, and when to ask.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from router.kv_events.catch_up import CatchUp, ReplayFailed
from router.kv_events.framing import BrokenFrames, Message, live_message
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Known, Learned
from router.kv_events.position import Step
from router.kv_events.reader import Batch
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Arrival, Line, Link, Wire, WireFailed

log = logging.getLogger("pointsman.kv_events")


class Follower:
    """The listener of one worker.

    State: what is known and how far, in its intake; `_quiet_at`, when silence becomes a question;
    `_resync_at`, when the next attempt to get a whole record is due, None while there is nothing to gain.
    """

    def __init__(
        self,
        intake: Intake,
        wire: Wire,
        source: EventSource,
        settings: KvEventsSettings,
        now: Callable[[], float],
    ) -> None:
        intake.rank = source.rank
        self.intake = intake
        self.source = source
        self._wire = wire
        self._settings = settings
        self._now = now
        self._catch_up = CatchUp(intake, wire, source, settings, now)
        self._quiet_at = math.inf
        self._resync_at: float | None = None
        self._resync_after_s = settings.resync_min_s
        self._complained = False

    async def run(self) -> None:
        """Follows until it is cancelled."""
        knowledge = self.intake.knowledge
        self.intake.position.forget()
        knowledge.learn(Learned.LOST)
        knowledge.learn(Learned.SILENT)  # until the connection is there
        try:
            while True:
                line = await self._subscribed()
                try:
                    while await self._turn(line):
                        pass
                finally:
                    line.close()
        except Exception:
            knowledge.learn(Learned.SILENT)
            raise
        finally:
            self.intake.counters.up = False

    async def _subscribed(self) -> Line:
        """The live line; tries for ever, for an address may become free."""
        while True:
            self._expect_something()
            try:
                return self._wire.subscribe(self.source)
            except WireFailed as error:
                self._complain(f"its events cannot be listened to: {error}")
                await asyncio.sleep(self._settings.look_s)

    async def _turn(self, line: Line) -> bool:
        """What has arrived, or is due without it. False when the line is of no use any more: some errors end
        a connection for good, and another line makes another one. One that listens outlives its connections,
        and its address would not be free at once."""
        resync_at = math.inf if self._resync_at is None else self._resync_at
        arrivals = await line.receive(min(self._quiet_at, resync_at))
        for arrival in arrivals:
            await self._arrived(arrival)
        quiet = not arrivals and self._now() >= self._quiet_at
        if quiet:
            await self._was_it_really_quiet()
        if arrivals or quiet:
            self._expect_something()
        if self._now() >= resync_at:
            await self._resync()
        return self.intake.counters.up or not quiet or self.source.listens

    def _expect_something(self) -> None:
        settings = self._settings
        self._quiet_at = self._now() + (settings.quiet_s if self.intake.counters.up else settings.redial_s)

    async def _arrived(self, arrival: Arrival) -> None:
        if arrival is Link.UP:
            await self._connected()
        elif arrival is Link.DOWN:
            self._disconnected()
        elif not isinstance(arrival, Link):
            await self._live(arrival)

    # --- the connection -------------------------------------------------------------------------------

    async def _connected(self) -> None:
        """What was published while there was no connection did not arrive, and nobody says that it was."""
        intake = self.intake
        intake.counters.up = True
        if intake.knowledge.whole and not self._catch_up.possible:
            return  # the next number tells whether something is missing
        if not intake.knowledge.whole:
            self._catch_up.forget()
        if self._catch_up.possible:
            await self._replay()

    def _disconnected(self) -> None:
        counters = self.intake.counters
        if counters.up:
            counters.up = False
            counters.disconnects += 1
        self.intake.knowledge.learn(Learned.SILENT)

    async def _was_it_really_quiet(self) -> None:
        """An idle engine publishes nothing, and neither does one whose messages are lost on the way."""
        if self.intake.counters.up and self._catch_up.possible and not self.intake.knowledge.absent:
            await self._replay()

    # --- messages -------------------------------------------------------------------------------------

    async def _live(self, frames: Sequence[bytes]) -> None:
        try:
            message = live_message(frames)
        except BrokenFrames:
            self.intake.counters.broken += 1
            return  # whatever it was: the next number tells whether something is missing
        batch = self.intake.read(message)
        if batch is None:
            self._complain("its events are of another data-parallel rank; check its endpoint")
            return
        position = self.intake.position
        step = position.judge(message, batch.ts)
        if self.intake.knowledge.absent:
            step = Step.NEXT  # nothing is taken in, so nothing can be missing
        elif step is Step.GAP:
            step = await self._gap(message, batch)
        elif step is Step.RESTART:
            step = await self._restart(message, batch)
        position.seen(message)
        if step is Step.DUPLICATE:
            self.intake.counters.duplicates += 1
        else:
            await self._next(message, batch)

    async def _next(self, message: Message, batch: Batch) -> None:
        knowledge, position = self.intake.knowledge, self.intake.position
        if position.expected is None and message.sequence == 0:
            knowledge.learn(Learned.WHOLE)
        elif knowledge.stale and self.intake.counters.up:
            knowledge.learn(Learned.HEARD)  # a message that still waited in the line says nothing of it
        await self.intake.take(message, batch)
        if knowledge.absent:
            self._resync_later()

    async def _gap(self, message: Message, batch: Batch) -> Step:
        """Fills it, or gives the record up and goes on behind it."""
        intake, counters = self.intake, self.intake.counters
        before = intake.position.expected or 0
        counters.gaps += 1
        counters.missed += message.sequence - before
        if intake.knowledge.whole:
            intake.knowledge.learn(Learned.SILENT)
        if self._catch_up.possible and await self._replay():
            after = intake.position.expected
            if after is not None and before < after:
                counters.filled += min(after, message.sequence) - before
        return self._after_replay(message, batch)

    async def _restart(self, message: Message, batch: Batch) -> Step:
        """Nothing that was believed is there any more."""
        self.intake.counters.restarts += 1
        self._catch_up.forget()
        if message.sequence > 0 and self._catch_up.possible:
            await self._replay()
        return self._after_replay(message, batch)

    def _after_replay(self, message: Message, batch: Batch) -> Step:
        """What a message is now; if the replay did not lead up to it, what is known begins with it."""
        step = self.intake.position.judge(message, batch.ts)
        if step in (Step.GAP, Step.RESTART):
            self._catch_up.forget()
            return Step.NEXT
        return step

    # --- replays --------------------------------------------------------------------------------------

    async def _replay(self) -> bool:
        """Gets what is missing; whether that went well. If not, whether events arrive is for the live line to
        say: an engine may have closed its replay and nothing else."""
        try:
            await self._catch_up.to_end()
        except ReplayFailed as error:
            self.intake.counters.replays_failed += 1
            self._complain(f"missed events cannot be had: {error}")
            self._resync_later()
            return False
        self._settled()
        return True

    async def _resync(self) -> None:
        """Tries for a whole record; a partial one stays as it is until then."""
        self._resync_at = None
        known, askable = self.intake.knowledge.known, self._catch_up.possible and self.intake.counters.up
        if known is Known.NOTHING:
            self._catch_up.forget()
            if askable:
                await self._replay()
        elif known is Known.PARTLY and askable:
            try:
                await self._catch_up.from_beginning()
            except ReplayFailed:
                self.intake.counters.replays_failed += 1
            self._settled()

    def _resync_later(self) -> None:
        if self._resync_at is None:
            self._resync_at = self._now() + self._resync_after_s
            self._resync_after_s = min(2 * self._resync_after_s, self._settings.resync_max_s)

    def _settled(self) -> None:
        """After a replay: what remains to be gained, and whether that can be had."""
        known = self.intake.knowledge.known
        if known is Known.WHOLLY:
            self._resync_after_s, self._complained = self._settings.resync_min_s, False
        elif known is Known.NOTHING or (known is Known.PARTLY and not self._catch_up.rolled):
            self._resync_later()

    def _complain(self, what: str) -> None:
        """Tells the operator once; again only after all was well."""
        if not self._complained:
            self._complained = True
            log.warning("worker %s: %s", self.intake.knowledge.worker, what)

    def __repr__(self) -> str:
        return f"<Follower {self.source.endpoint} {self.intake!r}>"
