"""The life of one request: admit, place, send, relay, and try elsewhere while nothing is committed.

Readable from top to bottom. Everything that decides is elsewhere: placement in the Pool, what may be tried
again in `core.retry`, what a stream means in `core.stream`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from router.admission import Admission, Job
from router.api.errors import error_body, error_headers
from router.api.headers import Header
from router.api.intake import HeldBody
from router.api.responder import Responder
from router.call import Call
from router.core.budget import Budget
from router.core.errors import (
    ClientGone,
    InternalError,
    NoWorker,
    Poisonous,
    QueueFull,
    RouterError,
    UpstreamError,
)
from router.core.lease import Lease
from router.core.poison import PoisonGuard
from router.core.request import Request
from router.core.retry import Failure, Tries
from router.core.stream_error import error_event
from router.early import EarlyKeepAlive
from router.journey import Journey, Telemetry
from router.leg import Legs
from router.retries import Retries
from router.sending import LegFailed, leg_failed
from router.split import Splits

log = logging.getLogger("pointsman.proxy")

_SILENT = nullcontext()
"""Instead of an early keep-alive."""

_KEY_REFUSED = "A worker refused the router's own key; this is for the operator of the router to mend."


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all requests share.

    Attributes:
        bodies: bytes of bodies held in memory.
        poison: bodies that kill workers; None: no guard.
        early_keep_alive_s: silence before the first event after which a comment commits; None: never.
    """

    bodies: Budget
    poison: PoisonGuard | None = None
    early_keep_alive_s: float | None = None


