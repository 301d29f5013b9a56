"""Which engines a NIXL connector knows, and how it speaks to them.

Separate from the transfers because one handshake serves all requests that wait for it, and because what was
known once fails at once when it is gone, while what was never seen is waited for.
"""

from __future__ import annotations

import asyncio

import msgspec

from engines.mock.connector import Errands, Mount
from engines.mock.nixl_account import NixlAccount
from engines.mock.nixl_wire import Handle, Handshake, Heartbeat, Message, Reply
from engines.mock.peers import PeerUnreachable
from engines.mock.settings import VLLM_VERSION

HANDSHAKE_S = 5.0
"""How long an engine that was never seen is waited for: vLLM's receive timeout, seen as 5.0 s."""
RECONNECT_S = 0.25
"""Pause between two attempts to connect within that time."""
ANSWER_S = 5.0
"""How long a known engine may take for an answer."""

COMPATIBILITY = f"vllm-{VLLM_VERSION}/pull"
"""Engines of another version or transfer mode do not pair. The model is added."""


class PeerLost(Exception):
    """The KV cannot be had: its engine cannot be reached, or it is another one by now."""


class NixlPeers:
    """The other engines, as one incarnation knows them.

    Args:
        account: counts handshakes that failed, once for all who waited.
    """

    def __init__(self, mount: Mount, account: NixlAccount, errands: Errands) -> None:
        self._mount = mount
        self._account = account
        self._errands = errands
        self._seen: set[str] = set()
        self._shaking: dict[str, asyncio.Future[bool]] = {}

    def __repr__(self) -> str:
        return f"<NixlPeers {len(self._seen)} known, {len(self._shaking)} shaking hands>"

    async def greet(self, handle: Handle) -> None:
        """Make sure that the engine of a handle is known.

        Raises:
            PeerLost: it did not answer in time, or what answered is another engine.
        """
        if handle.engine_id in self._seen:
            return
        shaking = self._shaking.get(handle.engine_id)
        if shaking is None:
            shaking = asyncio.get_running_loop().create_future()
            self._shaking[handle.engine_id] = shaking
            self._errands.run(self._shake(handle, shaking))
        if not await asyncio.shield(shaking):
            raise PeerLost

    async def ask(self, handle: Handle, message: Message) -> Reply:
        """Send a message to a known engine.

        Raises:
            PeerLost: it does not answer, or not with what was asked for.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await self._post(handle, message)
        except (PeerUnreachable, TimeoutError) as error:
            raise PeerLost from error
        if reply.error is not None:
            raise PeerLost(reply.error)
        return reply

    async def beat(self, handle: Handle, request_ids: list[str]) -> None:
        """Prolong leases. The first beat only makes an engine known that is not: it prolongs nothing."""
        try:
            if handle.engine_id in self._seen:
                await self.ask(handle, Heartbeat(handle.engine_id, request_ids))
            else:
                await self.greet(handle)
        except PeerLost:
            return  # the transfer itself will find out, and say so

    async def _shake(self, handle: Handle, shaking: asyncio.Future[bool]) -> None:
        known = False
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                known = await self._introduced(handle)
        except TimeoutError:
            known = False
        finally:
            del self._shaking[handle.engine_id]
            if known:
                self._seen.add(handle.engine_id)
            else:
                self._account.failed_transfers += 1
            if not shaking.done():
                shaking.set_result(known)

    async def _introduced(self, handle: Handle) -> bool:
        """Keep asking until somebody answers; whether it is the engine of the handle, and one of our kind."""
        asked = Handshake(handle.engine_id)
        while True:
            try:
                reply = await self._post(handle, asked)
            except PeerUnreachable:
                await asyncio.sleep(RECONNECT_S)
                continue
            ours = f"{COMPATIBILITY}/{self._mount.settings.model}"
            return reply.engine_id == handle.engine_id and reply.compatibility == ours

    async def _post(self, handle: Handle, message: Message) -> Reply:
        """Send one message.

        Raises:
            PeerUnreachable: there is no answer to be had, or what came is none.
        """
        address = handle.address
        answer = await self._mount.peers.ask(address.host, address.port, msgspec.json.encode(message))
        try:
            return msgspec.json.decode(answer, type=Reply)
        except msgspec.DecodeError as error:
            raise PeerUnreachable(f"{address.authority} is no engine of this kind ({error})") from error
