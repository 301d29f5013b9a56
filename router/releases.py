"""Hand-overs that nobody wants any more: their producers are told to let go of the KV.

A client left while its request waited for a decode worker, or none had room in time. No engine has a call to
free a handle, but a decode engine that is asked with it and refuses tells the producer. Separate from the
life of the request, which is over by then; bounded in number and rate, since a crowd that leaves at once must
not become load for those who stay.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from router.connectors import Handle, Pairing
from router.core.errors import RouterError
from router.core.prefill_budget import Strand
from router.fleet import Fleet, Member
from router.telemetry.metrics import Metrics
from router.topology import Topology
from router.upstream.client import Upstream, WireRequest

log = logging.getLogger("pointsman.releases")

_MAX_WAITING = 1024
_TOTAL_S = 5.0
_MAX_ANSWER_BYTES = 64 * 1024
WORKERS = 4
"""Releases under way at once: one that hangs must not hold up the others until their leases have ended."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """KV at a producer that no decode engine has been shown the handle of.

    Attributes:
        worker, incarnation: the producer.
        until: when it lets go by itself (s).
    """

    topology: Topology
    pairing: Pairing
    handle: Handle
    worker: str
    incarnation: int
    tokens: int
    revision: str
    until: float


class Releases:
    """A queue of abandoned hand-overs, worked off by supervised tasks that run `work`.

    Until its producer was told, what is abandoned counts against the producer's budget.
    """

    def __init__(self, fleet: Fleet, upstream: Upstream, metrics: Metrics, *, per_s: float) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._metrics = metrics
        self._pause_s = WORKERS / per_s
        self._queue: asyncio.Queue[tuple[Abandoned, Strand]] = asyncio.Queue(_MAX_WAITING)

    def abandon(self, abandoned: Abandoned) -> None:
        """Takes note of it; never waits. What does not fit into the queue stays until its lease ends."""
        budget = abandoned.topology.partners.budget
        strand = budget.strand(abandoned.worker, abandoned.incarnation, abandoned.tokens, abandoned.until)
        try:
            self._queue.put_nowait((abandoned, strand))
        except asyncio.QueueFull:
            self._metrics.released("stranded")

    async def work(self) -> None:
        """Releases one after the other, for ever."""
        while True:
            abandoned, strand = await self._queue.get()
            outcome = await self._release(abandoned)
            self._metrics.released(outcome)
            if outcome != "stranded":
                budget = abandoned.topology.partners.budget
                budget.recover(strand)
                abandoned.topology.prefill.wake()
            await asyncio.sleep(self._pause_s)

    async def _release(self, abandoned: Abandoned) -> str:
        topology = abandoned.topology
        leg = topology.connector.release_leg(abandoned.pairing, abandoned.handle)
        member = self._decode_member(abandoned)
        if leg is None or member is None or topology.now() >= abandoned.until:
            return "stranded"
        headers = [(b"content-type", b"application/json"), *leg.headers]
        if member.key is not None:
            headers.append((b"authorization", b"Bearer " + member.key))
        request = WireRequest(b"POST", leg.target or b"/v1/completions", headers, leg.body)
        by = topology.now() + _TOTAL_S
        try:
            with await self._upstream.open(member.origin, request, headers_by=by) as exchange:
                if exchange.status >= 400:
                    await exchange.read_all(max_bytes=_MAX_ANSWER_BYTES, until=by)
                    return "released"
                # It took the request after all: its first bytes prove the transfer, and closing ends it.
                await exchange.read(by)
                return "dropped"
        except RouterError as error:
            log.warning(
                "worker %s keeps abandoned KV until its lease ends: %s", abandoned.worker, error.message
            )
            return "stranded"

    def _decode_member(self, abandoned: Abandoned) -> Member | None:
        """Any decode worker that understands this KV; the one with the least to do."""
        roster = abandoned.topology.decode.pool.roster
        workers = roster.of_revision(abandoned.pairing.model, abandoned.revision)
        if not workers:
            return None
        return self._fleet.member(min(workers, key=lambda worker: worker.in_flight).name)

    def __repr__(self) -> str:
        return f"<Releases [{self._queue.qsize()} waiting]>"
