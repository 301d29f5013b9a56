"""Both legs of a split request at once, for engines whose prefill does not run before its decode is known.

Separate from `split`, where one follows the other: here whichever fails first ends the other, and the client
gets the answer of the decode leg.
"""

from __future__ import annotations

import asyncio
import logging

from router.admission import Job
from router.api.responder import Responder
from router.connectors import Pairing
from router.core.errors import ConnectFailed, UpstreamError
from router.core.lease import Lease, Outcome
from router.core.retry import NOT_TAKEN, Leg
from router.dispatch import Held
from router.fleet import Fleet, Member
from router.journey import Journey, Telemetry
from router.leg import Legs
from router.peers import Peers
from router.prefill_leg import PrefillLegs
from router.sending import LegFailed, Outgoing, as_failure
from router.topology import Topology

log = logging.getLogger("pointsman.split")

Failed = tuple[Leg, LegFailed]
_Leg = asyncio.Task[Failed | None]


class Together:
    """Runs pairs of legs. No state: each pair lives in two tasks that end with the call."""

    def __init__(
        self, legs: Legs, prefills: PrefillLegs, fleet: Fleet, peers: Peers, telemetry: Telemetry
    ) -> None:
        self._legs = legs
        self._prefills = prefills
        self._fleet = fleet
        self._peers = peers
        self._telemetry = telemetry

    async def run(
        self, job: Job, topology: Topology, responder: Responder, journey: Journey
    ) -> Failed | None:
        """One attempt with one pair. Returns which leg failed first, None when it was answered.

        Raises NoWorker, QueueFull when no pair has room, and whatever goes wrong after the commit.
        """
        journey.legs_at_once = True
        with await topology.decode.acquire(job.request) as held:
            journey.placed(held, topology.decode.pool)
            failed = await self._pair(job, topology, held, responder, journey)
            if failed is not None:
                self._settle(held, topology, *failed)
            return failed

    def _settle(self, held: Held, topology: Topology, leg: Leg, failure: LegFailed) -> None:
        prefill = held.lease.prefill
        if leg is Leg.PREFILL and prefill is not None:
            topology.prefill.release(prefill, failure.outcome, failure.reason)
            held.settle(Outcome.CANCELLED)
        else:
            not_taken = failure.failure in NOT_TAKEN
            failure.producer = prefill.worker if not_taken and prefill is not None else None
            held.settle(Outcome.HANDOVER if not_taken else failure.outcome, failure.reason)

    async def _pair(
        self, job: Job, topology: Topology, held: Held, responder: Responder, journey: Journey
    ) -> Failed | None:
        lease = held.lease.prefill
        member = self._fleet.member(lease.worker) if lease is not None else None
        if lease is None or member is None:
            gone = ConnectFailed("The prefill worker left just now.")
            return Leg.PREFILL, as_failure(gone, lease.worker if lease is not None else "")
        try:
            pairing = await self._peers.pairing(job, member, topology.connector)
        except UpstreamError as error:
            return Leg.PREFILL, as_failure(error, member.name)
        loop = asyncio.get_running_loop()
        # The prefill leg reads the body first: the decode leg lets go of it with its first event.
        prefill = loop.create_task(self._prefill(job, topology, lease, member, pairing, journey))
        decode = loop.create_task(self._decode(job, topology, held, pairing, responder, journey))
        try:
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done() and prefill.result() is not None and journey.first_event_at is None:
                self._cut("other_leg_failed", decode=decode)
                return prefill.result()
            failed = await decode
        except asyncio.CancelledError:
            self._cut("client_left", prefill=prefill, decode=decode)
            raise
        else:
            if failed is not None:
                self._cut("other_leg_failed", prefill=prefill)
            return failed
        finally:
            await _end(prefill, decode)

    def _cut(self, why: str, **legs: _Leg) -> None:
        """Counts the legs that are ended before they have come to their own end."""
        for name, leg in legs.items():
            if not leg.done() or leg.cancelled():
                self._telemetry.metrics.leg_cancelled(name, why)

    async def _prefill(
        self, job: Job, topology: Topology, lease: Lease, member: Member, pairing: Pairing, journey: Journey
    ) -> Failed | None:
        try:
            streamed = job.request.stream
            due = topology.deadlines.prefill_by(topology.now(), job.answer_by, streamed=streamed)
            handle = await self._prefills.run(job, topology.connector, member, pairing, journey, due)
        except (LegFailed, UpstreamError) as error:
            return Leg.PREFILL, as_failure(error, member.name)
        topology.prefill.progress(lease, 1, handle.prompt_tokens, handle.cached_tokens)
        return None

    async def _decode(
        self,
        job: Job,
        topology: Topology,
        held: Held,
        pairing: Pairing,
        responder: Responder,
        journey: Journey,
    ) -> Failed | None:
        leg = topology.connector.decode_leg(job.held.data, pairing, None)
        due = topology.deadlines.answer_by(topology.now(), job.answer_by, streamed=job.request.stream)
        outgoing = Outgoing(leg.body, due.at, due.wait.value, leg.headers)
        try:
            await self._legs.run(job, held, responder, journey, outgoing)
        except (LegFailed, UpstreamError) as error:
            if journey.first_event_at is not None:
                raise
            return Leg.DECODE, as_failure(error, held.lease.worker)
        return None


async def _end(*tasks: _Leg) -> None:
    """Cancels what still runs and waits until its sockets are closed.

    What the decode leg raised reaches the client; a bug in the leg beside it would reach nobody.
    """
    for task in tasks:
        task.cancel()
    prefill, *_ = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(prefill, Exception):
        log.error("a prefill leg met a bug in the router", exc_info=prefill)
