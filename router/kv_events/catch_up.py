"""Getting back what was missed, from the engine's own memory of its last batches.

Separate from listening because it is a conversation with rules of its own. The request names a batch that was
already taken: the engine's answer must begin with it, to the byte, or it is not the engine that was listened
to. Engines drop answers when they are asked for more than their socket holds, so a replay goes on with a
further request for as long as it gets ahead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from router.kv_events.framing import BrokenFrames, Message, replayed_message
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Known, Learned
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Link, Wire, WireFailed


class ReplayFailed(Exception):
    """The engine did not serve a replay to its end. The text says how far it came."""


class CatchUp:
    """Replays of one worker, taken in by its intake.

    Attributes:
        rolled: the engine no longer remembers its beginning, so a whole record cannot be had from it.
    """

    def __init__(
        self,
        intake: Intake,
        wire: Wire,
        source: EventSource,
        settings: KvEventsSettings,
        now: Callable[[], float],
    ) -> None:
        self._intake = intake
        self._wire = wire
        self._source = source
        self._settings = settings
        self._now = now
        self._losses_at_start: int | None = None
        self.rolled = False

    @property
    def possible(self) -> bool:
        """Whether the engine can be asked at all."""
        return self._source.replay_endpoint is not None

    async def to_end(self) -> None:
        """Takes in everything that was published after what is known.

        Raises ReplayFailed; what came until then is taken in.
        """
        position, until = self._intake.position, self._now() + self._settings.replay_s
        while True:
            before, failed = position.expected, f"{self._source.replay_endpoint} left something out"
            try:
                if await self._round(until):
                    return
            except ReplayFailed as error:
                failed = str(error)
            if position.expected == before or self._now() >= until:
                raise ReplayFailed(failed)

    async def from_beginning(self) -> bool:
        """Exchanges a record that is not whole for a whole one, if the engine still remembers its beginning;
        the present record stays until the answer shows that it does.

        Raises ReplayFailed.
        """
        async with aclosing(self._answers(0, self._now() + self._settings.replay_s)) as answers:
            first = await anext(answers, None)
        if first is not None and first.sequence > 0:
            self.rolled = True
            return False
        self.forget()
        await self.to_end()
        return self._intake.knowledge.known is Known.WHOLLY

    def forget(self) -> None:
        """What is known of the worker begins anew, at the beginning of what it remembers."""
        self._intake.lose()
        self._intake.position.forget()
        self.rolled = False

    async def _round(self, until: float) -> bool:
        """One request and its answers; whether they came to their end."""
        position = self._intake.position
        start = max((position.expected or 0) - 1, 0)
        async with aclosing(self._answers(start, until)) as answers:
            first = await anext(answers, None)
            if not await self._begin(first, start):
                return False
            async for message in answers:
                if position.expected is not None and message.sequence > position.expected:
                    return False
                await self._take(message)
        whole = self._losses_at_start == self._intake.counters.lost
        self._intake.knowledge.learn(Learned.WHOLE if whole else Learned.HEARD)
        return True

    async def _begin(self, first: Message | None, start: int) -> bool:
        """Looks whether the answers go on where we are; if they do not, says what that means.

        False when the engine has to be asked again, from its beginning.
        """
        position = self._intake.position
        if position.expected in (None, 0):
            await self._begin_anew(first)
            return True
        if first is None or (first.sequence == start and not position.was_last(first)):
            self._intake.counters.restarts += 1
            self.forget()
            return False
        if first.sequence > start:
            self.forget()
            self.rolled = True
            await self._take(first)
        return True

    async def _begin_anew(self, first: Message | None) -> None:
        """The first answer for somebody who has taken nothing yet."""
        intake = self._intake
        if first is None:
            intake.position.from_start()
        elif first.sequence > 0:
            self.rolled = True
            if intake.position.expected == 0:
                intake.lose()
                intake.position.forget()
        if not self.rolled:
            self._losses_at_start = intake.counters.lost
        if first is not None:
            await self._take(first)

    async def _take(self, message: Message) -> None:
        intake = self._intake
        expected = intake.position.expected
        if expected is not None and message.sequence < expected:
            return
        batch = intake.read(message)
        if batch is not None:
            await intake.take(message, batch)
            intake.counters.replayed += 1

    async def _answers(self, start: int, until: float) -> AsyncGenerator[Message, None]:
        """What is remembered from number `start` on, to the end that the engine itself tells.

        Raises ReplayFailed when it does not come to that.
        """
        self._intake.counters.replays += 1
        try:
            line = self._wire.replay(self._source, start)
        except WireFailed as error:
            raise ReplayFailed(str(error)) from None
        try:
            patience_s = self._settings.answer_s
            while True:
                arrivals = await line.receive(min(until, self._now() + patience_s))
                patience_s = self._settings.next_answer_s
                if not arrivals:
                    raise ReplayFailed(f"{self._source.replay_endpoint} does not answer")
                for arrival in arrivals:
                    message = self._message(arrival)
                    if message is None:
                        return
                    yield message
        finally:
            line.close()

    def _message(self, arrival: Link | Sequence[bytes]) -> Message | None:
        if isinstance(arrival, Link):
            raise ReplayFailed(f"{self._source.replay_endpoint} is gone")
        try:
            return replayed_message(arrival)
        except BrokenFrames as error:
            self._intake.counters.broken += 1
            raise ReplayFailed(f"{self._source.replay_endpoint} answers otherwise: {error}") from None

    def __repr__(self) -> str:
        return f"<CatchUp {self._source.replay_endpoint}{' rolled' if self.rolled else ''}>"
