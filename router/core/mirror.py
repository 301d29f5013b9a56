"""The router's belief about the work and the KV that one incarnation of a worker holds.

Built from leases alone: charged at dispatch, advanced by the events that pass through, settled once. It is
true the moment a request is placed, which no scrape is. A new incarnation starts with an empty mirror.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.core.errors import InternalError
from router.core.lease import Lease


class Mirror:
    """Sums over the leases of one worker. The ledger alone writes it.

    Attributes:
        leases: what the sums are over, in the order of the charges; the values mean nothing.
        streams: leases whose events are seen as they come.
        keeping: leases whose work is done; only their KV is kept, for another worker to fetch.
        transfers: leases whose KV is still to come from another worker.
    """

    __slots__ = (
        "in_flight",
        "keeping",
        "kv_tokens",
        "leases",
        "queued_tokens",
        "remaining_tokens",
        "sequences",
        "streams",
        "transfers",
    )

    def __init__(self) -> None:
        self.leases: dict[Lease, None] = {}
        self.in_flight = 0
        self.sequences = 0
        self.queued_tokens = 0
        self.kv_tokens = 0
        self.remaining_tokens = 0
        self.streams = 0
        self.keeping = 0
        self.transfers = 0

    def charge(self, lease: Lease) -> None:
        self.leases[lease] = None
        self.in_flight += 1
        self.sequences += lease.request.sequences
        if not lease.prefilled:
            self.queued_tokens += lease.prompt_tokens
        self.transfers += lease.transferring
        self.kv_tokens += lease.kv_tokens
        self.remaining_tokens += lease.remaining_tokens
        self.streams += lease.streamed

    def prefilled(self, lease: Lease) -> None:
        """The first output was seen: its prompt no longer waits."""
        lease.prefilled = True
        self.queued_tokens -= lease.prompt_tokens
        self.keeping += lease.prefill_only

    def transferred(self, lease: Lease) -> None:
        """Its KV has come from the other worker."""
        lease.transferring = False
        self.transfers -= 1

    def correct_prompt(self, lease: Lease, prompt_tokens: int) -> None:
        """The engine said how long the prompt really is."""
        delta = prompt_tokens - lease.prompt_tokens
        lease.prompt_tokens = prompt_tokens
        self.kv_tokens += delta
        if not lease.prefilled:
            self.queued_tokens += delta

    def generated(self, lease: Lease, total_tokens: int) -> None:
        """The lease has produced `total_tokens` so far (an absolute count, so a repeat does no harm)."""
        before = lease.remaining_tokens
        delta = total_tokens - lease.generated_tokens
        lease.generated_tokens = total_tokens
        self.kv_tokens += delta
        self.remaining_tokens += lease.remaining_tokens - before

    def generated_all(self, counts: Iterable[tuple[Lease, int]]) -> None:
        """`generated` of many leases at once, for studies: looked at one by one they would cost more than all
        else."""
        kv_tokens = remaining_tokens = 0
        for lease, total_tokens in counts:
            before = lease.remaining_tokens
            kv_tokens += total_tokens - lease.generated_tokens
            lease.generated_tokens = total_tokens
            remaining_tokens += lease.remaining_tokens - before
        self.kv_tokens += kv_tokens
        self.remaining_tokens += remaining_tokens

    def settle(self, lease: Lease) -> None:
        self.leases.pop(lease, None)
        self.in_flight -= 1
        self.sequences -= lease.request.sequences
        self.kv_tokens -= lease.kv_tokens
        self.remaining_tokens -= lease.remaining_tokens
        self.streams -= lease.streamed
        self.keeping -= lease.keeps
        self.transfers -= lease.transferring
        if not lease.prefilled:
            self.queued_tokens -= lease.prompt_tokens
        if (
            self.in_flight < 0
            or self.sequences < 0
            or self.kv_tokens < 0
            or self.queued_tokens < 0
            or self.remaining_tokens < 0
            or self.transfers < 0
            or self.keeping < 0
        ):
            raise InternalError(f"an account fell below zero when settling {lease!r}: {self!r}")

    @property
    def working(self) -> bool:
        """Whether the engine has something to do, rather than only KV to keep."""
        return self.in_flight > self.keeping

    @property
    def idle(self) -> bool:
        return not (self.in_flight or self.sequences or self.kv_tokens or self.queued_tokens)

    def __repr__(self) -> str:
        return (
            f"<Mirror [{self.in_flight} in flight | {self.kv_tokens} KV tokens | "
            f"{self.queued_tokens} queued]>"
        )
