"""The seam between an engine and one kind of KV hand-over.

Separate so that an incarnation knows when something happens to a job, and a connector what that means on its
wire: a new kind is a file of its own and a line in the table of `engines.mock.connectors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from engines.mock.ask import HandOver
from engines.mock.exposition import Family
from engines.mock.faults import FaultTable
from engines.mock.fields import Fields, Json
from engines.mock.hardware import Hardware
from engines.mock.peers import Address, PeerLink
from engines.mock.settings import MockSettings
from engines.model.engine import Engine, Fetch, Kept, Timing

log = logging.getLogger("pointsman.mock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """What a connector is mounted on: one incarnation of an engine, and its way to others.

    Attributes:
        engine_id: of this incarnation; another one has another.
        address: where peers reach this engine, once it listens.
        peers: the way to other engines.
        faults: those that strike hand-overs.
        wake: lets the engine begin a step if it can: after KV came, and after blocks were freed.
        lost: ends a job with an error, for its KV did not come.
        admit: lets a job run that was held until a decode engine is there.
        handed: the decode engine has the KV of such a job, so it may be answered.
        failed: ends such a job with an error; the sentence says why.
        died: the engine core is dead.
    """

    settings: MockSettings
    hardware: Hardware
    engine: Engine
    engine_id: Callable[[], str]
    address: Callable[[], Address]
    peers: PeerLink
    faults: FaultTable
    wake: Callable[[], None]
    lost: Callable[[str], None]
    admit: Callable[[str], None]
    handed: Callable[[str], None]
    failed: Callable[[str, str], None]
    died: Callable[[], None]

    def transfer_s(self, blocks: int) -> float:
        """Wall seconds of a transfer that begins now: a fault may strike it."""
        duration_s = self.hardware.link.seconds(blocks) * self.settings.time_scale
        slow = self.faults.strike("transfer_slow")
        if slow is None:
            return duration_s
        return duration_s * slow.factor if slow.delay_s is None else duration_s + slow.delay_s


class Connector(Protocol):
    """What happens to a hand-over, from both sides."""

    def read(self, params: Fields) -> HandOver:
        """Read a request's `kv_transfer_params`.

        Raises:
            Refusal: 400 for what cannot be meant.
        """

    def kills(self, params: Mapping[str, object]) -> bool:
        """Whether an engine core was seen to die of these params."""

    def refused(self, params: Mapping[str, object]) -> None:
        """The request that carried these params never reached the engine."""

    def left(self, hand_over: HandOver) -> None:
        """The client left before its answer, which was not streamed, was whole."""

    def queued(self, job_id: str, hand_over: HandOver) -> None:
        """A job whose KV is elsewhere has entered the engine's queue."""

    def start(self, fetch: Fetch) -> None:
        """The engine wants KV, or wants it to be known that it does not."""

    def ended(self, job_id: str) -> None:
        """A job that was queued here has left the engine, whichever way. Idempotent."""

    def handle(self, job_id: str, kept: Kept, timing: Timing) -> Json | None:
        """What the answer of a finished prefill tells of the blocks it left; None tells nothing."""

    def answer(self, message: bytes, now: float) -> bytes:
        """Answer a message of a peer.

        Raises:
            Refusal: 400 for what is no message.
        """

    def families(self, labels: Mapping[str, str], created: float) -> Iterator[Family]:
        """Metric families of the connector."""

    def state(self) -> Json:
        """What a test may want to see."""

    def close(self) -> None:
        """The incarnation is over: leave no task and no timer."""


class Errands:
    """The tasks and timers of one connector, so that none outlives it and no failure goes unseen.

    Args:
        failed: called when a task raised what it should not.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def run(self, errand: Coroutine[None, None, None]) -> None:
        """Run something beside everything else."""
        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def at(self, name: str, when: float, action: Callable[[], None]) -> None:
        """Do something at a time of the loop's clock; one thing of each name, the last one asked for."""
        earlier = self._timers.get(name)
        if earlier is not None:
            earlier.cancel()
        self._timers[name] = asyncio.get_running_loop().call_at(when, action)

    def forget(self, name: str) -> None:
        """Do not do it after all."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """End all of them."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            log.error("an errand of a KV connector failed", exc_info=failure)
            self._failed()

    def __repr__(self) -> str:
        return f"<Errands {len(self._tasks)} tasks, {len(self._timers)} timers>"
