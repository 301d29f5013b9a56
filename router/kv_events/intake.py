"""Taking batches of one worker in: in order, in slices, and never raising because of what is in them.

Separate from where batches come from, the live socket or a replay, because both bring the same ones.
"""

from __future__ import annotations

import asyncio
import logging

from router.core.kv_event import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from router.core.prefix_ledger import Fit
from router.kv_events.counters import KvEventCounters
from router.kv_events.encoding import BrokenPayload
from router.kv_events.framing import Message
from router.kv_events.knowledge import Knowledge, Learned
from router.kv_events.position import Position
from router.kv_events.reader import Batch, Reader, pieces
from router.kv_events.settings import KvEventsSettings

log = logging.getLogger("pointsman.kv_events")


class Intake:
    """What one worker's stream has brought so far.

    Attributes:
        rank: batches that name another data-parallel rank are dropped; None takes all.
    """

    def __init__(
        self, knowledge: Knowledge, reader: Reader, counters: KvEventCounters, settings: KvEventsSettings
    ) -> None:
        self.knowledge = knowledge
        self.position = Position()
        self.counters = counters
        self.rank: int | None = None
        self._reader = reader
        self._slice = settings.slice_blocks
        self._max_bytes = settings.max_message_bytes
        self._since_turn = 0

    def read(self, message: Message) -> Batch | None:
        """The batch in a message; None when it is not meant for this worker. Of one that cannot be read, or
        is too large for that, it is known that something was in it."""
        if len(message.payload) > self._max_bytes:
            return self._unread(len(message.payload))
        try:
            batch = self._reader.read(message.payload)
        except BrokenPayload:
            return Batch(None, None, broken=1)
        if self.rank is not None and batch.rank is not None and batch.rank != self.rank:
            self.counters.foreign += 1
            return None
        return batch

    async def take(self, message: Message, batch: Batch) -> None:
        """Takes in the batch that stands next."""
        counters = self.counters
        self.position.take(message, batch.ts)
        counters.batches += 1
        counters.ignored += batch.ignored
        counters.unknown += batch.unknown
        counters.broken += batch.broken
        for event in batch.events:
            await self._take_event(event)
        if batch.broken or batch.oversized:
            self.lose()

    def lose(self) -> None:
        """Events are gone for good: what is known of the worker begins anew."""
        if self.position.expected is not None:
            self.counters.lost += 1
        self.knowledge.learn(Learned.LOST)

    def _unread(self, size_bytes: int) -> Batch:
        """Stands for a batch beyond the bound. The operator hears of the first: the others are counted."""
        if self.counters.oversized == 0:
            log.warning(
                "worker %s: a batch of KV events of %d bytes is dropped, since kv_events.max_message_bytes "
                "is %d; what is known of its blocks begins anew",
                self.knowledge.worker,
                size_bytes,
                self._max_bytes,
            )
        self.counters.oversized += 1
        return Batch(None, None, oversized=True)

    async def _take_event(self, event: KvEvent) -> None:
        if isinstance(event, BlocksCleared):
            self._clear(event)
            return
        for piece in pieces(event, self._slice):
            if self.knowledge.absent:
                return
            if not isinstance(piece, BlocksCleared):
                self._since_turn += len(piece.hashes)
            self._apply(piece)
            if self._since_turn >= self._slice:
                self._since_turn = 0
                await asyncio.sleep(0)

    def _clear(self, event: BlocksCleared) -> None:
        """An engine that forgot everything is wholly known, whatever was known before."""
        self.counters.cleared += 1
        if self.knowledge.absent:
            self.knowledge.learn(Learned.LOST)
        self._apply(event)
        self.knowledge.learn(Learned.WHOLE)

    def _apply(self, event: KvEvent) -> None:
        fit = self.knowledge.apply(event)
        if fit is Fit.FULL:
            self.counters.full += 1
            self.counters.lost += 1
        elif fit is Fit.ORPHAN:
            self.counters.orphans += 1
        elif isinstance(event, BlocksStored):
            self.counters.blocks_stored += len(event.hashes)
        elif isinstance(event, BlocksRemoved):
            self.counters.blocks_removed += len(event.hashes)

    def __repr__(self) -> str:
        return f"<Intake {self.knowledge!r} {self.position!r}>"
