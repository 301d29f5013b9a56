"""One request inside the engine: its sequences, what they produced, and the client that waits for it.

Separate because three sides meet here: the ticker delivers, the HTTP side takes, and either may end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engines.mock.ask import Answer, Ask, Piece
from engines.mock.errors import ClientGone
from engines.mock.fields import Json
from engines.mock.sequence import OutputSequence


class Generation:
    """Pieces on their way from the engine to one client.

    The backlog is bounded by the request's own max_tokens: pieces of one answer that nobody took yet are
    merged, as vLLM merges outputs for a slow consumer.

    Args:
        ask: the request.
        sequences: one per prompt and answer, in index order.
        abort: called once when the request ends before the engine is done with it.
        rank: the data-parallel rank that it runs on.
    """

    def __init__(
        self,
        ask: Ask,
        sequences: Sequence[OutputSequence],
        abort: Callable[[Generation], None],
        rank: int = 0,
    ) -> None:
        self.ask = ask
        self.rank = rank
        self.sequences = tuple(sequences)
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self.kv_transfer_params: Json | None = None
        self.silent = False
        self._abort = abort
        self._open = len(self.sequences)
        self._pending: dict[int, Piece] = {}
        self._started: set[int] = set()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = repr(self._failure) if self._failure else f"{self._open} of {len(self.sequences)} open"
        return f"<Generation {self.ask.request_id} {state}>"

    @property
    def finished(self) -> bool:
        """Whether every answer has its finish reason and every piece was taken."""
        return self._open == 0 and not self._pending

    @property
    def all_ended(self) -> bool:
        """Whether every answer has its finish reason."""
        return self._open == 0

    @property
    def completion_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    def deliver(self, piece: Piece) -> None:
        """Add a piece; `wake` follows once per step."""
        if piece.finish_reason is not None:
            self._open -= 1
        earlier = self._pending.get(piece.index)
        if earlier is None:
            self._pending[piece.index] = piece
        else:
            earlier.absorb(piece)

    def wake(self) -> None:
        """Let the waiting client side go on."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, failure: Exception) -> None:
        """End the request with an error: the engine died."""
        if self._failure is None:
            self._failure = failure
            self._pending.clear()
            self.wake()

    def leave(self) -> None:
        """The client is gone: the engine forgets the request at once. Idempotent."""
        if self._failure is None:
            self._failure = ClientGone()
            self._pending.clear()
            if self._open:
                self._abort(self)
            self.wake()

    async def pieces(self, patience_s: float = 0.0) -> Sequence[Piece]:
        """Wait for pieces and take them. An empty answer means that `patience_s` passed without any.

        Raises:
            Refusal: the engine died.
            ClientGone: the client left.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            ready = self._ready()
            if ready:
                return ready
            if not await self._woken(patience_s) and not self.silent:
                return ()

    async def answers(self) -> list[Answer]:
        """Wait until every answer is finished and return them in index order.

        Raises:
            Refusal: the engine died.
            ClientGone: the client left.
        """
        while not self.finished:
            await self.pieces()
        return [sequence.answer() for sequence in self.sequences]

    def _ready(self) -> Sequence[Piece]:
        if self.silent:
            return ()
        pending = self._pending
        interval = self.ask.streaming.interval
        if interval == 1:
            self._pending = {}
            return tuple(pending.values())
        due = [piece for piece in pending.values() if self._due(piece, interval)]
        for piece in due:
            del pending[piece.index]
            self._started.add(piece.index)
        return due

    def _due(self, piece: Piece, interval: int) -> bool:
        """The first piece of an answer goes alone, later ones wait for `interval` tokens or the end."""
        first = piece.index not in self._started
        return first or piece.finish_reason is not None or len(piece.token_ids) >= interval

    async def _woken(self, patience_s: float) -> bool:
        """Return False when nobody woke us within the patience; 0 waits for ever."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(patience_s, _expire, waiter) if patience_s else None
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
        return self._waiter is not waiter


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