class Proxy:
    """Serves calls. It has no state of its own: each call lives in one coroutine."""

    def __init__(
        self,
        admission: Admission,
        legs: Legs,
        splits: Splits,
        telemetry: Telemetry,
        bounds: Bounds,
        retries: Retries,
    ) -> None:
        self._admission = admission
        self._legs = legs
        self._splits = splits
        self._telemetry = telemetry
        self._bounds = bounds
        self._retries = retries

    async def serve(self, call: Call, responder: Responder) -> None:
        """One call from its head to its last byte. Errors become answers; only CancelledError comes out."""
        journey = Journey(call, self._telemetry)
        try:
            with HeldBody(self._bounds.bodies) as body:
                job = await self._admission.admit(call, body)
                self._refuse_poison(job)
                with self._early(job, responder):
                    await self._answer(job, responder, journey)
        except asyncio.CancelledError:
            journey.cancelled()
            raise
        except ClientGone:
            journey.cancelled()
        except RouterError as error:
            await self._refuse(call, responder, journey, error)
        except Exception:
            # The request boundary: a bug that one request meets must not take anything else with it.
            log.exception("request %s met a bug in the router", call.id)
            bug = InternalError("The router failed to serve this request; please report it.")
            await self._refuse(call, responder, journey, bug)
        finally:
            journey.close()

    def _early(self, job: Job, responder: Responder) -> AbstractContextManager[object]:
        period_s = self._bounds.early_keep_alive_s
        if period_s is None or not (job.request.stream and job.request.api.generates):
            return _SILENT
        job.early = EarlyKeepAlive(
            responder, job.request.api, job.call.id.encode(), period_s, self._telemetry.now
        )
        return job.early

    def _refuse_poison(self, job: Job) -> None:
        poison = self._bounds.poison
        if poison is not None and poison.refuses(job.held.data, self._telemetry.now()):
            raise Poisonous(
                "Two workers were lost while they served this very request; it is not sent again."
            )

    async def _answer(self, job: Job, responder: Responder, journey: Journey) -> None:
        """Split where its model is served so, whole otherwise."""
        topology = job.topology
        try:
            if topology is None or not await self._splits.serve(job, topology, responder, journey):
                await self._attempts(job, responder, journey)
        except LegFailed as failed:
            journey.outcome = failed.outcome
            await self._give_up(job, responder, journey, failed)

    async def _attempts(self, job: Job, responder: Responder, journey: Journey) -> None:
        """Places and sends, elsewhere again as long as the failure and the budgets allow it.

        Raises LegFailed when that is over.
        """
        failed = await self._attempt(job, responder, journey, None)
        if failed is None:
            return
        tries = Tries(allowed=self._retries.allowed(job))
        before: LegFailed | None = None
        taken = 0
        try:
            while failed is not None and failed is not before:
                before = failed
                elsewhere = self._elsewhere(job, failed)
                if elsewhere is None or not tries.another(failed.failure) or not self._retries.take():
                    break
                taken += 1
                journey.retried(failed.failure)
                job.request = elsewhere
                failed = await self._attempt(job, responder, journey, before)
        finally:
            self._retries.give(taken)
        if failed is not None:
            raise failed

    async def _attempt(
        self, job: Job, responder: Responder, journey: Journey, before: LegFailed | None
    ) -> LegFailed | None:
        """One placement and one leg. Returns its failure when that left nothing committed, and the failure
        `before` it when nobody else had room."""
        journey.submitted(job.request)
        try:
            held = await job.dispatcher.acquire(job.request)
        except (NoWorker, QueueFull):
            if before is None:
                raise
            return before  # the client learns what went wrong, not that there was no room
        with held:
            journey.placed(held, job.dispatcher.pool)
            try:
                await self._legs.run(job, held, responder, journey)
            except LegFailed as failure:
                failed = failure
            except UpstreamError as error:
                if journey.first_event_at is not None:
                    raise
                failed = leg_failed(error, held.lease.worker)
                self._suspect(job, held.lease, failed)
            else:
                return None
            held.settle(failed.outcome, failed.reason)
        journey.outcome = failed.outcome
        return failed

    def _suspect(self, job: Job, lease: Lease, failed: LegFailed) -> None:
        if self._bounds.poison is not None and failed.failure is Failure.NO_ANSWER:
            now = self._telemetry.now()
            self._bounds.poison.broke(job.held.data, lease.worker, lease.incarnation, now)

    def _elsewhere(self, job: Job, failed: LegFailed) -> Request | None:
        """The same request for another worker; None when there is none that could do better."""
        pool = job.dispatcher.pool
        elsewhere = self._retries.elsewhere(job.request, failed, pool.roster)
        return elsewhere if pool.candidates(elsewhere) else None

    async def _give_up(self, job: Job, responder: Responder, journey: Journey, failed: LegFailed) -> None:
        """The last failure goes to the client: the engine's own words when there are any."""
        if failed.failure is Failure.KEY_REFUSED:
            log.error("worker %s refuses the worker key (--api-key)", failed.worker)
            raise UpstreamError(_KEY_REFUSED, sent=True)
        if failed.answer is None:
            raise failed.error or InternalError("A leg failed without a reason.")
        if responder.started:
            raise UpstreamError(f"A worker refused the request with {failed.answer.status}.", sent=True)
        headers: list[Header] = [*failed.answer.headers, (b"x-request-id", job.call.id.encode())]
        if failed.failure is Failure.BUSY and all(name != b"retry-after" for name, _ in headers):
            headers.append((b"retry-after", b"1"))
        journey.finished(failed.answer.status)
        await responder.answer(failed.answer.status, headers, failed.answer.body)

    async def _refuse(self, call: Call, responder: Responder, journey: Journey, error: RouterError) -> None:
        """Answers with an error, or, when an answer has begun, ends it so that the client notices."""
        journey.failed(error, committed=responder.started)
        if error.status >= 500:
            at = {"worker": journey.worker or None, "model": journey.model or None}
            log.warning("request %s failed: %s (%s)", call.id, error.message, error.code, extra=at)
        if responder.started:
            # Without an engine's event on its way the client is at an event boundary, and can be told.
            if journey.first_event_at is None:
                await responder.write(error_event(call.route.api, error))
            responder.abort()
            return
        headers = [*error_headers(error), (b"x-request-id", call.id.encode())]
        await responder.answer(error.status, headers, error_body(error, call.route.error_api))
