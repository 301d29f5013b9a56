"""A router as a process: its ports, its signals, and an end without broken streams.

SIGTERM: readiness turns 503, connections are still accepted for a while with `Connection: close`, running
requests may finish, and what then still runs is ended with an error. SIGINT skips the wait. A second signal
ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from router import __version__
from router.api.connection import ListenerSettings
from router.app import Router, World
from router.core.worker import Role
from router.listener import Listener
from router.settings.configuration import Settings
from router.telemetry import logs
from router.upstream.connect import TcpConnect, TcpSettings

log = logging.getLogger("pointsman")

_OPERATORS_CONNECTIONS = 64
_LOOK_S = 0.05
_LAST_WORDS_S = 2.0


def serve(settings: Settings) -> int:
    """Runs a router until a signal ends it; the exit status of the process."""
    logs.configure(level=settings.server.log_level, form=settings.server.log_format)
    runner = asyncio.Runner(loop_factory=_new_loop)
    with runner:
        return runner.run(_run(settings))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform; asyncio's own loop is right everywhere
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def raise_open_files() -> int:
    """Lifts the soft limit of open files to the hard one; how many may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1_048_576)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


def settle_garbage_collection() -> None:
    """Leaves what was built at the start out of every later collection, and collects less often.

    Requests leave hardly any cycles behind, but each makes some hundred objects, and by default every 700 of
    them set off a collection that walks the young and, by and by, everything. Measured at 32 concurrent small
    requests: 15 % less CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def _run(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    timeouts = settings.timeouts
    connect = TcpConnect(TcpSettings(connect_s=timeouts.connect_s, tls_s=timeouts.tls_s))
    world = World(
        connect=connect,
        now=loop.time,
        wall=time.time,  # noqa: TID251 - this is the composition root of the process
        open_files=raise_open_files(),
        stopwatch=time.perf_counter,  # noqa: TID251 - as above; uvloop's own clock counts whole milliseconds
    )
    try:
        router = Router(settings, world)
    except (OSError, ValueError) as error:  # the request log or the state cannot be written, or no salt read
        log.error("a file of the router cannot be used: %s", error)  # noqa: TRY400 - it needs no stack trace
        return 1
    process = Process(router, world)
    signals = Signals(loop)
    loop.add_signal_handler(signal.SIGHUP, _hang_up, router)
    try:
        await process.open()
    except OSError as error:
        log.error("%s", error.strerror or error)  # noqa: TRY400 - a taken port needs no stack trace
        await process.aclose()
        return 1
    settle_garbage_collection()
    await process.until(signals)
    signals.close()
    return 0


def _hang_up(router: Router) -> None:
    """SIGHUP: the logs of records go on in new files. Without anybody who hears it, it ends a process."""
    if not router.logs.reopen():
        log.info("SIGHUP: there is no request log to reopen; settings are read at the start only")


class Signals:
    """SIGTERM and SIGINT as a thing to wait for. State: how many came, and whether the last was SIGINT."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._came = asyncio.Event()
        self.count = 0
        self.at_once = False
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note, number)

    def _note(self, number: signal.Signals) -> None:
        self.count += 1
        self.at_once = self.at_once or number == signal.SIGINT
        self._came.set()

    async def wait(self) -> None:
        """The first signal."""
        await self._came.wait()

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


class Process:
    """A router with its listeners."""

    def __init__(self, router: Router, world: World) -> None:
        self.router = router
        self._world = world
        timeouts, limits = router.settings.timeouts, router.settings.limits
        bounds = ListenerSettings(
            head_s=timeouts.client_head_s,
            slow_client_s=timeouts.slow_client_s,
            keep_alive_s=timeouts.client_keep_alive_s,
            write_buffer_bytes=limits.stream_buffer_bytes,
            max_connections=limits.connections_bound(world.open_files),
        )
        self.data = Listener("data", router.data, bounds, direct=router.data)
        bounds = replace(bounds, max_connections=_OPERATORS_CONNECTIONS)
        self._others: list[tuple[Listener, str, int]] = []
        server = router.settings.server
        if server.admin_port:
            self._others.append(
                (Listener("admin", router.admin, bounds), server.admin_host, server.admin_port)
            )
        if server.prometheus is not None:
            listener = Listener("metrics", router.metrics_only, bounds)
            self._others.append((listener, *server.prometheus))

    @property
    def _listeners(self) -> list[Listener]:
        return [self.data, *(listener for listener, _, _ in self._others)]

    async def open(self) -> None:
        """Binds every port and starts the background work. Raises OSError when a port is taken."""
        server = self.router.settings.server
        await self.data.open(server.host, server.port)
        for listener, host, port in self._others:
            await listener.open(host, port)
        self.start()
        log.info("listening on http://%s:%d", bracketed(server.host), self.data.port)
        for listener, host, _ in self._others:
            log.info("%s on http://%s:%d", listener.name, bracketed(host), listener.port)

    def start(self) -> None:
        """Everything but the ports. Says first what begins: whoever reads a log asks that first."""
        log.info("version %s, %s", __version__, ", ".join(self._pools()))
        self._tick()
        self.router.supervisor.start("clock", self._tick_for_ever)
        self.router.start()

    def _pools(self) -> Iterator[str]:
        for name, pool in self.router.settings.pools.items():
            served = "" if pool.role is Role.BOTH else f" ({pool.role.value})"
            yield f"pool {name}{served} chooses by {pool.policy}"

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(1.0)

    def _tick(self) -> None:
        wall = self._world.wall()
        for listener in self._listeners:
            listener.tick(wall)

    async def until(self, signals: Signals) -> None:
        """Serves until the first signal, then ends in order; a second signal cuts the order short."""
        await signals.wait()
        timeouts = self.router.settings.timeouts
        accept_s = 0.0 if signals.at_once else timeouts.shutdown_accept_s
        await self.shut_down(accept_s, timeouts.shutdown_drain_s, lambda: signals.count > 1)

    async def shut_down(self, accept_s: float, drain_s: float, hurried: Callable[[], bool]) -> None:
        """The orderly end: announce, stop accepting, let requests finish, end the rest with an error."""
        self.router.draining = self.data.closing = True
        log.info(
            "shutting down: %d requests are in flight, more are taken for %g s", self.data.busy, accept_s
        )
        await self._while(lambda: True, accept_s, hurried)
        self.data.close_accepting()
        await self._while(lambda: self.data.busy > 0, drain_s, hurried)
        if self.data.busy:
            log.warning("%d requests did not finish in time and are ended with an error", self.data.busy)
        await self.aclose()
        log.info("stopped")

    async def _while(
        self, goes_on: Callable[[], bool], at_most_s: float, hurried: Callable[[], bool]
    ) -> None:
        ends = self._world.now() + at_most_s
        while goes_on() and not hurried() and self._world.now() < ends:  # noqa: ASYNC110 - three conditions
            await asyncio.sleep(_LOOK_S)

    async def aclose(self) -> None:
        """Ends what still runs: workers are let go first, so that clients get an error and not silence."""
        await self.router.aclose()
        await self._while(lambda: self.data.busy > 0, _LAST_WORDS_S, lambda: False)
        for listener in self._listeners:
            await listener.aclose()

    def __repr__(self) -> str:
        return f"<Process {self.data!r} {self.router!r}>"


def bracketed(host: str) -> str:
    """An address as it stands in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
