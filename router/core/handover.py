"""KV that a prefill worker keeps until a decode worker has read it.

Separate from the lease because it outlives one: a decode worker that took no connection gives it back, and
the next one may still have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from router.core.lease import Lease


class Handover(msgspec.Struct, eq=False):
    """One prefilled request, as far as placement is concerned.

    Attributes:
        prefill: the lease at the producer; it stays charged until the KV was read.
        revision: of the producer; only decode workers of the same one understand its KV.
        ready: when the prefill leg answered (s).
        overdue: from then on it no longer waits for a free slot: a decode engine that has it in its own queue
            keeps the producer's hold alive, and this router cannot.
        dispatch_by: after this time the producer may have dropped the KV; the handle is not used any more.
    """

    prefill: Lease
    revision: str
    ready: float
    overdue: float
    dispatch_by: float

    @property
    def producer(self) -> str:
        return self.prefill.worker

    def __repr__(self) -> str:
        lease = self.prefill
        return f"<Handover from {lease.worker}#{lease.incarnation} [{lease.prompt_tokens} tokens]>"
