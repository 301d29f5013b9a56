"""Hosts and ports in memory.

Separate from the transports because it is about who listens where, and what goes wrong before a connection
exists: refused, unanswered, gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from router.core.errors import ConnectFailed
from router.upstream.origin import Origin
from router.virtual.transport import Address, LinkSettings, MemoryTransport, connected_pair

ProtocolFactory = Callable[[], asyncio.Protocol]


class _Door(Enum):
    """What a port that does not accept does with a caller."""

    REFUSE = "refuse"
    HANG = "hang"


class Listener:
    """A served port.

    Attributes:
        connections: the server's ends of the connections that are open.
        accepted: how many there have been.
    """

    def __init__(self, host: str, port: int, factory: ProtocolFactory, settings: LinkSettings) -> None:
        self.host = host
        self.port = port
        self.settings = settings
        self.accepted = 0
        self._factory = factory
        self._ends: list[MemoryTransport] = []

    @property
    def connections(self) -> list[MemoryTransport]:
        self._ends = [end for end in self._ends if not end.is_closing()]
        return list(self._ends)

    def accept(self, end: MemoryTransport) -> None:
        """Give the server's end of a new connection to a protocol of its own."""
        self.accepted += 1
        self._ends = [*self.connections, end]
        protocol = self._factory()
        end.set_protocol(protocol)
        protocol.connection_made(end)

    def reset_all(self) -> None:
        """Reset every connection, as a process does that is killed."""
        for end in self.connections:
            end.abort()

    def __repr__(self) -> str:
        return f"<Listener {self.host}:{self.port} [{len(self.connections)} connections]>"


class Network:
    """Maps (host, port) to servers; `connect` is what `Upstream` and other clients are given.

    A port that nobody mentioned refuses, as a machine does whose process is down.

    Args:
        settings: of every connection, unless `serve` names others.
        connect_s: a caller of a hanging port gives up after this many virtual seconds.
    """

    def __init__(self, settings: LinkSettings | None = None, *, connect_s: float = 1.0) -> None:
        self._settings = settings or LinkSettings()
        self._connect_s = connect_s
        self._listeners: dict[Address, Listener] = {}
        self._closed: dict[Address, _Door] = {}
        self._next_port = 49_152

    def serve(
        self, host: str, port: int, factory: ProtocolFactory, settings: LinkSettings | None = None
    ) -> Listener:
        """Answer (host, port) with protocols made by `factory`. Raises OSError if somebody does already."""
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is served already")
        listener = Listener(host, port, factory, settings or self._settings)
        self._listeners[host, port] = listener
        return listener

    def stop(self, host: str, port: int) -> None:
        """Listen no more. Connections that exist go on; `reset_all` before ends them too."""
        self._listeners.pop((host, port), None)

    def refuse(self, host: str, port: int) -> None:
        """Refuse new connections, whether served or not, until `accept`."""
        self._closed[host, port] = _Door.REFUSE

    def hang(self, host: str, port: int) -> None:
        """Leave new connections without any answer, as a machine does that is off, until `accept`."""
        self._closed[host, port] = _Door.HANG

    def accept(self, host: str, port: int) -> None:
        """End `refuse` and `hang`."""
        self._closed.pop((host, port), None)

    def reset_all(self, host: str, port: int) -> None:
        """Reset every connection of a served port."""
        listener = self._listeners.get((host, port))
        if listener is not None:
            listener.reset_all()

    async def connect(
        self, origin: Origin, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """As `TcpConnect`, to what is served here. Raises ConnectFailed."""
        place = (origin.host, origin.port)
        if self._closed.get(place) is _Door.HANG:
            await asyncio.sleep(self._connect_s)
            raise ConnectFailed(f"The worker did not accept the connection within {self._connect_s:g} s.")
        settings = self._listeners[place].settings if place in self._listeners else self._settings
        await asyncio.sleep(2 * settings.latency_s)  # there and back
        listener = self._listeners.get(place)
        if listener is None or place in self._closed:
            raise ConnectFailed("The worker refused the connection.", refused=True)
        here = ("127.0.0.1", self._next_port)
        self._next_port += 1
        client, server = connected_pair(asyncio.get_running_loop(), here, place, settings)
        listener.accept(server)
        protocol = factory()
        client.set_protocol(protocol)
        protocol.connection_made(client)
        return client, protocol

    def __repr__(self) -> str:
        parts = [repr(listener) for listener in self._listeners.values()]
        parts += [f"{host}:{port} {door.value}" for (host, port), door in self._closed.items()]
        return f"<Network [{', '.join(parts)}]>"
