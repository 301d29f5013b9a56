"""How a connection comes to be: real TCP and TLS here, a virtual network elsewhere.

Separate because it is the only part of the data path that touches the operating system.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from router.core.errors import ConnectFailed, Overloaded
from router.upstream.origin import Origin
from router.upstream.tuning import KeepAlive, tune_socket

_ONE_LOOK_S = 0.002


class Connect(Protocol):
    """Connects to `origin` and gives the connection to a protocol made by `factory`.

    Raises ConnectFailed, or Overloaded when it is this machine that has no room. Cancelled, it leaves no
    connection behind.
    """

    async def __call__(
        self, origin: Origin, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """Deadlines in seconds.

    Attributes:
        connect_s: for name resolution and TCP together.
        tls_s: for the TLS handshake.
        keep_alive: how a worker that vanished without a word is noticed.
    """

    connect_s: float = 1.0
    tls_s: float = 5.0
    keep_alive: KeepAlive = field(default_factory=KeepAlive)


class TcpConnect:
    """Connects over TCP, and TLS for https origins.

    Args:
        tls: verifies the workers' certificates; None uses the system's authorities.
    """

    def __init__(self, settings: TcpSettings | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings or TcpSettings()
        self._tls = tls

    async def __call__(
        self, origin: Origin, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        sock = await self._tcp(origin)
        loop = asyncio.get_running_loop()
        try:
            if origin.scheme != "https":
                return await loop.create_connection(factory, sock=sock)
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return await loop.create_connection(
                factory,
                sock=sock,
                ssl=self._tls,
                server_hostname=origin.host,
                ssl_handshake_timeout=self._settings.tls_s,
            )
        except OSError as error:  # ssl.SSLError is one
            sock.close()
            raise _explained(error, self._settings) from error
        except BaseException:
            sock.close()
            raise

    async def _tcp(self, origin: Origin) -> socket.socket:
        """A connected socket. Each address gets an equal share of the time that is left."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._settings.connect_s
        try:
            async with asyncio.timeout_at(ends):
                addresses = await _resolve(origin)
        except OSError as error:
            raise _explained(error, self._settings) from error
        failure: OSError = OSError("the name has no address")
        for place, address in enumerate(addresses):
            share_s = (ends - loop.time()) / (len(addresses) - place)
            try:
                return await self._connected(address, share_s)
            except OSError as error:
                failure = error
        raise _explained(failure, self._settings) from failure

    async def _connected(self, address: _Address, within_s: float) -> socket.socket:
        family, kind, protocol, _, place = address
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune_socket(sock, self._settings.keep_alive)
            async with _fair_timeout(within_s):
                await asyncio.get_running_loop().sock_connect(sock, place)
        except BaseException:
            sock.close()
            raise
        return sock


@asynccontextmanager
async def _fair_timeout(within_s: float) -> AsyncIterator[None]:
    """A timeout that holds the worker's lateness against it, and not this loop's own.

    A loop that was busy for longer than the deadline runs its timers before it looks at its sockets, and
    would call a connection late that was made in time. So the deadline counts only if the connection is still
    not there one look at the sockets later.
    """
    loop = asyncio.get_running_loop()
    rings: list[asyncio.TimerHandle] = []
    async with asyncio.timeout(None) as scope:

        def look_once_more() -> None:
            rings.append(loop.call_later(_ONE_LOOK_S, lambda: scope.reschedule(loop.time())))

        rings.append(loop.call_later(within_s, look_once_more))
        try:
            yield
        finally:
            for ring in rings:
                ring.cancel()


_Address = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]
]


async def _resolve(origin: Origin) -> list[_Address]:
    """Addresses of the host; no thread for one that is an address already."""
    try:
        return socket.getaddrinfo(  # type: ignore[return-value]  # with an IP built in, addresses are these two
            origin.host, origin.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(  # type: ignore[return-value]  # as above
            origin.host, origin.port, type=socket.SOCK_STREAM
        )


_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
_NO_ROOM = {
    errno.EMFILE: "The router has no file descriptor left for another connection.",
    errno.ENFILE: "This machine has no file descriptor left for another connection.",
    errno.EADDRNOTAVAIL: "The router has no local port left for another connection.",
    errno.ENOBUFS: "This machine has no memory left for another connection.",
}


_FAULTS: tuple[tuple[type[OSError], str], ...] = (
    (ssl.SSLCertVerificationError, "The worker's certificate is not trusted."),
    (ssl.SSLError, "The TLS handshake with the worker failed."),
    (socket.gaierror, "The worker's name cannot be resolved."),
    (TimeoutError, "The worker did not accept the connection within {connect_s:g} s."),
    (ConnectionAbortedError, "The worker did not finish the TLS handshake within {tls_s:g} s."),
    (ConnectionRefusedError, "The worker refused the connection."),
    (OSError, "No connection to the worker could be made."),
)
"""The first that fits is said. Special ones come before OSError, of which they all are kinds."""


def _explained(error: OSError, settings: TcpSettings) -> ConnectFailed | Overloaded:
    """The same in a sentence without an address; the original, which may have one, stays its cause."""
    if error.errno in _NO_ROOM:
        return Overloaded(_NO_ROOM[error.errno], retry_after_s=1.0)
    if error.errno in _NO_ROUTE:
        return ConnectFailed("There is no route to the worker.")
    sentence = next(text for kind, text in _FAULTS if isinstance(error, kind))
    message = sentence.format(connect_s=settings.connect_s, tls_s=settings.tls_s)
    return ConnectFailed(message, refused=isinstance(error, ConnectionRefusedError))
