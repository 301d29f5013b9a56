"""From one engine's event stream to one client: byte for byte, with the mirror advanced on the side.

Two halves with the commit between them. Before it, nothing has reached the client and another worker may be
tried; after it, a failure is an error event and an unclean end, never a silent cut and never `[DONE]`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from router.api.responder import Responder
from router.core.answer import EngineError
from router.core.errors import DeadlineExceeded, UpstreamBroken
from router.core.request import Api
from router.core.retry import Failure, failure_of_status
from router.core.stream import StreamScanner
from router.core.stream_error import anthropic_status, anthropic_type, keep_alive
from router.dispatch import Held
from router.journey import Journey
from router.upstream.alarm import Alarm
from router.upstream.exchange import Exchange

_DONE = re.compile(rb"(?:\A|(?<=[\r\n]))(?:data: \[DONE\]|event: message_stop)")
_MAX_HELD_BYTES = 64 * 1024
_REPORT_S = 0.05
"""The mirror hears of a stream this often: it counts thousands of KV tokens, and a few of them late change no
placement, but hearing of each costs more than scanning it."""


class FirstEventError(Exception):
    """The first event of a stream is an error: the answer should not have been 200.

    Attributes:
        status, body: of the answer that it should have been.
    """

    def __init__(self, error: EngineError, api: Api) -> None:
        super().__init__(error.message)
        self.status = error.status or anthropic_status(error.type) or 500
        detail = {"message": error.message, "type": error.type, "param": None, "code": error.code or None}
        body: dict[str, object] = {"error": detail}
        if api is Api.MESSAGES:
            name = error.type or anthropic_type(self.status)
            body = {"type": "error", "error": {"type": name, "message": error.message}}
        self.body = msgspec.json.encode(body)
        # Without a status of its own it is a fault of the engine's, and so worth a try elsewhere.
        failure = failure_of_status(self.status)
        if failure is None or failure is Failure.SERVER_ERROR:
            failure = Failure.FIRST_EVENT_ERROR
        self.failure = failure


@dataclass(frozen=True, slots=True)
class StreamDeadlines:
    """Times and patience of one stream, in seconds; the first two are absolute.

    Attributes:
    first_event_by: the first data event must have come; first_event_phase: what that deadline is called.
    comments_commit_at: an engine comment after this time commits.
    idle_s: between two events; idle_lost_worker_s: the same once the worker is known to be lost.
    keep_alive_s: silence after which the router writes a comment of its own; None: never.
    """

    first_event_by: float
    comments_commit_at: float
    idle_s: float
    idle_lost_worker_s: float
    keep_alive_s: float | None
    first_event_phase: str = "first_event"


class StreamRelay:
    """Relays one stream of one attempt."""

    __slots__ = (
        "_api",
        "_broken",
        "_deadlines",
        "_exchange",
        "_held",
        "_idle_s",
        "_journey",
        "_keep_alive_s",
        "_last_event",
        "_lost",
        "_now",
        "_observe_gap",
        "_quiet",
        "_report_at",
        "_responder",
        "_scanner",
        "_seen",
        "_tokens_per_event",
    )

    def __init__(
        self,
        exchange: Exchange,
        scanner: StreamScanner,
        held: Held,
        journey: Journey,
        deadlines: StreamDeadlines,
        now: Callable[[], float],
    ) -> None:
        self._api = held.lease.request.api
        self._exchange = exchange
        self._scanner = scanner
        self._held = held
        self._journey = journey
        self._deadlines = deadlines
        self._now = now
        self._idle_s = deadlines.idle_s
        self._lost = False
        self._tokens_per_event = 1.0
        self._report_at = 0.0
        self._seen = -1
        self._last_event = 0.0
        self._broken = False
        self._keep_alive_s = deadlines.keep_alive_s or 0.0
        self._quiet: Alarm | None = None
        self._responder: Responder | None = None
        self._observe_gap: Callable[[float], None] | None = None

    @property
    def at_boundary(self) -> bool:
        return self._scanner.at_boundary

    def lost_worker(self) -> None:
        """The worker refuses connections or was born anew: what is silent now will not speak again."""
        self._lost = True
        self._idle_s = self._deadlines.idle_lost_worker_s
        self._exchange.hurry(self._now() + self._idle_s)

    async def until_commit(self) -> bytes:
        """Reads up to the first data event and returns the bytes that the client gets first.

        Raises:
            FirstEventError: see there.
            UpstreamError: see `Exchange.read`.
        """
        scanner, facts = self._scanner, self._scanner.facts
        held_back: list[bytes] = []
        size = 0
        while True:
            data = await self._read_first()
            if not data:
                raise UpstreamBroken("The worker ended its stream before the first event.")
            piece = scanner.feed(data)
            if facts.error is not None and not facts.data_events:
                raise FirstEventError(facts.error, self._api)
            held_back.append(piece)
            size += len(piece)
            waited_enough = facts.comments and self._now() >= self._deadlines.comments_commit_at
            if facts.data_events or facts.done or waited_enough or size > _MAX_HELD_BYTES:
                return b"".join(held_back)

    async def _read_first(self) -> bytes:
        deadlines = self._deadlines
        try:
            return await self._exchange.read(deadlines.first_event_by, deadlines.first_event_phase)
        except DeadlineExceeded as error:
            if not self._lost:
                raise
            # Not slow but gone: that is worth a try elsewhere.
            raise UpstreamBroken("The worker went away before its first event.") from error

    async def after_commit(self, first: bytes, responder: Responder) -> bool:
        """Relays the rest; the status line was sent. True when the stream came to its proper end.

        False means that the engine itself broke it off in words (an error event, an abort): the words have
        been passed on, the caller ends the stream uncleanly. Raises UpstreamError when it broke in silence.
        """
        self._responder = responder
        self._last_event = self._now()
        self._start_keep_alive()
        try:
            enough = not self._pass(first)
            while not self._broken:
                if enough:
                    await responder.room()
                due = self._last_event + self._idle_s
                if await self._exchange.pour(self._arrived, due):
                    return await self._at_end()
                enough = True
            await responder.room()
            return False
        finally:
            if self._quiet is not None:
                self._quiet.cancel()

    def _arrived(self, data: bytes) -> float | None:
        """Called with bytes the moment they come, in the reader's own callback: no task is woken for them.
        Says by when the next must have come, or None when the client is behind or the stream is broken."""
        return self._last_event + self._idle_s if self._pass(self._scanner.feed(data)) else None

    def _pass(self, piece: bytes) -> bool:
        """Takes note of what the scanner has seen and passes `piece` on. False: no more for now."""
        facts = self._scanner.facts
        if facts.events != self._seen:
            self._seen = facts.events
            self._last_event = now = self._now()
            self._advance(now)
        # Nothing ends before one of these is there; most events are told by three cheap looks.
        if (facts.finish_reasons or facts.done or facts.error is not None) and self._failed():
            piece, self._broken = _without_done(piece), True
        if not piece or self._responder is None:
            return not self._broken
        if self._quiet is not None:
            self._quiet.set(self._last_event + self._keep_alive_s)
        return self._responder.push(piece) and not self._broken

    def _failed(self) -> bool:
        """Whether the engine broke its answer off in words. One that is complete gives its slot back at once:
        the lease follows the engine, not a client that reads slowly."""
        if self._scanner.facts.failed:
            return True
        if self._scanner.complete and not self._held.lease.settled:
            self._report()
            self._held.settle_now()
        return False

    async def _at_end(self) -> bool:
        rest = self._scanner.flush()
        if rest and self._responder is not None:
            await self._responder.write(rest)
        if not self._scanner.complete:
            raise UpstreamBroken("The worker ended its stream before it was complete.")
        return True

    def _advance(self, now: float) -> None:
        """Moves the gap histogram and, now and then, the mirror by what was just read."""
        gap_s = self._journey.event(now)
        if self._observe_gap is not None and gap_s:
            self._observe_gap(gap_s)
        if now >= self._report_at:
            self._report_at = now + _REPORT_S
            self._report()

    def _report(self) -> None:
        facts = self._scanner.facts
        generated = facts.generated_tokens
        if generated is None:
            generated = round(facts.content_events * self._tokens_per_event)
        self._held.progress(
            generated_tokens=generated, prompt_tokens=facts.prompt_tokens, cached_tokens=facts.cached_tokens
        )

    def estimate_with(self, tokens_per_event: float, observe_gap: Callable[[float], None]) -> None:
        self._tokens_per_event = tokens_per_event
        self._observe_gap = observe_gap

    # --- silence -----------------------------------------------------------------------------------------

    def _start_keep_alive(self) -> None:
        if self._deadlines.keep_alive_s is None:
            return
        self._quiet = Alarm(asyncio.get_running_loop(), self._now, self._speak)
        self._quiet.set(self._now() + self._keep_alive_s)

    def _speak(self) -> None:
        """Nothing was written for a while: a comment keeps proxies in between from closing the stream."""
        if self._responder is not None and self._scanner.at_boundary:
            self._responder.offer(keep_alive(self._api))
        if self._quiet is not None:
            self._quiet.set(self._now() + self._keep_alive_s)


def _without_done(piece: bytes) -> bytes:
    """A broken stream must not look complete. A line that begins so cannot be part of a JSON string, in which
    line ends are escaped."""
    end = _DONE.search(piece)
    return piece if end is None else piece[: end.start()]
