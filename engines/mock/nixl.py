"""KV hand-over as vLLM's NIXL connector does it (pull): both sides of it, for one incarnation.

Separate from the engine model, which holds blocks and knows no peers, and from the incarnation, which knows
jobs and no wire. A prefill's blocks are kept under a lease; its answer names them; the decode engine shakes
hands once, prolongs the lease while the request waits, reads, and tells the prefill engine to let go. Whoever
reads what is not kept any more gets no error, but a garbled answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from engines.mock.ask import HandOver
from engines.mock.connector import Errands, Mount
from engines.mock.exposition import Family
from engines.mock.fields import Fields, Json
from engines.mock.hardware import tensor_parallel
from engines.mock.nixl_account import NixlAccount
from engines.mock.nixl_peers import COMPATIBILITY, NixlPeers, PeerLost
from engines.mock.nixl_wire import (
    Handle,
    Handshake,
    Heartbeat,
    Read,
    Release,
    Reply,
    decode_message,
    params_of,
    read_params,
    runs_of,
)
from engines.model.engine import Fetch, Kept, Timing
from engines.model.specs import MODELS

_TELL = Fetch("", 0, 0, b"")


class NixlConnector:
    """The connector of one incarnation.

    Args:
        mount: the engine and the way to others.
    """

    def __init__(self, mount: Mount) -> None:
        self.account = NixlAccount()
        self._mount = mount
        self._kept = mount.engine.kept
        self._errands = Errands(mount.died)
        self._peers = NixlPeers(mount, self.account, self._errands)
        self._queued: dict[str, Handle] = {}
        self._reads: dict[str, asyncio.Event] = {}
        self._beats: dict[str, Handle] = {}
        self._last_beat_s: float | None = None

    def __repr__(self) -> str:
        return f"<NixlConnector {self._kept!r} {len(self._beats)} heartbeats, {self._errands!r}>"

    # --- what requests say ----------------------------------------------------------------------------

    def read(self, params: Fields) -> HandOver:
        """Read a request's `kv_transfer_params`.

        Raises:
            Refusal: 400 for prompt token ids that are none.
        """
        return read_params(params)

    def kills(self, params: Mapping[str, object]) -> bool:
        """The engine core fails an assertion when it is to fetch and no blocks are named."""
        return bool(params.get("do_remote_prefill")) and not params.get("remote_block_ids")

    def refused(self, params: Mapping[str, object]) -> None:
        """Let the prefill engine free the blocks of a request that never reached the engine."""
        handle = Handle.of(params)
        if handle is not None:
            self._errands.run(self._pull(_TELL, handle))

    def left(self, hand_over: HandOver) -> None:
        """Tell the prefill engine once more; what it no longer keeps, it counts as read late."""
        handle = hand_over.handle
        if isinstance(handle, Handle):
            self._errands.run(self._tell_again(handle))

    async def _tell_again(self, handle: Handle) -> None:
        # A read that is under way tells first: whatever it reads is kept until then.
        reading = self._reads.get(handle.request_id)
        if reading is not None:
            await reading.wait()
        await self._pull(_TELL, handle)

    # --- the prefill side -----------------------------------------------------------------------------

    def handle(self, job_id: str, kept: Kept, timing: Timing) -> Json | None:
        """Begin to watch a lease; return the `kv_transfer_params` of the answer."""
        mount = self._mount
        cut = mount.faults.strike("lease_cut")
        if cut is not None:
            self._kept.cut(job_id, cut.delay_s or 0.0, self._now())
        self._watch_leases()
        if mount.faults.strike("lose_handle") is not None:
            return None
        engine = (mount.engine_id(), mount.address(), tensor_parallel(mount.settings))
        return params_of(job_id, kept, timing, engine)

    def answer(self, message: bytes, now: float) -> bytes:
        """Answer a message of a peer.

        Raises:
            Refusal: 400 for what is no message.
        """
        asked = decode_message(message)
        reply = Reply(self._mount.engine_id(), f"{COMPATIBILITY}/{self._mount.settings.model}")
        if not isinstance(asked, Handshake) and asked.engine_id != reply.engine_id:
            reply.error = f"engine {asked.engine_id} is not here"
        elif isinstance(asked, Heartbeat):
            self._kept.prolong(asked.request_ids, now)
        elif isinstance(asked, Read):
            blocks = self._mount.hardware.config.num_blocks
            if not all(0 < block < blocks for block in asked.block_ids):
                reply.error = f"there are {blocks} blocks here"
        elif isinstance(asked, Release):
            content = self._kept.release(asked.request_id, now)
            reply.content = None if content is None else content.hex()
            self._watch_leases()
            self._mount.wake()
        return msgspec.json.encode(reply)

    def _watch_leases(self) -> None:
        end = self._kept.next_end
        if end is None:
            self._errands.forget("lease")
        else:
            self._errands.at("lease", end, self._end_leases)

    def _end_leases(self) -> None:
        if self._kept.expire(self._now()):
            self._mount.wake()
        self._watch_leases()

    # --- the decode side ------------------------------------------------------------------------------

    def queued(self, job_id: str, hand_over: HandOver) -> None:
        """Prolong the lease from now on, for the engine may take its time."""
        handle = hand_over.handle
        if not isinstance(handle, Handle):
            return
        self._queued[job_id] = handle
        if handle.beats:
            self._beats[job_id] = handle
            if len(self._beats) == 1:
                self._beat_at(self._now())

    def start(self, fetch: Fetch) -> None:
        """Read the blocks of a job whose own are ready, or tell the prefill engine that nobody will."""
        handle = self._queued.pop(fetch.job_id)
        if fetch.tells_only:
            self.ended(fetch.job_id)
        self._errands.run(self._pull(fetch, handle))

    def ended(self, job_id: str) -> None:
        """Prolong no more. Idempotent."""
        self._beats.pop(job_id, None)
        if not self._beats:
            self._errands.forget("beat")

    async def _pull(self, fetch: Fetch, handle: Handle) -> None:
        engine = self._mount.engine
        try:
            await self._peers.greet(handle)
            if fetch.tells_only:
                await self._tell(handle)
                return
            content = await self._transfer(fetch, handle)
        except PeerLost:
            self.ended(fetch.job_id)
            if not fetch.tells_only and engine.fetch_failed(fetch.job_id):
                self._mount.lost(fetch.job_id)
        else:
            self.ended(fetch.job_id)
            engine.fetched(fetch.job_id, right=fetch.is_right(content))
        self._mount.wake()

    async def _tell(self, handle: Handle) -> None:
        try:
            await self._peers.ask(handle, Release(handle.engine_id, handle.request_id))
        except PeerLost:
            self.account.notification_failed()

    async def _transfer(self, fetch: Fetch, handle: Handle) -> bytes | None:
        """Read what is missing and say so; what the blocks held, None when they were not kept any more.

        Raises:
            PeerLost: the prefill engine is gone, or knows no such blocks.
        """
        blocks = handle.block_ids[-fetch.blocks :]
        if len(blocks) < fetch.blocks:
            # A real engine core fails an assertion here and dies.
            self._mount.died()
            raise PeerLost
        duration_s = self._mount.transfer_s(fetch.blocks)
        ended = self._reads[handle.request_id] = asyncio.Event()
        try:
            content = await self._read(handle, blocks, duration_s)
        except PeerLost:
            self.account.failed_transfers += 1
            raise
        finally:
            self._reads.pop(handle.request_id, None)
            ended.set()
        size_bytes = fetch.blocks * self._mount.hardware.link.block_bytes
        layers = MODELS[self._mount.settings.model].layers
        self.account.transferred(duration_s, size_bytes, layers * runs_of(blocks))
        return content

    async def _read(self, handle: Handle, blocks: tuple[int, ...], duration_s: float) -> bytes | None:
        """One remote read and the notification at its end. Raises PeerLost."""
        await self._peers.ask(handle, Read(handle.engine_id, list(blocks)))
        await asyncio.sleep(duration_s)
        if self._mount.faults.strike("transfer_failed") is not None:
            raise PeerLost
        reply = await self._peers.ask(handle, Release(handle.engine_id, handle.request_id))
        return None if reply.content is None else bytes.fromhex(reply.content)

    # --- heartbeats -----------------------------------------------------------------------------------

    def _beat_at(self, now: float) -> None:
        """At once when none was sent for an interval: all requests share one beat, as in vLLM."""
        last = self._last_beat_s
        due = now if last is None else max(now, last + self._interval_s)
        self._errands.at("beat", due, self._beat)

    @property
    def _interval_s(self) -> float:
        """A sixth of the lease in whole seconds; of a lease below six seconds the true sixth."""
        lease_s = self._mount.settings.kv_lease_s
        return lease_s // 6 or lease_s / 6

    def _beat(self) -> None:
        self._last_beat_s = self._now()
        for handle in {handle.engine_id: handle for handle in self._beats.values()}.values():
            waiting = [one.request_id for one in self._beats.values() if one.engine_id == handle.engine_id]
            self._errands.run(self._peers.beat(handle, waiting))
        self._beat_at(self._last_beat_s)

    # --- the rest -------------------------------------------------------------------------------------

    def families(self, labels: Mapping[str, str], created: float) -> Iterator[Family]:
        """Yield the NIXL families."""
        return self.account.families(self._kept, labels, created)

    def state(self) -> Json:
        """Return what is kept and what is under way."""
        return {
            "engine_id": self._mount.engine_id(),
            "kept": len(self._kept),
            "expired": self._kept.expired,
            "late_releases": self._kept.late_releases,
            "heartbeats": len(self._beats),
            "errands": len(self._errands),
        }

    def close(self) -> None:
        """Leave no task and no timer."""
        self._beats.clear()
        self._errands.close()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
