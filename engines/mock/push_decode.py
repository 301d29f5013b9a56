"""The decode side of pushed KV: calling the prefill engine, waiting for it, and the transfer itself.

Separate from the prefill side, for no engine is both for one request. The engine holds blocks for the whole
prompt from the call on, so a prefill engine that never answers costs room here until the wait is over.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass

from engines.mock.connector import Errands, Mount
from engines.mock.peers import Address
from engines.mock.push_line import Line, Manner, PeerLost, Source
from engines.mock.push_wire import Introduce, Left, Taken, Want
from engines.model.engine import Fetch

HEARTBEAT_S = 5.0
"""How often SGLang asks the bootstrap servers of prefills that it waits for how they are."""
HEARTBEAT_FAILURES = 2
"""So many in a row, and the prefill engine is taken for dead."""


class Stage(enum.Enum):
    """How far the KV of a job is."""

    CALLING = "calling"
    WAITING = "waiting"
    TRANSFERRING = "transferring"


@dataclass(slots=True, eq=False)
class Pull:
    """The KV of one job, on its way.

    Attributes:
        prefill: side channel of the prefill engine, once it is known.
        gone: nobody waits for it any more; what is under way comes to its end.
    """

    fetch: Fetch
    source: Source
    stage: Stage = Stage.CALLING
    prefill: Address | None = None
    gone: bool = False


class Pulls:
    """The transfers of one decode engine.

    Args:
        mount: the engine that waits for the KV.
    """

    def __init__(self, mount: Mount, line: Line, errands: Errands, manner: Manner) -> None:
        self._mount = mount
        self._line = line
        self._errands = errands
        self._manner = manner
        self._queued: dict[str, Source] = {}
        self._pulls: dict[str, Pull] = {}
        self._missed: dict[Address, int] = {}
        self._beating = False
        self.received = 0
        self.failed_meetings = 0
        self.failed_transfers = 0
        self.last_s = 0.0
        self.last_bytes = 0

    def __repr__(self) -> str:
        return f"<Pulls {len(self._queued)} queued, {len(self._pulls)} on their way>"

    def __len__(self) -> int:
        return len(self._queued) + len(self._pulls)

    @property
    def waiting(self) -> int:
        """Jobs for which the engine has no blocks yet."""
        return len(self._queued)

    def count(self, *stages: Stage) -> int:
        """Jobs whose KV is so far."""
        return sum(pull.stage in stages for pull in self._pulls.values())

    # --- from this engine -----------------------------------------------------------------------------

    def queued(self, job_id: str, source: Source) -> None:
        """A job whose KV is elsewhere has entered the queue."""
        self._queued[job_id] = source

    def start(self, fetch: Fetch) -> None:
        """The engine has blocks for a job, or does not need its KV."""
        source = self._queued.pop(fetch.job_id)
        if fetch.tells_only:
            self._errands.run(self.decline(fetch.job_id, source))
            return
        pull = self._pulls[fetch.job_id] = Pull(fetch, source)
        self._wait(pull)
        self._errands.run(self._call(pull))

    def ended(self, job_id: str) -> None:
        """A job has left the engine, whichever way. Idempotent."""
        pull = self._pulls.get(job_id)
        if pull is None or not self._manner.meets:
            return  # Mooncake tells nobody: the KV comes all the same, into blocks that are nobody's
        pull.gone = True
        self._errands.run(self._leave(pull))
        if pull.stage is not Stage.TRANSFERRING:
            self._end(pull)
            self._mount.engine.fetch_failed(job_id)
            self._mount.wake()

    async def decline(self, job_id: str, source: Source) -> None:
        """Tell the prefill engine that the KV of a job is not needed."""
        try:
            prefill = await self._manner.find(source)
            if self._manner.meets:
                await self._line.ask(prefill, Left(source.name, job_id))
            else:
                await self._line.ask(prefill, self._want(job_id, source, 0))
        except PeerLost:
            return  # it keeps nothing, or not for ever

    # --- from prefill engines -------------------------------------------------------------------------

    def ready(self, job_id: str) -> str | None:
        """A prefill engine begins to send; why it should not, None if it may."""
        pull = self._pulls.get(job_id)
        if pull is None or pull.gone:
            return f"nobody waits for the KV of {job_id}"
        if pull.stage is not Stage.TRANSFERRING:
            pull.stage = Stage.TRANSFERRING
            self._errands.forget(f"pull {job_id}")
            self._errands.run(self._transfer(pull))
        return None

    def expects(self, job_id: str) -> str | None:
        """Why the KV of a job is not wanted any more; None if it is."""
        return None if job_id in self._pulls else f"nobody waits for the KV of {job_id}"

    def failed(self, job_id: str, reason: str) -> None:
        """A prefill engine will not send."""
        pull = self._pulls.get(job_id)
        if pull is not None and not pull.gone:
            self._lose(pull, reason)

    # --- what follows ---------------------------------------------------------------------------------

    async def _call(self, pull: Pull) -> None:
        source = pull.source
        try:
            pull.prefill = await self._manner.find(source)
        except PeerLost as lost:
            if self._is_on(pull):
                self._lose(pull, str(lost))
            return
        if not self._is_on(pull):
            return
        pull.stage = Stage.WAITING
        self._wait(pull)
        if self._manner.meets:
            self._beat_later()
        try:
            await self._line.ask(pull.prefill, self._want(pull.fetch.job_id, source, pull.fetch.blocks))
        except PeerLost:
            return  # a message that was sent into the void: the wait for an answer has its own end

    def _want(self, job_id: str, source: Source, blocks: int) -> Want:
        here = self._mount.address()
        return Want(source.name, source.engine_id, job_id, blocks, here.host, here.port)

    def _wait(self, pull: Pull) -> None:
        due = asyncio.get_running_loop().time() + self._manner.decode_wait_s
        self._errands.at(f"pull {pull.fetch.job_id}", due, lambda: self._waited_enough(pull))

    def _waited_enough(self, pull: Pull) -> None:
        if self._manner.meets:
            self._errands.run(self._leave(pull))
        wait_s = self._manner.decode_wait_s
        self._lose(pull, f"Request {pull.source.name} timed out after {wait_s:g}s in KVPoll.WaitingForInput")

    async def _transfer(self, pull: Pull) -> None:
        """Let the time of a transfer pass, and say that it is over."""
        duration_s = self._mount.transfer_s(pull.fetch.blocks)
        await asyncio.sleep(duration_s)
        if not self._is_on(pull):
            return
        if pull.gone:
            self._end(pull)
            self._mount.engine.fetch_failed(pull.fetch.job_id)
            self._mount.wake()
            return
        try:
            content, cached_tokens = await self._take(pull)
        except PeerLost as lost:
            if self._is_on(pull):
                self._lose(pull, str(lost))
            return
        if not self._is_on(pull):
            return
        self.received += 1
        self.last_s = duration_s
        self.last_bytes = pull.fetch.blocks * self._mount.hardware.link.block_bytes
        self._end(pull)
        self._mount.engine.fetched(
            pull.fetch.job_id,
            right=pull.fetch.is_right(content),
            cached_tokens=cached_tokens if self._manner.meets else None,
        )
        self._mount.wake()

    async def _take(self, pull: Pull) -> tuple[bytes, int | None]:
        """What has arrived, and cached tokens of its prompt. Raises PeerLost."""
        prefill, name, job_id = pull.prefill, pull.source.name, pull.fetch.job_id
        if prefill is None:
            raise PeerLost("the prefill engine is not known")
        if self._mount.faults.strike("transfer_failed") is not None:
            if self._manner.meets:
                self._errands.run(self._leave(pull))
            raise PeerLost("the transfer failed")
        reply = await self._line.ask(prefill, Taken(name, job_id))
        if reply.content is None:
            raise PeerLost("the prefill engine does not have it any more")
        return bytes.fromhex(reply.content), reply.cached_tokens

    def _lose(self, pull: Pull, reason: str) -> None:
        """The KV of a job will not come."""
        job_id = pull.fetch.job_id
        if pull.stage is Stage.TRANSFERRING:
            self.failed_transfers += 1
        else:
            self.failed_meetings += 1
        self._end(pull)
        if self._mount.engine.fetch_failed(job_id):
            self._manner.lost(job_id, reason)
        self._mount.wake()

    def _is_on(self, pull: Pull) -> bool:
        """Whether it has not come to an end while something was waited for."""
        return self._pulls.get(pull.fetch.job_id) is pull

    def _end(self, pull: Pull) -> None:
        self._pulls.pop(pull.fetch.job_id, None)
        self._errands.forget(f"pull {pull.fetch.job_id}")

    async def _leave(self, pull: Pull) -> None:
        left = Left(pull.source.name, pull.fetch.job_id)
        try:
            await self._line.ask(pull.prefill or pull.source.bootstrap, left)
        except PeerLost:
            return  # whoever is gone waits for nothing

    # --- heartbeats (SGLang) --------------------------------------------------------------------------

    def _beat_later(self) -> None:
        if not self._beating:
            self._beating = True
            self._errands.at("beat", asyncio.get_running_loop().time() + HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        self._beating = False
        waiting = {pull.source.bootstrap for pull in self._pulls.values() if pull.stage is Stage.WAITING}
        self._missed = {address: self._missed.get(address, 0) for address in waiting}
        for address in waiting:
            self._errands.run(self._look_after(address))
        if waiting:
            self._beat_later()

    async def _look_after(self, bootstrap: Address) -> None:
        try:
            await self._line.ask(bootstrap, Introduce())
        except PeerLost:
            missed = self._missed[bootstrap] = self._missed.get(bootstrap, 0) + 1
        else:
            missed = self._missed[bootstrap] = 0
        if missed < HEARTBEAT_FAILURES:
            return
        del self._missed[bootstrap]
        for pull in list(self._pulls.values()):
            if pull.source.bootstrap == bootstrap and pull.stage is Stage.WAITING:
                where = f"bootstrap_addr: {bootstrap.authority}"
                self._lose(pull, f"Losing connection with prefill instance ({where})")
