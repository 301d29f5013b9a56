"""KV hand-over as vLLM's Mooncake connector does it: the prefill engine pushes what a decode engine asks for
by the transfer id that the router gave both.

Separate from NIXL's, whose answers name the blocks. Either leg may come first. What is not pushed in time is
freed; a decode engine waits as long, and a minute more, for a prefill that may never come. Read in the source
of vLLM 0.32; a pair of engines was recorded where all went well. It has no metric series of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from engines.mock.ask import HandOver
from engines.mock.connector import Mount
from engines.mock.fields import Fields
from engines.mock.peers import Address
from engines.mock.push import PushedKv
from engines.mock.push_line import Line, Manner, PeerLost, Source

NEEDED = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")
"""What a decode engine must know."""
QUERIES = 3
"""How often a bootstrap server that does not answer is asked."""
QUERY_PAUSE_S = 0.1
MORE_PATIENCE_S = 60.0
"""How much longer than a prefill engine a decode engine waits."""


class MooncakeConnector(PushedKv):
    """The connector of one incarnation.

    Args:
        mount: the engine and the way to others.
    """

    def __init__(self, mount: Mount) -> None:
        self._role = mount.settings.role
        self._engines: dict[str, Address] = {}
        super().__init__(mount, self._manner)

    def _manner(self, line: Line) -> Manner:
        wait_s = self._mount.settings.kv_abort_timeout_s
        return Manner(
            meets=False,
            prefill_wait_s=wait_s,
            decode_wait_s=wait_s + MORE_PATIENCE_S,
            find=lambda source: self._find(line, source),
            lost=lambda job_id, _: self._mount.lost(job_id),
        )

    def read(self, params: Fields) -> HandOver:
        """Read a request's `kv_transfer_params`. What is not complete is ignored."""
        raw = params.values
        name = raw.get("transfer_id")
        if raw.get("do_remote_prefill"):
            return HandOver(handle=source_of(raw))
        if raw.get("do_remote_decode") and name:
            return HandOver(retain=True, retain_stopped=False, offer=str(name))
        return HandOver()

    def kills(self, params: Mapping[str, object]) -> bool:
        """The engine core asserts that it is asked for what its role is for."""
        wrong = {"prefill": "do_remote_prefill", "decode": "do_remote_decode"}.get(self._role)
        return wrong is not None and bool(params.get(wrong))

    def refused(self, params: Mapping[str, object]) -> None:
        """Let the prefill engine free the blocks of a request that never reached the engine."""
        source = source_of(params) if params.get("do_remote_prefill") else None
        if source is not None:
            self._errands.run(self.pulls.decline("", source))

    def queued(self, job_id: str, hand_over: HandOver) -> None:
        """Take note of what a job offers, or of where its KV is."""
        if isinstance(hand_over.handle, Source):
            self.pulls.queued(job_id, hand_over.handle)
        elif isinstance(hand_over.offer, str) and self._mount.faults.strike("lose_handle") is None:
            self.offers.expect(job_id, hand_over.offer)

    async def _find(self, line: Line, source: Source) -> Address:
        """Where an engine is: asked once for each, and believed as long as this engine lives.

        Raises:
            PeerLost: its bootstrap server does not answer, or does not know it.
        """
        engine_id = source.engine_id or ""
        if engine_id not in self._engines:
            reply = await line.introduce(source.bootstrap, QUERIES, QUERY_PAUSE_S)
            self._engines[reply.engine_id] = reply.address
        if engine_id not in self._engines:
            raise PeerLost(f"remote engine_id {engine_id} not found from {source.bootstrap.authority}")
        return self._engines[engine_id]


def source_of(params: Mapping[str, object]) -> Source | None:
    """Where the KV is, by a decode request's params; None when they are not complete."""
    if any(not isinstance(params.get(name), str) for name in NEEDED):
        return None
    parts = urlsplit(str(params["remote_bootstrap_addr"]))
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if host is None or port is None:
        return None
    return Source(str(params["transfer_id"]), Address(host, port), str(params["remote_engine_id"]))
