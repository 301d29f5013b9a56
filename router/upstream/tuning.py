"""Socket options that both sides of the router share."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol


class SocketLike(Protocol):
    """A socket, or asyncio's view of one."""

    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How a peer that vanished without a word is noticed; times in seconds.

    After `idle_s` of silence, `probes` probes `interval_s` apart; bytes that stay unacknowledged for
    `user_timeout_s` end the connection too.
    """

    idle_s: int = 30
    interval_s: int = 10
    probes: int = 3
    user_timeout_s: int = 60


def tune_socket(sock: SocketLike | None, keep_alive: KeepAlive | None = None) -> None:
    """No delay, keep-alive probes and a bound on unacknowledged bytes. A transport without a socket is left
    as it is, and so is what a platform does not have."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    keep_alive = keep_alive or KeepAlive()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", keep_alive.idle_s),
        ("TCP_KEEPALIVE", keep_alive.idle_s),  # what macOS calls it
        ("TCP_KEEPINTVL", keep_alive.interval_s),
        ("TCP_KEEPCNT", keep_alive.probes),
        ("TCP_USER_TIMEOUT", keep_alive.user_timeout_s * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
