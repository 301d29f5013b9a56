"""How one mock engine reaches another: one message there, one back.

Separate so that an engine runs the same over sockets and over whatever a test gives it: the interface is
injected, and nothing else of the mock opens a connection.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

SIDE_CHANNEL = "/mock/kv"
"""Path on an engine's own port where its peers post their messages. Real engines have a port for it."""

MAX_MESSAGE_BYTES = 1 << 20


class PeerUnreachable(Exception):
    """The peer does not listen, or it left before it answered."""


class PeerLink(Protocol):
    """Carries messages to other engines."""

    async def ask(self, host: str, port: int, message: bytes) -> bytes:
        """Post a message to the side channel at (host, port) and return the answer.

        The caller sets the deadline.

        Raises:
            PeerUnreachable: there is no answer to be had.
        """


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine's peers reach its side channel."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as HTTP writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TcpPeers:
    """The link over sockets: one connection for each message, for there are few."""

    async def ask(self, host: str, port: int, message: bytes) -> bytes:
        """Post a message and return the answer.

        Raises:
            PeerUnreachable: nobody listens, or what came back is no answer.
        """
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_MESSAGE_BYTES)
        except OSError as error:
            raise PeerUnreachable(f"{host}:{port} does not accept a connection ({error})") from error
        try:
            writer.write(_head(Address(host, port), len(message)) + message)
            await writer.drain()
            answer = await reader.read(MAX_MESSAGE_BYTES)
            while not reader.at_eof() and len(answer) < MAX_MESSAGE_BYTES:
                answer += await reader.read(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise PeerUnreachable(f"{host}:{port} left before it answered ({error})") from error
        finally:
            writer.close()
        return _body(answer, host, port)

    def __repr__(self) -> str:
        return "<TcpPeers>"


def _head(address: Address, size: int) -> bytes:
    lines = (
        f"POST {SIDE_CHANNEL} HTTP/1.1",
        f"host: {address.authority}",
        "content-type: application/json",
        f"content-length: {size}",
        "connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _body(answer: bytes, host: str, port: int) -> bytes:
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator or head.split(b" ", 2)[1:2] != [b"200"]:
        raise PeerUnreachable(f"{host}:{port} gave no answer to a message of an engine")
    return body
