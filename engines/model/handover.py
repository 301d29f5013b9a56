"""Blocks that change hands: what a prefill engine keeps for a decode engine, and what that one fetches.

Separate from the scheduler because a kept block belongs to no job any more: only a lease stands between it
and its reuse. The rules are those of vLLM's pull connector (NIXL): a lease runs from the end of the prefill,
a heartbeat of the decode engine prolongs it, a notification that the blocks were read ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engines.model.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class Kept:
    """What a finished prefill left behind, for the handle that names it.

    Attributes:
        blocks: in the order of the prompt.
        tokens: tokens whose KV is in them.
    """

    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a decode engine wants from a prefill engine.

    Attributes:
        job_id: of the job that waits, or that was waiting when it was dropped.
        blocks: how many must be read. 0: none, but the prefill engine should know that it may let go.
        held: leading blocks of the prompt that are here already.
        content: identity of the prompt, to compare with what was read.
    """

    job_id: str
    blocks: int
    held: int
    content: bytes

    @property
    def tells_only(self) -> bool:
        """Nothing is read and nobody waits for the end."""
        return self.blocks == 0

    def is_right(self, content: bytes | None) -> bool:
        """Whether an answer over what was read is the answer to this prompt.

        The last block is read in any case, for it is never looked up in the cache. With all others here, what
        a stale one adds does not show (a real engine was seen to answer right).

        Args:
            content: what the blocks held; None: they were no longer kept.
        """
        if content is None:
            return self.blocks == 1 and self.held > 0
        return content == self.content


@dataclass(slots=True)
class _Lease:
    blocks: list[int]
    content: bytes
    ends: float
    cut: bool = False


class KeptBlocks:
    """The finished prefills of one engine whose blocks a decode engine may still read.

    Args:
        kv: where the blocks are; they stay held until they are released or their lease ends.
        lease_s: how long blocks are kept without a heartbeat.

    Attributes:
        expired: leases that ran out.
        late_releases: notifications for blocks that were not kept any more. Whoever sent one has read what
            was in them by then.
    """

    def __init__(self, kv: KvCache, lease_s: float) -> None:
        self._kv = kv
        self._lease_s = lease_s
        self._leases: dict[str, _Lease] = {}
        self.expired = 0
        self.late_releases = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    @property
    def next_end(self) -> float | None:
        """When the first lease ends; None without any."""
        return min((lease.ends for lease in self._leases.values()), default=None)

    def keep(self, request_id: str, blocks: list[int], content: bytes, now: float) -> None:
        """Begin a lease on blocks that a finished request held."""
        if self._kv.is_spoiled(blocks):
            content = bytes(len(content))
        self._leases[request_id] = _Lease(blocks, content, now + self._lease_s)

    def prolong(self, request_ids: Iterable[str], now: float) -> None:
        """A heartbeat: each lease lasts at least two thirds of its length from now (whole seconds)."""
        ends = now + self._lease_s * 2 // 3
        for request_id in request_ids:
            lease = self._leases.get(request_id)
            if lease is not None and not lease.cut:
                lease.ends = max(lease.ends, ends)

    def cut(self, request_id: str, lease_s: float, now: float) -> None:
        """End a lease so much later than now, whatever heartbeats come: a fault that tests switch on."""
        lease = self._leases[request_id]
        lease.ends = min(lease.ends, now + lease_s)
        lease.cut = True

    def release(self, request_id: str, now: float) -> bytes | None:
        """The blocks were read, or nobody will: free them. None when they were not kept any more.

        Returns:
            What they hold: the prompt's identity.
        """
        self.expire(now)
        lease = self._leases.pop(request_id, None)
        if lease is None:
            self.late_releases += 1
            return None
        self._kv.free(lease.blocks)
        return lease.content

    def expire(self, now: float) -> int:
        """Free what nobody read in time; how many leases that ended."""
        over = [request_id for request_id, lease in self._leases.items() if lease.ends <= now]
        for request_id in over:
            self._kv.free(self._leases.pop(request_id).blocks)
        self.expired += len(over)
        return len(over)

    def __repr__(self) -> str:
        blocks = sum(len(lease.blocks) for lease in self._leases.values())
        return f"<KeptBlocks {blocks} of {len(self)} prefills | {self.expired} expired>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLink:
    """The wire between two engines.

    Attributes:
        block_bytes: size of one block, all layers.
        bytes_per_s: what one transfer gets, whatever else is under way.
        latency_s: from the request of a read to its first byte.
    """

    block_bytes: int
    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.block_bytes < 1 or self.bytes_per_s <= 0 or self.latency_s < 0:
            raise ValueError("a link needs blocks of a byte, a bandwidth above 0 and a latency of at least 0")

    def seconds(self, blocks: int) -> float:
        """How long a read of so many blocks takes: latency and bytes over bandwidth."""
        return self.latency_s + blocks * self.block_bytes / self.bytes_per_s
