"""How many connections to one worker may be under way at once.

A crowd that arrives together would otherwise dial all at once: the worker's backlog overflows, and this loop
is kept so busy with dialling that it notices too late which connections were made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.core.errors import InternalError
from router.upstream.origin import Origin


class Dials:
    """Places for dials, per origin. State: dials under way, and who waits for a place, oldest first."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._under_way: dict[Origin, int] = {}
        self._waiting: dict[Origin, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, origin: Origin) -> AsyncIterator[None]:
        """Held during one dial. Waiting for it can be cancelled."""
        await self._take(origin)
        try:
            yield
        finally:
            self._give(origin)

    async def _take(self, origin: Origin) -> None:
        under_way = self._under_way.get(origin, 0)
        if under_way < self._at_once:
            self._under_way[origin] = under_way + 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(origin)  # the place came in the same turn of the loop as the cancellation
            raise

    def _give(self, origin: Origin) -> None:
        """The dial has ended: its place goes to the next in line who still waits, or back."""
        queue = self._waiting.get(origin)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting.pop(origin, None)
        left = self._under_way.get(origin, 0) - 1
        if left < 0:
            raise InternalError("A dial ended that never began.")
        if left:
            self._under_way[origin] = left
        else:
            del self._under_way[origin]

    def __repr__(self) -> str:
        waiting = sum(not turn.done() for queue in self._waiting.values() for turn in queue)
        return f"<Dials [{sum(self._under_way.values())} under way | {waiting} waiting]>"
