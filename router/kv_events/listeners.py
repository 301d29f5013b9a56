"""The listeners of a fleet: one supervised follower for each worker whose events are published.

Separate from following because it is about membership: workers join and leave, get a new life, and may not
say at first where they publish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.core.trust import TrustSignal
from router.kv_events.counters import KvEventCounters
from router.kv_events.follower import Follower
from router.kv_events.intake import Intake
from router.kv_events.knowledge import Followed, Knowledge, Known
from router.kv_events.reader import Naming, Reader
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Wire
from router.supervisor import Supervisor

log = logging.getLogger("pointsman.kv_events")

Locate = Callable[[], Awaitable[EventSource | None]]
"""Finds out where a worker publishes; None while that is not known."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """One worker as the listeners see it.

    Attributes:
        worker: its name in the index.
        locate: finds out where it publishes.
        naming: how clients name what its events speak of.
        index: of its pool; it has to know the worker before it is watched.
        counts_only: prompts for it never come as token ids, so its blocks are only counted.
    """

    worker: str
    locate: Locate
    naming: Naming
    index: Followed
    counts_only: bool = False


class KvEventListeners:
    """Starts and stops followers, and keeps what they count.

    State: `_watched` by worker name. Counters outlive a renewal and end with the worker.
    """

    def __init__(
        self, wire: Wire, supervisor: Supervisor, settings: KvEventsSettings, now: Callable[[], float]
    ) -> None:
        self._wire = wire
        self._supervisor = supervisor
        self._settings = settings
        self._now = now
        self._watched: dict[str, tuple[Publisher, Intake]] = {}

    def watch(self, publisher: Publisher) -> None:
        """A worker joined. One that is watched already is watched anew, as it is now."""
        known = self._watched.get(publisher.worker)
        counters = KvEventCounters() if known is None else known[1].counters
        intake = self._intake(publisher, counters)
        self._watched[publisher.worker] = publisher, intake
        self._supervisor.start(_task(publisher.worker), lambda: self._follow(publisher, intake))

    def unwatch(self, worker: str) -> None:
        """A worker leaves. To be called while its index still knows it; one not watched is ignored."""
        watched = self._watched.pop(worker, None)
        if watched is not None:
            self._supervisor.stop(_task(worker))
            watched[0].index.stream(worker, TrustSignal.SILENT)

    def counters(self, worker: str) -> KvEventCounters | None:
        """What happened on its stream, None when it is not watched."""
        watched = self._watched.get(worker)
        return None if watched is None else watched[1].counters

    def known(self, worker: str) -> Known | None:
        """How much of its blocks is known, None when it is not watched."""
        watched = self._watched.get(worker)
        return None if watched is None else watched[1].knowledge.known

    def _intake(self, publisher: Publisher, counters: KvEventCounters) -> Intake:
        knowledge = Knowledge(publisher.index, publisher.worker, counts_only=publisher.counts_only)
        return Intake(knowledge, Reader(publisher.naming), counters, self._settings)

    async def _follow(self, publisher: Publisher, intake: Intake) -> None:
        source = await self._located(publisher)
        log.info("worker %s: its KV events are followed at %s", publisher.worker, source.endpoint)
        await Follower(intake, self._wire, source, self._settings, self._now).run()

    async def _located(self, publisher: Publisher) -> EventSource:
        while True:
            source = await publisher.locate()
            if source is not None:
                return source
            await asyncio.sleep(self._settings.look_s)

    def __repr__(self) -> str:
        return f"<KvEventListeners [{len(self._watched)} workers]>"


def _task(worker: str) -> str:
    return f"kv events {worker}"
