"""The life of a split request: prefilled at one worker, decoded at another.

Readable from top to bottom: `serve` decides and tries again, `_in_turn` sends one leg after the other.
Nothing here decides by itself: what is split is `core.split_rule`, who gets it are the pools, what a failure
leads to is `core.retry`. Legs that run at the same time are in `together`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import structs

from router.admission import Job
from router.api.responder import Responder
from router.connectors import Handle, Pairing
from router.core.deadlines import Due, HandoverTimes, Wait
from router.core.errors import (
    DeadlineExceeded,
    NoWorker,
    QueueFull,
    RouterError,
    UpstreamBroken,
    UpstreamError,
)
from router.core.handover import Handover
from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.retry import NOT_TAKEN, Again, Failure, Leg, SplitTries
from router.core.split_rule import Refusal, Where, Whole
from router.dispatch import Held
from router.fleet import Fleet, Member
from router.journey import Journey
from router.leg import Legs
from router.peers import Peers
from router.prefill_leg import PrefilledMeanwhile, PrefillLegs
from router.releases import Abandoned, Releases
from router.retries import Retries
from router.sending import LegFailed, Outgoing, as_failure
from router.together import Failed, Together
from router.topology import Topology


@dataclass(slots=True, eq=False)
class _Prefilled:
    """What a prefill leg has left behind.

    Attributes:
        due: until when a decode worker must be found.
        shown: a decode engine may have seen the handle. Then it is never used again.
    """

    topology: Topology
    handover: Handover
    handle: Handle
    pairing: Pairing
    times: HandoverTimes
    due: Due
    shown: bool = False

    def show(self) -> None:
        self.shown = True


@dataclass(slots=True, eq=False)
class _Course:
    """What the attempts of one request share.

    Attributes:
        taken: tries of the budget that all requests share, to be given back.
        handle_missing: prefills are answered well and bring no handle, again and again.
    """

    job: Job
    topology: Topology
    responder: Responder
    journey: Journey
    tries: SplitTries
    taken: int = 0
    handle_missing: bool = False


@dataclass(frozen=True, slots=True)
class SplitParts:
    """What splitting is done with."""

    legs: Legs
    prefills: PrefillLegs
    together: Together
    fleet: Fleet
    peers: Peers
    releases: Releases
    retries: Retries


class Splits:
    """Serves split requests. No state of its own: each lives in one coroutine."""

    def __init__(self, parts: SplitParts) -> None:
        self._legs = parts.legs
        self._prefills = parts.prefills
        self._together = parts.together
        self._fleet = parts.fleet
        self._peers = parts.peers
        self._releases = parts.releases
        self._retries = parts.retries

    async def serve(self, job: Job, topology: Topology, responder: Responder, journey: Journey) -> bool:
        """Splits a request, again as long as the failure and the budgets allow it.

        Returns:
            Whether it was answered. Otherwise one worker is to serve it whole; the job says where.

        Raises:
            LegFailed: it failed for good, before anything was committed.
            RouterError: it cannot be placed, or it failed after the commit.
        """
        tries = SplitTries(allowed=self._retries.allowed(job))
        journey.model = job.request.model
        failed: LegFailed | None = None
        course = _Course(job, topology, responder, journey, tries)
        try:
            while not self._goes_whole(course, failed):
                try:
                    result = await self._once(course)
                except (NoWorker, QueueFull):
                    if failed is None:
                        raise
                    raise failed from None  # the client learns what went wrong, not that there was no room
                if result is None:
                    return True
                leg, failed = result
                journey.leg_failed(leg.value, failed.failure)
                self._prepare(course, leg, failed)
        finally:
            self._retries.give(course.taken)
        return False

    def _take(self, course: _Course) -> bool:
        """Whether there may be one more try."""
        taken = self._retries.take()
        course.taken += taken
        return taken

    def _goes_whole(self, course: _Course, failed: LegFailed | None) -> bool:
        """Whether it is served whole from here on. Raises when nobody may do that."""
        job, journey = course.job, course.journey
        decision = course.topology.decide(
            job.request, traits=job.traits, handle_missing=course.handle_missing
        )
        if decision is None:
            return False
        if isinstance(decision, Refusal):
            journey.split_refused(decision.why)
            raise failed or decision.error()
        _serve_whole(job, course.topology, decision)
        if failed is not None and not job.dispatcher.pool.candidates(job.request):
            raise failed  # the client learns what went wrong, not that nobody is left to try
        journey.unsplit(decision.why)
        return True

    def _prepare(self, course: _Course, leg: Leg, failed: LegFailed) -> None:
        """Makes ready for the next try. Raises the failure when there is none."""
        job, topology, failure = course.job, course.topology, failed.failure
        pool = topology.prefill.pool if leg is Leg.PREFILL else topology.decode.pool
        elsewhere = self._retries.elsewhere(job.request, failed, pool.roster)
        others = topology.splitting.others_for(elsewhere, leg)
        again = course.tries.after(leg, failure)
        if topology.now() >= job.answer_by or (failure is Failure.TOO_LONG and not others):
            raise failed
        if failure is Failure.NO_HANDLE and (again is Again.GIVE_UP or not others):
            course.handle_missing = True  # nobody has one for it: that is the way of these engines
        elif again is Again.GIVE_UP or not self._take(course):
            raise failed
        course.journey.tried_again(failure, prefilled=again is Again.NEW_PREFILL)
        if failed.producer is not None:
            self._peers.forget(failed.producer)  # it may be another process by now, unnoticed so far
        job.request = topology.splitting.again(
            job.request, elsewhere, others=others or leg is Leg.PREFILL, producer=failed.producer
        )

    async def _once(self, course: _Course) -> Failed | None:
        """One course. Returns which leg failed before commit, None when the request was answered."""
        job, topology, journey = course.job, course.topology, course.journey
        job.request = structs.replace(job.request, split=True)
        journey.submitted(job.request)
        if not job.request.attempt:
            journey.split()
        if topology.connector.concurrent:
            return await self._together.run(job, topology, course.responder, journey)
        return await self._in_turn(course)

    # --- one leg after the other -----------------------------------------------------------------------

    async def _in_turn(self, course: _Course) -> Failed | None:
        topology, journey = course.topology, course.journey
        with await topology.prefill.acquire(course.job.request) as held:
            journey.placed(held, topology.prefill.pool)
            try:
                prefilled = await self._prefill(course, held)
            except (LegFailed, UpstreamError) as error:
                failed = as_failure(error, held.lease.worker)
                held.settle(failed.outcome, failed.reason)
                return Leg.PREFILL, failed
            held.settle(Outcome.OK)
            journey.prefilled()
            try:
                return await self._decode(course, prefilled)
            finally:
                self._abandon(prefilled)

    async def _prefill(self, course: _Course, held: Held) -> _Prefilled:
        job, topology = course.job, course.topology
        lease = held.lease
        member = self._fleet.reach(lease.worker)
        pairing = await self._peers.pairing(job, member, topology.connector)
        due = topology.deadlines.prefill_by(topology.now(), job.answer_by, streamed=job.request.stream)
        try:
            handle = await self._prefills.run(job, topology.connector, member, pairing, course.journey, due)
        except PrefilledMeanwhile as late:
            self._abandon(_prefilled(course, held, member, late.handle, pairing))
            raise
        except LegFailed as error:
            if error.failure is Failure.NO_HANDLE:
                _strand(topology, lease, topology.deadlines.handover(topology.now()))
            raise
        return _prefilled(course, held, member, handle, pairing)

    def _abandon(self, prefilled: _Prefilled) -> None:
        """Nobody will show the handle to a decode engine any more."""
        kept = prefilled.times.held_until < math.inf and not _reborn(prefilled)
        if kept and not prefilled.shown:
            self._releases.abandon(_abandoned(prefilled))

    async def _decode(self, course: _Course, prefilled: _Prefilled) -> Failed | None:
        """The decode leg, at another worker when the first took no connection."""
        topology, journey = course.topology, course.journey
        request = _decode_request(course.job.request, prefilled)
        failed: LegFailed | None = None
        while True:
            try:
                held = await topology.decode.acquire(request)
            except (NoWorker, QueueFull, DeadlineExceeded) as error:
                return Leg.DECODE, _undelivered(prefilled, journey, failed, error)
            with held:
                gone = _gone(prefilled)
                if gone is not None:
                    held.hand_back(Outcome.CANCELLED)
                    return Leg.DECODE, _undelivered(prefilled, journey, failed, gone)
                journey.placed(held, topology.decode.pool)
                failed = await self._decode_leg(course, prefilled, held)
                if failed is None:
                    return None
                if prefilled.shown or failed.failure is not Failure.NEVER_SENT:
                    self._settle_failed(held, failed, prefilled)
                    return Leg.DECODE, failed
                held.hand_back(failed.outcome, failed.reason)
            again = course.tries.after(Leg.DECODE, Failure.NEVER_SENT)
            if again is Again.GIVE_UP or not self._take(course):
                return Leg.DECODE, failed
            journey.returned()
            avoid = request.avoid | {failed.worker}
            request = structs.replace(request, avoid=avoid, attempt=request.attempt + 1)

    async def _decode_leg(self, course: _Course, prefilled: _Prefilled, held: Held) -> LegFailed | None:
        job, topology, journey = course.job, course.topology, course.journey
        leg = topology.connector.decode_leg(job.held.data, prefilled.pairing, prefilled.handle)
        due = topology.deadlines.answer_by(topology.now(), job.answer_by, streamed=job.request.stream)
        sent_by = prefilled.times.dispatch_by if prefilled.times.dispatch_by < math.inf else None
        outgoing = Outgoing(
            leg.body,
            due.at,
            due.wait.value,
            leg.headers,
            once=True,
            sent_by=sent_by,
            on_sending=prefilled.show,
        )
        try:
            await self._legs.run(job, held, course.responder, journey, outgoing)
        except (LegFailed, UpstreamError) as error:
            if journey.first_event_at is not None:
                raise
            return as_failure(error, held.lease.worker)
        return None

    def _settle_failed(self, held: Held, failed: LegFailed, prefilled: _Prefilled) -> None:
        """The handle was shown and its KV not read, as far as anybody knows: it may stay at the producer
        until the lease there ends. So it does when a key was refused, before anybody read the request."""
        taken = failed.failure not in NOT_TAKEN or not prefilled.shown
        if not taken:
            failed.producer = prefilled.handover.producer
        held.settle(failed.outcome if taken else Outcome.HANDOVER, failed.reason)
        if prefilled.shown and (not taken or failed.failure is Failure.KEY_REFUSED):
            _strand(prefilled.topology, prefilled.handover.prefill, prefilled.times)


def _prefilled(course: _Course, held: Held, member: Member, handle: Handle, pairing: Pairing) -> _Prefilled:
    """The prefill leg has just answered."""
    job, topology = course.job, course.topology
    ready = topology.now()
    times = topology.deadlines.handover(ready)
    held.progress(generated_tokens=1, prompt_tokens=handle.prompt_tokens, cached_tokens=handle.cached_tokens)
    due = topology.deadlines.transfer_by(times, job.answer_by, streamed=job.request.stream)
    handover = Handover(held.lease, member.worker.revision, ready, times.overdue, due.at)
    return _Prefilled(topology, handover, handle, pairing, times, due)


def _reborn(prefilled: _Prefilled) -> bool:
    """Whether the producer is another process than the one that holds the KV."""
    lease = prefilled.handover.prefill
    worker = prefilled.topology.prefill.pool.roster.workers.get(lease.worker)
    return worker is not None and worker.incarnation != lease.incarnation


def _gone(prefilled: _Prefilled) -> RouterError | None:
    """Why the KV may not be there any more; None while it is."""
    if _reborn(prefilled):
        return UpstreamBroken("The prefill worker restarted, and the KV that it held is lost.")
    late = prefilled.topology.now() >= prefilled.due.at
    return DeadlineExceeded("It is too late.", phase=prefilled.due.wait.value, sent=False) if late else None


def _undelivered(
    prefilled: _Prefilled, journey: Journey, failed: LegFailed | None, error: RouterError
) -> LegFailed:
    """No decode worker gets the KV, after one had `failed` or none. Raises when the request's own time is
    over: then there is none left for another prefill."""
    if isinstance(error, DeadlineExceeded):
        phase = prefilled.due.wait.value
        message = f"No decode worker had room before the deadline of the phase '{phase}' ran out."
        own = prefilled.due.wait is not Wait.TRANSFER
        error = DeadlineExceeded(message, phase=phase, sent=own)
        if own:
            raise error
        journey.pool_expired()
    return failed or LegFailed(Failure.HANDLE_EXPIRED, "", error=error)


def _strand(topology: Topology, lease: Lease, times: HandoverTimes) -> None:
    """Nobody will fetch this KV, and nobody can be told so."""
    if times.held_until < math.inf:
        budget = topology.partners.budget
        budget.strand(lease.worker, lease.incarnation, lease.prompt_tokens, times.held_until)


def _decode_request(request: Request, prefilled: _Prefilled) -> Request:
    """The same request as the decode pool sees it: its prompt is done, and counted by the engine."""
    tokens = prefilled.handle.prompt_tokens
    return structs.replace(
        request,
        handover=prefilled.handover,
        prompt_tokens=request.prompt_tokens if tokens is None else tokens,
        body_bytes=0,  # they are held until the answer begins, whether it waits here or not
    )


def _abandoned(prefilled: _Prefilled) -> Abandoned:
    lease = prefilled.handover.prefill
    return Abandoned(
        topology=prefilled.topology,
        pairing=prefilled.pairing,
        handle=prefilled.handle,
        worker=lease.worker,
        incarnation=lease.incarnation,
        tokens=lease.prompt_tokens,
        revision=prefilled.handover.revision,
        until=prefilled.times.held_until,
    )


def _serve_whole(job: Job, topology: Topology, decision: Whole) -> None:
    """Puts a request that is not split where one worker serves all of it."""
    both = decision.where is Where.BOTH_CAPABLE and job.request.pinned is None
    job.request = structs.replace(job.request, split=False, both=both)
    job.dispatcher = topology.pool_for(decision.where)
