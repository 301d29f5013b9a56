"""Mock engines that hand KV to each other over a virtual network."""

from __future__ import annotations

from engines.mock.peers import SIDE_CHANNEL, PeerUnreachable
from router.core.errors import RouterError
from router.upstream.client import Upstream, WireRequest
from router.upstream.origin import Origin


class NetworkPeers:
    """The engines' `PeerLink` over anything that makes connections: one connection for each message.

    Args:
        upstream: over the network's `connect`, best with `UpstreamSettings(max_idle=0)`; its owner closes it.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def ask(self, host: str, port: int, message: bytes) -> bytes:
        request = WireRequest(
            b"POST", SIDE_CHANNEL.encode(), ((b"content-type", b"application/json"),), message
        )
        origin = Origin("http", host, port, "")
        try:
            answer = await self._upstream.fetch(origin, request, total_s=60.0, max_bytes=1 << 20)
        except RouterError as error:
            raise PeerUnreachable(str(error)) from error
        if answer.status != 200:
            raise PeerUnreachable(f"status {answer.status}")
        return answer.body
