"""What the legs of one attempt need to know of each other: names nobody used before, and an address.

Separate from the connectors, which are pure: a bootstrap server has to be asked first.
"""

from __future__ import annotations

import random

from router.admission import Job
from router.connectors import (
    BOOTSTRAP_PORT,
    BOOTSTRAP_TARGET,
    Connector,
    Pairing,
    Peer,
    read_bootstrap,
    room_for,
)
from router.core.errors import UpstreamBroken
from router.fleet import Member
from router.upstream.client import Upstream, WireRequest
from router.upstream.origin import Origin

_TOTAL_S = 5.0
_MAX_BYTES = 1024 * 1024
_ROOM_BITS = 63
_ROOMS = 1 << _ROOM_BITS
_STEP = 0x4F1BBCDCBFA53E0B
"""The golden section of all rooms, and odd: no room comes twice before all have come once, and the numbers of
any requests lie far enough apart for the rooms of a batch, which follow one another."""


class Peers:
    """Makes pairings.

    State: `_engine_ids` by prefill worker, with the incarnation that said so; `_number`, of the last pairing.

    Args:
        chance: where the numbers begin. Several routers may share engines, and one may restart: a beginning
            in common would give two requests one room.
    """

    def __init__(self, upstream: Upstream, chance: random.Random) -> None:
        self._upstream = upstream
        self._number = chance.getrandbits(_ROOM_BITS)
        self._engine_ids: dict[str, tuple[int, dict[int, str]]] = {}

    async def pairing(self, job: Job, member: Member, connector: Connector) -> Pairing:
        """A pairing for one attempt with this prefill worker.

        Raises UpstreamError when its bootstrap server does not answer, or not in its words.
        """
        engine_id = None
        if connector.asks_bootstrap:
            engine_id = (await self._engines(member)).get(member.dp_rank or 0)
            if engine_id is None:
                raise UpstreamBroken("The bootstrap server of the prefill worker knows no engine yet.")
        host, port = member.origin.host, member.bootstrap_port
        peer = Peer(host, port, engine_id, dp_rank=member.dp_rank, dp_size=member.dp_size)
        self._number = bits = (self._number + _STEP) % _ROOMS
        return Pairing(
            api=job.request.api,
            model=job.request.model,
            transfer_id=f"xfer-{job.request.attempt}-{bits:016x}",
            room=room_for(bits, peer.dp_rank, peer.dp_size),
            peer=peer,
        )

    async def _engines(self, member: Member) -> dict[int, str]:
        known = self._engine_ids.get(member.name)
        incarnation = member.worker.incarnation
        if known is not None and known[0] == incarnation:
            return known[1]
        origin = Origin("http", member.origin.host, member.bootstrap_port or BOOTSTRAP_PORT, "")
        answer = await self._upstream.fetch(
            origin, WireRequest(b"GET", BOOTSTRAP_TARGET), total_s=_TOTAL_S, max_bytes=_MAX_BYTES
        )
        try:
            engines = read_bootstrap(answer.body)
        except ValueError:
            raise UpstreamBroken("The bootstrap server of the prefill worker answers nonsense.") from None
        if engines:
            self._engine_ids[member.name] = incarnation, engines
        return engines

    def forget(self, worker: str) -> None:
        """A worker left, or was born anew."""
        self._engine_ids.pop(worker, None)

    def __repr__(self) -> str:
        return f"<Peers [{len(self._engine_ids)} engines known]>"
