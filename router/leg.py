"""One leg: a request at one worker, from the first byte sent to the last byte relayed.

Whatever goes wrong before commit leaves as `LegFailed` or UpstreamError, and another worker may be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from router.admission import Job
from router.api.headers import Header, for_client
from router.api.responder import Responder
from router.core.answer import read_answer
from router.core.errors import RouterError, UpstreamBroken
from router.core.lease import Outcome
from router.core.request import Api
from router.core.retry import Failure
from router.core.stream import StreamScanner
from router.core.stream_error import error_event
from router.core.token_book import TokenBook
from router.dispatch import Held
from router.fleet import Fleet, Member
from router.journey import Journey, Telemetry
from router.relay import FirstEventError, StreamDeadlines, StreamRelay
from router.responses import ResponseOwners
from router.sending import EngineAnswer, LegFailed, LegSettings, Outgoing, Sender, own
from router.upstream.exchange import Exchange

_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_JSON_HEADER = ((b"content-type", b"application/json"),)


class Legs:
    """Runs legs. State: the relays that are under way per worker, to be told when their worker is lost."""

    def __init__(
        self,
        fleet: Fleet,
        sender: Sender,
        tokens: TokenBook,
        owners: ResponseOwners,
        telemetry: Telemetry,
        settings: LegSettings,
    ) -> None:
        self._fleet = fleet
        self._sender = sender
        self._tokens = tokens
        self._owners = owners
        self._telemetry = telemetry
        self._now: Callable[[], float] = telemetry.now
        self._settings = settings
        self._relays: dict[str, set[StreamRelay]] = {}

    async def run(
        self,
        job: Job,
        held: Held,
        responder: Responder,
        journey: Journey,
        outgoing: Outgoing | None = None,
    ) -> None:
        """Sends the job to the worker that was chosen and relays the answer.

        Args:
            outgoing: what is sent when it is not the client's own request.

        Raises:
            LegFailed, UpstreamError: nothing was committed unless `responder.started`.
        """
        member = self._fleet.reach(held.lease.worker)
        outgoing = outgoing if outgoing is not None else own(job)
        with await self._sender.open(job, member, journey, outgoing) as exchange:
            leg = _Leg(job, held, responder, journey, member, exchange, outgoing)
            kind = _content_type(exchange.headers)
            if job.request.api.generates and kind.startswith(b"text/event-stream"):
                await self._stream(leg)
            elif job.request.api.generates or b"json" in kind:
                await self._whole(leg)
            else:
                await self._raw(leg)
        journey.outcome = Outcome.OK

    # --- streams ---------------------------------------------------------------------------------------

    async def _stream(self, leg: _Leg) -> None:
        request = leg.job.request
        scanner = StreamScanner(request.api, hide_usage=leg.job.hide_usage, choices=leg.job.choices)
        relay = StreamRelay(leg.exchange, scanner, leg.held, leg.journey, self._deadlines(leg), self._now)
        series = self._telemetry.metrics.request(leg.journey.call.route.label, request.model)
        relay.estimate_with(
            self._tokens.streams.ratio(request.model, leg.member.name), series.inter_token.observe
        )
        relays = self._relays.setdefault(leg.member.name, set())
        relays.add(relay)
        try:
            await self._relay(leg, relay, scanner)
        finally:
            relays.discard(relay)
            if not relays:
                self._relays.pop(leg.member.name, None)
            leg.journey.heard(scanner.facts)

    async def _relay(self, leg: _Leg, relay: StreamRelay, scanner: StreamScanner) -> None:
        try:
            first = await relay.until_commit()
        except FirstEventError as error:
            answer = EngineAnswer(error.status, _JSON_HEADER, error.body)
            raise LegFailed(error.failure, leg.member.name, answer=answer) from None
        leg.job.release()
        if leg.job.request.api is Api.RESPONSES and scanner.facts.answer_id:
            self._owners.learn(scanner.facts.answer_id, leg.member)
        leg.journey.committed(leg.exchange.status)
        if leg.job.early is not None:
            await leg.job.early.stop()
        if not leg.responder.started:
            await leg.responder.start(leg.exchange.status, self._headers(leg, streamed=True))
        try:
            await self._after_commit(leg, relay, scanner, first)
        except RouterError as error:
            # An abort in a finish reason looks like an end to most clients; only an error event says it all.
            if relay.at_boundary and scanner.facts.error is None:
                await leg.responder.write(self._farewell(leg, scanner, error))
            raise
        leg.journey.finished(leg.exchange.status)
        await leg.responder.finish()

    async def _after_commit(
        self, leg: _Leg, relay: StreamRelay, scanner: StreamScanner, first: bytes
    ) -> None:
        whole = await relay.after_commit(first, leg.responder)
        self._learn(leg, scanner)
        if not whole:
            leg.held.settle(Outcome.FAILED, "broke off its stream")
            raise UpstreamBroken("The worker broke off its answer.")

    def _farewell(self, leg: _Leg, scanner: StreamScanner, error: RouterError) -> bytes:
        request = leg.job.request
        facts = scanner.facts
        return error_event(
            request.api, error, answer_id=facts.answer_id, model=request.model, sequence_number=facts.events
        )

    def _deadlines(self, leg: _Leg) -> StreamDeadlines:
        timeouts = self._settings.timeouts
        return StreamDeadlines(
            first_event_by=leg.outgoing.by,
            first_event_phase=leg.outgoing.phase,
            comments_commit_at=leg.job.call.arrived + timeouts.comment_commit_s,
            idle_s=timeouts.idle_s,
            idle_lost_worker_s=timeouts.idle_lost_worker_s,
            keep_alive_s=timeouts.keep_alive_s,
        )

    def _learn(self, leg: _Leg, scanner: StreamScanner) -> None:
        facts = scanner.facts
        usage = facts.usage
        if usage is not None:
            leg.held.report(usage)
            self._tokens.learn(leg.job.request, leg.job.size, usage)
            if usage.completion_tokens is not None:
                self._tokens.streams.learn(
                    leg.job.request.model, leg.member.name, facts.content_events, usage.completion_tokens
                )

    def lost_worker(self, name: str) -> None:
        """A worker refuses connections or was born anew: its streams get little time to show life."""
        for relay in self._relays.get(name, ()):
            relay.lost_worker()

    # --- answers that are no event streams ----------------------------------------------------------------

    async def _whole(self, leg: _Leg) -> None:
        """Reads all of it before the client sees any, so that a broken answer can be had elsewhere."""
        request = leg.job.request
        outgoing = leg.outgoing
        data = await leg.exchange.read_all(
            max_bytes=_MAX_ANSWER_BYTES, until=outgoing.by, phase=outgoing.phase
        )
        facts = read_answer(request.api, data)
        if facts.aborted or (facts.error is not None and leg.exchange.status < 300 and request.api.generates):
            error = UpstreamBroken("The worker aborted its answer.")
            raise LegFailed(Failure.SERVER_ERROR, leg.member.name, error=error)
        usage = facts.usage
        if usage is not None:
            leg.held.progress(
                generated_tokens=usage.completion_tokens,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
            )
            self._tokens.learn(request, leg.job.size, usage)
            leg.journey.usage = usage
        if request.api is Api.RESPONSES and facts.id:
            self._owners.learn(facts.id, leg.member)
        leg.journey.finish_reason = facts.finish_reasons.get(0)
        leg.held.settle_now()
        leg.job.release()
        leg.journey.committed(leg.exchange.status)
        leg.journey.finished(leg.exchange.status)
        headers = self._headers(leg, whole=True)
        await leg.responder.answer(leg.exchange.status, headers, data)

    async def _raw(self, leg: _Leg) -> None:
        """Audio, images and the like: passed on as it comes, once its first bytes are there."""
        data = await leg.exchange.read(leg.outgoing.by, leg.outgoing.phase)
        leg.job.release()
        leg.journey.committed(leg.exchange.status)
        await leg.responder.start(leg.exchange.status, self._headers(leg))
        idle_s = self._settings.timeouts.idle_s
        while data:
            leg.held.progress()
            await leg.responder.write(data)
            data = await leg.exchange.read(self._now() + idle_s, "idle")
        leg.journey.finished(leg.exchange.status)
        await leg.responder.finish()

    def _headers(self, leg: _Leg, *, streamed: bool = False, whole: bool = False) -> list[Header]:
        headers = for_client(leg.exchange.headers, streamed=streamed, whole=whole)
        headers.append((b"x-request-id", leg.job.call.id.encode()))
        if self._settings.expose or leg.job.request.trusted:
            headers.append((b"x-pointsman-worker", leg.member.name.encode()))
            prefill = leg.held.lease.prefill
            if prefill is not None:
                headers.append((b"x-pointsman-prefill-worker", prefill.worker.encode()))
            headers.append((b"x-pointsman-policy", leg.held.policy_name.encode()))
        return headers


class _Leg(msgspec.Struct, frozen=True, eq=False):
    """What the parts of one leg share."""

    job: Job
    held: Held
    responder: Responder
    journey: Journey
    member: Member
    exchange: Exchange
    outgoing: Outgoing


def _content_type(headers: Sequence[Header]) -> bytes:
    for name, value in headers:
        if name == b"content-type":
            return value.lower()
    return b""
