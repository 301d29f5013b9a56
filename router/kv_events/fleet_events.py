"""Whose events are followed, and for which index: kept true as workers, incarnations and policies change.

Separate from the listeners, which start and stop when they are told, because what has to be told follows from
four facts that change on rhythms of their own: whether a pool keeps prefixes, which incarnation a worker is,
what its base model is called, and whether its prompts ever come as token ids. They are compared with what is
followed now, whenever one of them is known to have changed and once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from router.core.prefixes import PoolPrefixes
from router.fleet import Fleet, Member
from router.kv_events.counters import KvEventCounters
from router.kv_events.feed import Feed
from router.kv_events.knowledge import Known
from router.kv_events.listeners import KvEventListeners, Publisher
from router.kv_events.locate import Locator, Place
from router.kv_events.reader import Naming
from router.kv_events.source import EventSource

log = logging.getLogger("pointsman.kv_events")

_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """What one worker is followed as.

    Attributes:
        member: the worker; one that left and came back under its name is another.
        counts_only: none of its prompts comes as token ids, so its blocks are only counted.
    """

    member: Member
    prefixes: PoolPrefixes
    incarnation: int
    model: str
    counts_only: bool

    def same(self, other: Fed | None) -> bool:
        """Whether nothing has to change for it to be the other."""
        return (
            other is not None
            and self.member is other.member
            and self.prefixes is other.prefixes
            and (self.incarnation, self.model, self.counts_only)
            == (other.incarnation, other.model, other.counts_only)
        )


class FleetEvents:
    """Compares what is followed with what should be.

    State: `_fed` by worker name; whether the operator was told that pyzmq is missing.

    Args:
        follows: whether anybody is followed at all.
        can_listen: whether there are sockets to listen with.
        tokenizes: whether prompts for a pool are made into token ids here.
    """

    def __init__(
        self,
        fleet: Fleet,
        listeners: KvEventListeners,
        locator: Locator,
        *,
        follows: bool,
        can_listen: Callable[[], bool],
        tokenizes: Callable[[str], bool],
    ) -> None:
        self._fleet = fleet
        self._listeners = listeners
        self._locator = locator
        self.follows = follows
        self._can_listen = can_listen
        self._tokenizes = tokenizes
        self._fed: dict[str, Fed] = {}
        self.deaf = False
        """Whether somebody publishes and there is nothing to listen with."""

    async def run(self) -> None:
        """Looks once a second, for ever."""
        while True:
            self.look()
            await asyncio.sleep(_PERIOD_S)

    def look(self) -> None:
        """Starts, renews and stops listeners until all are as they should be."""
        for name in [name for name in self._fed if self._fleet.member(name) is not self._fed[name].member]:
            self._stop(name)
        for member in self._fleet:
            self._look_at(member)

    def changed(self, worker: str) -> None:
        """Something happened to a worker: it may be another incarnation."""
        member = self._fleet.member(worker)
        if member is not None:
            self._look_at(member)

    def left(self, worker: str) -> None:
        """A worker leaves; its index knows it still."""
        self._stop(worker)
        self._locator.forget(worker)

    # --- what metrics ask ------------------------------------------------------------------------------

    def counters(self, worker: str) -> KvEventCounters | None:
        """What happened on a worker's stream, None when it is not followed."""
        return self._listeners.counters(worker)

    def known(self, worker: str) -> Known | None:
        """How much of a worker's blocks is known, None when it is not followed."""
        return self._listeners.known(worker)

    def place(self, worker: str) -> Place:
        """What is known of where it publishes."""
        return self._locator.place(worker)

    def counts_only(self, member: Member) -> bool:
        """Whether no prompt for a worker comes as token ids, so that its blocks can only be counted."""
        pool = member.dispatcher.pool
        prefixes = pool.chooser.prefixes
        return not (self._tokenizes(pool.rules.name) or (prefixes is not None and prefixes.sees_tokens))

    # --- the parts -------------------------------------------------------------------------------------

    def _look_at(self, member: Member) -> None:
        name, wanted = member.name, self._wanted(member)
        fed = self._fed.get(name)
        if wanted is None:
            self._stop(name)
        elif not wanted.same(fed):
            if fed is not None and fed.prefixes is not wanted.prefixes:
                self._stop(name)
            if fed is None or fed.incarnation != wanted.incarnation:
                self._locator.forget(name)
            self._start(wanted)

    def _wanted(self, member: Member) -> Fed | None:
        """As what a worker should be followed now, None when it should not."""
        prefixes = member.dispatcher.pool.chooser.prefixes
        names = member.base_models
        if not self.follows or prefixes is None or not names or member.worker.shared_address:
            return None
        model = prefixes.same_weights(names)
        return Fed(member, prefixes, member.worker.incarnation, model, self.counts_only(member))

    def _start(self, fed: Fed) -> None:
        """The index has to know the incarnation before it is followed."""
        member = fed.member
        fed.prefixes.joined(member.worker)
        self._fed[member.name] = fed
        self._listeners.watch(
            Publisher(
                worker=member.name,
                locate=lambda: self._locate(member),
                naming=Naming(fed.model),
                index=Feed(fed.prefixes, fed.incarnation),
                counts_only=fed.counts_only,
            )
        )

    def _stop(self, worker: str) -> None:
        if self._fed.pop(worker, None) is not None:
            self._listeners.unwatch(worker)

    async def _locate(self, member: Member) -> EventSource | None:
        source = await self._locator.source_of(member)
        if source is None or self._can_listen():
            return source
        if not self.deaf:
            self.deaf = True
            log.warning(
                "worker %s publishes KV events, but pyzmq is missing (the extra kv-events); "
                "until then what workers hold is judged by what was sent to them",
                member.name,
            )
        return None

    def __repr__(self) -> str:
        return f"<FleetEvents [{len(self._fed)} workers]>"
