"""Several engines in one process, each on a port of its own, on one event loop.

Separate from the applications because sockets, signals and the end of the process are only known here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace
from email.utils import formatdate
from typing import Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from engines.mock.app import create_app
from engines.mock.bootstrap import BootstrapServer
from engines.mock.front import Asgi, Front
from engines.mock.peers import Address
from engines.mock.process import EngineProcess
from engines.mock.settings import MockSettings, SettingsError
from engines.mock.wire import reset

log = logging.getLogger("pointsman.mock")

KEEP_ALIVE_S = 5
"""Idle time after which a connection is closed: vLLM's own, measured."""
BACKLOG = 2048
"""Connections that may wait to be accepted: uvicorn's own default, so vLLM's and SGLang's."""
FAREWELL_S = 2.0
"""Time for last events and the ends of connections after SIGTERM."""
SILENCE_S = 600.0
"""How long a silent process waits for its clients to give up."""
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Where peers on this machine reach a server that listens on all addresses."""


class DatedState(ServerState):
    """uvicorn's state of a server, with a date header that needs no timer."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Date and server; uvicorn keeps a list here and refreshes it every second."""
        second = int(self._process.unix_now())
        if second != self._second:
            self._second = second
            date = formatdate(second, usegmt=True).encode()
            self._headers = [(b"date", date), (b"server", b"uvicorn")]
        return self._headers

    @default_headers.setter
    def default_headers(self, _: list[tuple[bytes, bytes]]) -> None:
        """Ignored: uvicorn's constructor sets an empty list."""


class Door:
    """One port of an engine.

    Args:
        app: the ASGI application behind it.
        state: of the engine's connections, through whichever of its ports they came.
    """

    def __init__(self, app: Asgi, host: str, port: int, state: ServerState) -> None:
        self.host = host
        self.port = port
        self._config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = state
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<Door {self.host}:{self.port} {'open' if self.is_open else 'closed'}>"

    @property
    def is_open(self) -> bool:
        """Whether it accepts connections."""
        return self._server is not None

    async def open(self) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: the port cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.protocol, self.host, self.port, backlog=BACKLOG)
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Refuse new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def protocol(self) -> HttpToolsProtocol:
        """Return the server side of one new connection."""
        return HttpToolsProtocol(self._config, self._state, {}, None)


class EngineServer:
    """One engine behind its ports; the `Listener` of its process.

    Attributes:
        bootstrap: where decode engines find a prefill engine; None for an engine without such a port.
    """

    def __init__(self, front: Front, host: str, port: int) -> None:
        self.front = front
        self.host = host
        process = front.process
        self._state = DatedState(process)
        self._door = Door(front, host, port, self._state)
        settings = process.settings
        self.bootstrap: Door | None = None
        if settings.has_bootstrap:
            app = BootstrapServer(process)
            self.bootstrap = Door(app, host, settings.disaggregation_bootstrap_port, self._state)
        self._opening: asyncio.Task[None] | None = None
        front.process.listener = self

    def __repr__(self) -> str:
        state = "listening" if self._door.is_open else "closed"
        return f"<EngineServer {self.url} {state}, {self.connections} connections>"

    @property
    def port(self) -> int:
        """Of its own routes; known once it listens."""
        return self._door.port

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        """Open connections, idle ones too."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Open the ports; port 0 takes a free one.

        Raises:
            OSError: a port cannot be had.
        """
        await self._door.open()
        if self.bootstrap is not None:
            await self.bootstrap.open()
        self.front.process.instance = f"{self.host}:{self.port}"
        self.front.process.address = Address(_REACHED_AT.get(self.host, self.host), self.port)

    def close(self) -> None:
        """Refuse new connections."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._door.close()
        if self.bootstrap is not None:
            self.bootstrap.close()

    def reopen(self) -> None:
        """Accept new connections again."""
        if not self._door.is_open and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self.start())
            self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled() and (failure := opening.exception()) is not None:
            log.error("%s cannot listen again: %s", self.url, failure)

    def reset_connections(self) -> None:
        """End every open connection with RST."""
        for connection in list(self._state.connections):
            if connection.transport is not None:
                reset(connection.transport)

    def end_connections(self) -> None:
        """Close idle connections now and the others when their answer is complete."""
        for connection in list(self._state.connections):
            connection.shutdown()

    async def finish(self, deadline_s: float) -> None:
        """Close idle connections at once and the others after their answer; the deadline ends the rest."""
        self.close()
        self.end_connections()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=deadline_s)
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.front.process.close()
        # One more turn: closed transports tell their protocols.
        await asyncio.sleep(0)

    def protocol(self) -> HttpToolsProtocol:
        """Return the server side of one new connection to its own routes."""
        return self._door.protocol()


class Fleet:
    """The engines of one process and the end they come to.

    Args:
        settings: of every engine.
        count: engines, on consecutive ports from `port`, and from that of the bootstrap server.
    """

    def __init__(self, settings: MockSettings, count: int, host: str, port: int) -> None:
        self.settings = settings
        self.servers = [
            EngineServer(create_app(_nth(settings, index)), host, port + index if port else 0)
            for index in range(count)
        ]
        self._signalled = asyncio.Event()
        self._signals: list[signal.Signals] = []

    def __repr__(self) -> str:
        return f"<Fleet of {len(self.servers)} {self.settings.name}>"

    async def start(self) -> None:
        """Open all ports.

        Raises:
            OSError: one of them cannot be had; none stays open.
            SettingsError: something that they need is not installed.
        """
        try:
            for server in self.servers:
                await server.start()
                server.front.process.publish()
        except (OSError, SettingsError):
            for server in self.servers:
                server.close()
                server.front.process.close()
            raise

    def signal(self, received: signal.Signals) -> None:
        """Begin the end; a second signal ends at once."""
        self._signals.append(received)
        self._signalled.set()

    async def serve(self) -> None:
        """Serve until a signal, then end as the settings and the signal say."""
        await self._signalled.wait()
        self._signalled.clear()
        if self._signals[0] is signal.SIGTERM and self.settings.shutdown_timeout_s > 0:
            await self._drain(self.settings.shutdown_timeout_s)
        how: Literal["abort", "silence"] = "abort"
        if self._signals[0] is signal.SIGTERM:
            how = self.settings.sigterm
        for server in self.servers:
            server.front.process.terminate(how, None)
        if how == "silence":
            await self._until_idle(SILENCE_S)
        await asyncio.gather(*(server.finish(FAREWELL_S) for server in self.servers))

    async def _drain(self, timeout_s: float) -> None:
        for server in self.servers:
            server.front.process.draining = True
        await self._until_idle(timeout_s)

    async def _until_idle(self, timeout_s: float) -> None:
        """Wait for the last request, the deadline or a second signal, whichever is first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while any(server.front.in_progress for server in self.servers) and loop.time() < deadline:
            if self._signalled.is_set():
                return
            await asyncio.sleep(0.05)


def _nth(settings: MockSettings, index: int) -> MockSettings:
    """The settings of one of several engines: each has a bootstrap server and publishers of its own."""
    port = settings.disaggregation_bootstrap_port
    events = settings.kv_events
    return replace(
        settings,
        disaggregation_bootstrap_port=port + index if port else port,
        kv_events=None if events is None else events.shifted(index * settings.dp_size),
    )
