"""How an engine whose KV is pushed speaks to another: one message there, one back, or the peer is lost.

Separate from both sides, which share it together with the ways in which the two connectors differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from engines.mock.connector import Mount
from engines.mock.peers import Address, PeerUnreachable
from engines.mock.push_wire import Introduce, Message, Reply, decode_reply, encode

ANSWER_S = 5.0
"""How long a peer may take for an answer: SGLang's time-out of a call to a bootstrap server."""


class PeerLost(Exception):
    """The peer gave no answer, or does not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a decode engine finds the KV of one job.

    Attributes:
        name: of the transfer.
        bootstrap: the bootstrap server of the prefill engine.
        engine_id: of the prefill engine; None: of whichever is there.
    """

    name: str
    bootstrap: Address
    engine_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """In what the connectors differ.

    Attributes:
        meets: a prefill does not run before its decode engine has called, and either is told when the other
            leaves (SGLang). Otherwise a prefill runs, its blocks are kept, and nobody is told (Mooncake).
        prefill_wait_s: how long a prefill that meets waits for its decode engine, and the other kind lets a
            decode engine wait for it.
        decode_wait_s: how long a decode engine waits for the KV.
        find: where the engine of a source is. Raises PeerLost.
        lost: ends a job of the decode engine whose KV will not come (job id, reason).
    """

    meets: bool
    prefill_wait_s: float
    decode_wait_s: float
    find: Callable[[Source], Awaitable[Address]]
    lost: Callable[[str, str], None]


class Line:
    """The way from one incarnation to its peers. No state."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    async def ask(self, peer: Address, message: Message) -> Reply:
        """Send a message.

        Raises:
            PeerLost: no answer in time, or one with an error.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                data = await self._mount.peers.ask(peer.host, peer.port, encode(message))
            reply = decode_reply(data)
        except (PeerUnreachable, TimeoutError) as error:
            raise PeerLost(f"{peer.authority} does not answer") from error
        except msgspec.DecodeError as error:
            raise PeerLost(f"{peer.authority} is no engine of this kind") from error
        if reply.error is not None:
            raise PeerLost(reply.error)
        return reply

    async def introduce(self, bootstrap: Address, tries: int, pause_s: float) -> Reply:
        """Ask a bootstrap server for the engine behind it, several times if need be.

        Raises:
            PeerLost: it never answered.
        """
        for attempt in range(tries):
            try:
                return await self.ask(bootstrap, Introduce())
            except PeerLost:
                if attempt + 1 < tries:
                    await asyncio.sleep(pause_s)
        raise PeerLost(f"{bootstrap.authority} did not answer {tries} times")

    def reply(self, error: str | None = None) -> Reply:
        """What this engine answers."""
        address = self._mount.address()
        return Reply(self._mount.engine_id(), address.host, address.port, error)
