"""A port that serves one application, and its orderly end.

The router has up to three (data, administration, metrics) in one event loop; uvicorn's own server runs one
and takes the signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.api.connection import ListenerSettings, PointsmanProtocol, Port
from router.api.turn import Direct

log = logging.getLogger("pointsman")

_BACKLOG = 2048


class Listener:
    """One ASGI application on one address (or, without one, on any transport that is handed to `protocol`).

    State: the open sockets, uvicorn's account of connections and running requests, and how many connections
    were turned away since the last tick.
    """

    def __init__(
        self, name: str, app: Any, settings: ListenerSettings | None = None, *, direct: Direct | None = None
    ) -> None:
        """`direct` serves the requests for engines past ASGI; usually it is `app` itself."""
        self.name = name
        self.settings = settings or ListenerSettings()
        self._config = Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,
        )
        self._config.load()
        self.state = ServerState()
        self._port = Port(lambda: self.closing, self._full, direct)
        self._server: asyncio.Server | None = None
        self._turned_away = 0
        self.closing = False
        """Answers say `Connection: close`, so that clients come back to somebody else."""
        self.port: int | None = None

    def protocol(self) -> PointsmanProtocol:
        """The server's end of a new connection."""
        return PointsmanProtocol(self._config, self.state, self.settings, self._port)

    def _full(self) -> bool:
        full = len(self.state.connections) > self.settings.max_connections
        self._turned_away += full
        return full

    async def open(self, host: str, port: int) -> None:
        """Binds. `::` is dual-stack. Raises OSError with the address in its text when that fails."""
        loop = asyncio.get_running_loop()
        sock = _bind(host, port)
        self.port = sock.getsockname()[1]
        self._server = await loop.create_server(self.protocol, sock=sock, backlog=_BACKLOG)

    def tick(self, wall: float) -> None:
        """Once a second: the Date header of answers that have none of their own, and a word about connections
        that found no room."""
        self.state.default_headers = [(b"date", formatdate(wall, usegmt=True).encode())]
        if self._turned_away:
            log.warning(
                "the %s port turned away %d connections: %d may be open (see the limit of open files)",
                self.name,
                self._turned_away,
                self.settings.max_connections,
            )
            self._turned_away = 0

    def close_accepting(self) -> None:
        """Takes no new connections. Running requests go on; idle connections are closed."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.state.connections):
            connection.shutdown()

    @property
    def busy(self) -> int:
        """Requests that run."""
        return len(self.state.tasks)

    async def aclose(self) -> None:
        """Closes everything that is still open, and waits until it is."""
        self.close_accepting()
        for connection in list(self.state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        tasks = list(self.state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<Listener {self.name} [{len(self.state.connections)} connections | {self.busy} busy]>"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock
