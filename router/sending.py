"""Sending one leg of a request to a worker, and reading refusals.

Separate from what is done with the answer: a prefill leg is read whole and kept, any other is relayed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import msgspec

from router.admission import Job
from router.api.headers import Header, for_client, for_rank, for_worker
from router.core.errors import RouterError, UpstreamBroken, UpstreamError
from router.core.lease import Outcome
from router.core.retry import OF_A_HANDLE, OUTCOMES, Failure, failure_of_error, failure_of_status
from router.dispatch.dispatcher import outcome_of
from router.fleet import Member
from router.journey import Journey
from router.settings.timeouts import TimeoutSettings
from router.upstream.client import Upstream, WireRequest
from router.upstream.exchange import Exchange

_LAST_STATUS = 599
_MAX_REFUSAL_BYTES = 1024 * 1024
_RANK_REFUSED = re.compile(rb"(?:data_parallel|routed_dp)_rank\W+\d+ (?:is )?out of range")
_TOO_LONG_MARKS = (b"maximum context length", b"longer than the model's context length")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What an engine said, to be relayed as it is."""

    status: int
    headers: Sequence[Header]
    body: bytes


class LegFailed(Exception):
    """A leg failed before commit: another worker may be tried.

    Attributes:
        failure: the kind, which decides whether that may be.
        outcome: what it says about the worker.
        answer: the engine's own words, when it had any.
        error: ours, when it had none.
        producer: who had prefilled for it, when the KV did not come over: it may be the one to avoid.
    """

    def __init__(
        self,
        failure: Failure,
        worker: str,
        *,
        answer: EngineAnswer | None = None,
        error: RouterError | None = None,
    ) -> None:
        reason = error.message if error else f"answered {answer.status}" if answer else failure.value
        super().__init__(reason)
        self.failure = failure
        self.worker = worker
        told = error is not None and failure not in OF_A_HANDLE
        self.outcome: Outcome = outcome_of(error) if told else OUTCOMES[failure]
        self.answer = answer
        self.error = error
        self.producer: str | None = None
        self.reason = reason


def leg_failed(error: UpstreamError, worker: str) -> LegFailed:
    """The failed leg that an error of the exchange amounts to."""
    return LegFailed(failure_of_error(error), worker, error=error)


def as_failure(error: LegFailed | UpstreamError, worker: str) -> LegFailed:
    """The same, whichever of the two it was."""
    return error if isinstance(error, LegFailed) else leg_failed(error, worker)


@dataclass(frozen=True, slots=True)
class LegSettings:
    """What legs are run with.

    Attributes:
        pass_client_key: without a worker key, the client's own goes through.
        expose: routing headers for every client, not only trusted ones.
    """

    timeouts: TimeoutSettings
    pass_client_key: bool
    expose: bool


class Outgoing(msgspec.Struct, frozen=True):
    """What one leg sends.

    Attributes:
        body: the client's own bytes, or those of a leg that differs from them.
        headers: that come on top of the client's.
        by: absolute time (s) of the first data event of a stream, and of the whole answer otherwise.
        phase: what that deadline is called when it runs out.
        once, sent_by, on_sending: see `WireRequest`.
    """

    body: bytes | AsyncIterator[bytes]
    by: float
    phase: str
    headers: Sequence[Header] = ()
    once: bool = False
    sent_by: float | None = None
    on_sending: Callable[[], None] | None = None


def own(job: Job) -> Outgoing:
    """The request as the client sent it."""
    return Outgoing(job.payload, job.answer_by, "first_event" if job.request.stream else "total")


class Sender:
    """Opens exchanges with workers in the name of a client. No state of its own."""

    def __init__(self, upstream: Upstream, settings: LegSettings) -> None:
        self._upstream = upstream
        self._settings = settings

    async def open(self, job: Job, member: Member, journey: Journey, outgoing: Outgoing) -> Exchange:
        """Sends a leg and waits for the head of an answer that is no refusal.

        Raises:
            LegFailed: the engine refused it.
            UpstreamError: see `Upstream.open`.
        """
        wire = WireRequest(
            job.call.method,
            job.call.target,
            self._headers(job, member, outgoing),
            outgoing.body,
            job.content_length,
            once=outgoing.once,
            sent_by=outgoing.sent_by,
            on_sending=outgoing.on_sending,
        )
        try:
            exchange = await self._upstream.open(
                member.origin, wire, headers_by=outgoing.by, phase=outgoing.phase
            )
        except UpstreamError:
            journey.responded(member.name, None)
            raise
        journey.responded(member.name, exchange.status)
        if exchange.status >= 400:
            with exchange:
                await self._refused(job, member, exchange, outgoing)
        return exchange

    def _headers(self, job: Job, member: Member, outgoing: Outgoing) -> list[Header]:
        """Those of the client that a worker may have, and those of the leg."""
        attempt = job.request.attempt
        request_id = f"{job.call.id}-r{attempt}" if attempt else job.call.id
        headers = for_worker(
            job.call.headers,
            request_id=request_id.encode(),
            key=member.key,
            pass_key=self._settings.pass_client_key,
            trusted=job.request.trusted,
            plain=job.request.api.generates,
        )
        headers += outgoing.headers
        return headers if member.dp_rank is None else for_rank(headers, member.dp_rank)

    async def _refused(self, job: Job, member: Member, exchange: Exchange, outgoing: Outgoing) -> None:
        """An engine's own error status: which kind it is decides whether another worker may do better."""
        if exchange.status > _LAST_STATUS:
            raise UpstreamBroken(f"The worker answered with {exchange.status}, which is no HTTP status.")
        body = await exchange.read_all(max_bytes=_MAX_REFUSAL_BYTES, until=outgoing.by, phase=outgoing.phase)
        answer = EngineAnswer(exchange.status, for_client(exchange.headers, whole=True), body)
        failure = failure_of_status(exchange.status) or Failure.SERVER_ERROR
        if exchange.status in (401, 403) and member.key is not None:
            failure = Failure.KEY_REFUSED
        elif exchange.status == 404 and _says_unknown(body, job.request.model):
            failure = Failure.MODEL_UNKNOWN
        elif exchange.status == 400 and any(mark in body for mark in _TOO_LONG_MARKS):
            failure = Failure.TOO_LONG
        elif exchange.status == 400 and member.dp_rank is not None and _RANK_REFUSED.search(body):
            # The number is this router's own: more ranks are configured than the engine has.
            failure = Failure.RANK_UNKNOWN
        raise LegFailed(failure, member.name, answer=answer)


def _says_unknown(body: bytes, model: str) -> bool:
    """Whether a 404, worded as by vLLM, is about the very model that the request was placed by. A form may
    name a second one to the engine, and the worker is not to lose the first for that."""
    return b"`%b` does not exist" % msgspec.json.encode(model)[1:-1] in body
