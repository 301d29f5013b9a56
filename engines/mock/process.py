"""One engine process: its engine, or one for each data-parallel rank, and what outlives a crash of it.

Separate from the HTTP side so that the life of a process (start, die, come back as a new incarnation)
can be read in one place, and from `engines.model`, which knows neither clients nor crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol
from uuid import UUID

from engines.mock.account import Account
from engines.mock.ask import Ask
from engines.mock.connector import Connector
from engines.mock.errors import Refusal, draining, engine_dead
from engines.mock.faults import Fault, FaultTable
from engines.mock.generation import Generation
from engines.mock.hardware import Hardware
from engines.mock.incarnation import Incarnation
from engines.mock.kv_broadcast import broadcast_of
from engines.mock.peers import Address, PeerLink, TcpPeers
from engines.mock.rank import Host, Rank
from engines.mock.settings import MockSettings
from engines.mock.ticker import Ticker
from engines.model.engine import Engine, Output
from engines.model.lockstep import JointStep


class Listener(Protocol):
    """Where an engine process is reached; a server gives one, an in-memory run may have none."""

    def close(self) -> None:
        """Refuse new connections."""

    def reopen(self) -> None:
        """Accept new connections again."""

    def reset_connections(self) -> None:
        """End every open connection the hard way."""

    def end_connections(self) -> None:
        """Close idle connections now and the others when their answer is complete."""

    @property
    def connections(self) -> int:
        """Open connections, idle ones too."""


class EngineProcess:
    """The server side of one worker URL.

    Args:
        settings: what the engine is.
        instance: tells engines with the same settings apart, so that their ids differ.
        unix_origin_s: wall-clock time at which the loop's clock is first read; all later wall times are
            computed from the loop's clock, so a virtual loop has virtual dates.
        peers: the way to other engines; None takes sockets.

    Attributes:
        address: where other engines reach this one: the server sets it when it listens.
        faults: the request faults that are switched on; they outlive a crash.
        kv_events: what it publishes; None when it does not.
    """

    def __init__(
        self,
        settings: MockSettings,
        unix_origin_s: float,
        instance: str = "",
        peers: PeerLink | None = None,
    ) -> None:
        self.settings = settings
        self.instance = instance
        self.hardware = Hardware.of(settings)
        self.listener: Listener | None = None
        self.address = Address("localhost", 0)
        self.faults = FaultTable()
        self.kv_events = broadcast_of(settings)
        self._host = Host(
            settings=settings,
            hardware=self.hardware,
            draw_id=self.draw_id,
            unix_now=self.unix_now,
            peers=peers or TcpPeers(),
            engine_id=self._engine_id,
            address=lambda: self.side_channel,
            faults=self.faults,
            died=self.engine_death,
        )
        self.incarnation = 1
        self.up = True
        self.draining = False
        self._unix_origin_s = unix_origin_s
        self._loop_origin_s: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._drawn = 0
        self.started_unix_s = unix_origin_s
        self._life = self._born()

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<EngineProcess {self.settings.name} #{self.incarnation} {state} {self.engine!r}>"

    def _born(self) -> Incarnation:
        publishers = () if self.kv_events is None else self.kv_events.begin()
        return Incarnation(self._host, publishers)

    # --- the present incarnation ----------------------------------------------------------------------

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Its data-parallel ranks, almost always one."""
        return self._life.ranks

    @property
    def engine(self) -> Engine:
        """The engine of the first rank."""
        return self.ranks[0].engine

    @property
    def account(self) -> Account:
        """What the first rank counted."""
        return self.ranks[0].account

    @property
    def barrier_wait_s(self) -> float:
        """Engine seconds that its ranks waited for each other, in sum."""
        return self._life.barrier_wait_s

    @property
    def ticker(self) -> Ticker[JointStep, list[list[Output]]]:
        """What steps all ranks."""
        return self._life.ticker

    @property
    def connector(self) -> Connector | None:
        """How KV of the first rank is handed over, and what all ranks read requests with; None without."""
        return self.ranks[0].connector

    @property
    def in_progress(self) -> int:
        """Requests that it works on or holds in its queue."""
        return self._life.in_progress

    def submit(self, ask: Ask, arrival: float, *, pooling: bool = False) -> Generation:
        """Queue a request.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run, 500 when the engine is dead or
                the process drains.
        """
        if not self.up:
            raise engine_dead()
        if self.draining:
            raise draining()
        return self._life.submit(ask, arrival, self.now(), pooling=pooling)

    def abort(self, request_id: str | None = None) -> int:
        """End one request, or all of them, with `finish_reason: "abort"`; return how many."""
        return self._life.abort_all(request_id)

    def answer_peer(self, message: bytes, now: float) -> bytes | None:
        """Answer a message of another engine; None when KV is not handed over here.

        Raises:
            Refusal: 400 for what is no message.
        """
        return self._life.answer_peer(message, now)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks of every rank; False when one holds blocks, which it keeps."""
        return self._life.reset_prefix_cache()

    # --- time and names -------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's clock (s, monotonic)."""
        return asyncio.get_running_loop().time()

    def unix_now(self) -> float:
        """Return the date that belongs to the loop's clock (Unix seconds)."""
        now = self.now()
        if self._loop_origin_s is None:
            self._loop_origin_s = now
        return self._unix_origin_s + now - self._loop_origin_s

    def draw_id(self, hex_digits: int = 16) -> str:
        """Return an id that repeats from run to run but not within one."""
        self._drawn += 1
        seed = f"{self.instance}/{self.settings.seed}/{self.settings.name}/{self.incarnation}/{self._drawn}"
        return blake2b(seed.encode(), digest_size=16).hexdigest()[:hex_digits]

    @property
    def engine_id(self) -> str:
        """The name of this incarnation, or of its first rank, among engines that hand KV over."""
        return self._engine_id(0)

    def _engine_id(self, rank: int) -> str:
        """vLLM adds the rank where there are several."""
        seed = f"{self.address.authority}/{self.instance}/{self.settings.seed}/{self.incarnation}"
        name = str(UUID(bytes=blake2b(seed.encode(), digest_size=16).digest(), version=4))
        return name if self.settings.dp_size == 1 else f"{name}_dp{rank}"

    @property
    def side_channel(self) -> Address:
        """Where other engines post their messages."""
        return Address(self.settings.kv_side_channel_host or self.address.host, self.address.port)

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of answers: version and a hash of the configuration."""
        return self.hardware.fingerprint

    def publish(self) -> None:
        """Open the sockets of its KV events, if it has any.

        Raises:
            PlaceTaken: an address cannot be had.
            SettingsError: pyzmq is not installed.
        """
        if self.kv_events is not None:
            self.kv_events.open()

    # --- ends -----------------------------------------------------------------------------------------

    def terminate(self, how: str, back_after_s: float | None) -> None:
        """Do what SIGTERM without a grace time does to clients: `abort` or `silence`; then refuse.

        Args:
            back_after_s: after how long a new incarnation comes up (wall seconds); None is never.
        """
        self.up = False
        self._fall_quiet()
        if self.listener is not None:
            self.listener.close()
            self.listener.end_connections()
        if how == "abort":
            self._life.abort_all()
        else:
            self._life.fall_silent()
        if back_after_s is not None:
            self._later(back_after_s, self.restart)

    def die(self, failure: Refusal | None, *, reset: bool, back_after_s: float | None = None) -> None:
        """Lose all state and go down; come back as a new incarnation after the restart delay.

        Args:
            failure: what open requests are answered with; None says nothing to them.
            reset: also end every connection the hard way.
            back_after_s: how long it stays down (wall seconds); None takes the settings' delay.
        """
        if not self.up:
            return
        self.up = False
        self._life.end(failure or ConnectionResetError("the engine process crashed"))
        self._fall_quiet()
        if self.listener is not None:
            self.listener.close()
            if reset:
                self.listener.reset_connections()
            else:
                self.listener.end_connections()
        delay = self.settings.restart_delay_s if back_after_s is None else back_after_s
        self._later(delay, self.restart)

    def engine_death(self, back_after_s: float | None = None) -> None:
        """Die as a process does whose engine core was killed: open requests get an error, then the end."""
        self.die(engine_dead(), reset=False, back_after_s=back_after_s)

    def refuse(self, for_s: float | None) -> None:
        """Close the listener for a time, or until healed; open connections stay."""
        if self.listener is not None:
            self.listener.close()
            if for_s is not None:
                self._later(for_s, self._reopen)

    def slow(self, factor: float, for_s: float | None) -> None:
        """Make steps last longer for a time, or until healed."""
        self.ticker.slowness = factor
        if for_s is not None:
            self._later(for_s, self._full_speed)

    def heal(self) -> None:
        """End what `refuse`, `slow` and `drop_events` did, and bring back a process that is down."""
        self._full_speed()
        if self.kv_events is not None:
            self.kv_events.drop(0)
        if self.up:
            self._reopen()
        else:
            self.restart()

    def crash(self, fault: Fault) -> None:
        """Die as a killed process does: connections are reset, nothing is said."""
        self.die(None, reset=True, back_after_s=fault.delay_s)

    def restart(self) -> None:
        """Start anew: empty cache, zero counters, a later start time."""
        self._forget_timers()
        self._life.end(ConnectionResetError("the engine process was replaced"))
        self._fall_quiet()
        self.incarnation += 1
        self.started_unix_s = self.unix_now()
        self._life = self._born()
        self.up = True
        if self.kv_events is not None:
            self.kv_events.reopen()
        if self.listener is not None:
            self.listener.reopen()

    def close(self) -> None:
        """Stop for good: no timer of this process stays on the loop."""
        self._life.close()
        if self.kv_events is not None:
            self.kv_events.destroy()
        self._forget_timers()

    def _fall_quiet(self) -> None:
        if self.kv_events is not None:
            self.kv_events.close()

    def _forget_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay_s, action))

    def _reopen(self) -> None:
        if self.up and self.listener is not None:
            self.listener.reopen()

    def _full_speed(self) -> None:
        self.ticker.slowness = 1.0
