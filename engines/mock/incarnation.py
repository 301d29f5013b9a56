"""One life of an engine process: its data-parallel ranks, which step together, and who gets which request.

Separate from the process, which outlives it, and from the ranks, which know nothing of each other. Almost
all engines have one rank.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engines.mock.account import Account
from engines.mock.ask import Ask
from engines.mock.connectors import ADDRESSEES
from engines.mock.generation import Generation
from engines.mock.kv_events import KvPublisher
from engines.mock.rank import Host, Rank
from engines.mock.settings import MockSettings
from engines.mock.ticker import Ticker
from engines.model.engine import Output
from engines.model.lockstep import BarrierGroup, JointStep
from engines.model.rank_balance import LeastLoaded, RoundRobin

log = logging.getLogger("pointsman.mock")


class Incarnation:
    """The ranks of an engine, stepped by one clock.

    Args:
        host: its process.
        publishers: of KV events, by rank; none publishes none.

    Attributes:
        barrier_wait_s: engine seconds that ranks waited for each other, in sum.
    """

    def __init__(self, host: Host, publishers: Sequence[KvPublisher]) -> None:
        settings = host.settings
        self._host = host
        self.barrier_wait_s = 0.0
        accounts = _accounts(settings, host.hardware.config.max_model_len)
        outlets: list[KvPublisher | None] = [*publishers] or [None] * settings.dp_size
        self.ranks = tuple(
            Rank(host, index, account, outlet, self._wake)
            for index, (account, outlet) in enumerate(zip(accounts, outlets, strict=True))
        )
        engines = [rank.engine for rank in self.ranks]
        self.ticker = Ticker(
            BarrierGroup(engines), self._step_ended, self._step_failed, settings.time_scale, self._begun
        )
        self._balance = LeastLoaded(engines) if settings.dialect == "vllm" else RoundRobin(engines)

    def __repr__(self) -> str:
        return f"<Incarnation {self.ticker!r}, {list(self.ranks)!r}>"

    @property
    def in_progress(self) -> int:
        """Requests that the engine works on or holds in its queues."""
        return sum(rank.in_progress for rank in self.ranks)

    def submit(self, ask: Ask, arrival: float, now: float, *, pooling: bool) -> Generation:
        """Queue a request at the rank it names, or else at one that is chosen here.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run.
        """
        return self._rank_for(ask, now).submit(ask, arrival, now, pooling=pooling)

    def _rank_for(self, ask: Ask, now: float) -> Rank:
        if len(self.ranks) == 1:
            return self.ranks[0]
        if ask.rank is not None:
            return self.ranks[ask.rank]
        return self.ranks[self._balance.pick([rank.in_flight for rank in self.ranks], now)]

    def answer_peer(self, message: bytes, now: float) -> bytes | None:
        """Answer a message of another engine; None when KV is not handed over here.

        Raises:
            Refusal: 400 for what is no message.
        """
        rank = self.ranks[0]
        if rank.connector is None:
            return None
        if len(self.ranks) > 1:
            name = ADDRESSEES[self._host.settings.connector](message)
            rank = next((one for one in self.ranks if one.engine_id == name), rank)
        return None if rank.connector is None else rank.connector.answer(message, now)

    # --- steps ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self.ticker.wake()

    def _begun(self) -> None:
        for rank in self.ranks:
            rank.start_fetches()

    def _step_ended(self, outputs: Sequence[Sequence[Output]], step: JointStep, now: float) -> None:
        if len(self.ranks) > 1:
            self.barrier_wait_s += step.waste_s
        for rank, of_rank in zip(self.ranks, outputs, strict=True):
            rank.step_ended(of_rank, now)

    def _step_failed(self, failure: Exception) -> None:
        log.error("the engine of %s died in a step", self._host.settings.name, exc_info=failure)
        self._host.died()

    # --- ends -----------------------------------------------------------------------------------------

    def abort_all(self, request_id: str | None = None) -> int:
        """End streams with `finish_reason: "abort"`, as vLLM's default SIGTERM does; return how many.

        Args:
            request_id: only this request; None is all of them.
        """
        return sum(rank.abort_all(request_id) for rank in self.ranks)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks of every rank; False when one holds blocks, which it keeps."""
        reset = [rank.engine.reset_prefix_cache() for rank in self.ranks]
        return all(reset)

    def fall_silent(self) -> None:
        """Open streams get no further byte and no end."""
        self.ticker.stop()
        for rank in self.ranks:
            rank.fall_silent()

    def end(self, failure: Exception) -> None:
        """Stop for good; whoever still waits gets the failure."""
        self.ticker.stop()
        for rank in self.ranks:
            rank.end(failure)

    def close(self) -> None:
        """Take no further step and leave no timer and no task."""
        self.ticker.stop()
        for rank in self.ranks:
            rank.close()


def _accounts(settings: MockSettings, max_model_len: int) -> list[Account]:
    """By rank: vLLM counts for each, SGLang's front for all of them together."""
    if settings.dialect == "sglang":
        return [Account(max_model_len)] * settings.dp_size
    return [Account(max_model_len) for _ in range(settings.dp_size)]
