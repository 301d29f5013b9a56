"""What a NIXL connector counts, and the metric families it is printed as.

Separate from the engine's account because only an engine with this connector has these series. Names,
buckets and which side counts what are vLLM 0.32's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from engines.mock.account import Histogram
from engines.mock.exposition import Counter, Family, HistogramFamily, Series
from engines.model.handover import KeptBlocks

_POST_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES_BUCKETS = tuple(float(1 << power) for power in range(11, 35, 2))
_DESCRIPTOR_BUCKETS = (
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0,
)  # fmt: skip

POST_S = 5e-4
"""Time to post a read: between 0.1 and 0.6 ms in the recorded pair. Part of no transfer."""


@dataclass(slots=True)
class NixlAccount:
    """Counted by the engine that reads, but for the two counters of `KeptBlocks`.

    Attributes:
        failed_transfers: reads that failed; handshakes and notifications that failed count here too.
        failed_notifications: notifications that failed, alone.
    """

    transfer_s: Histogram = field(default_factory=lambda: Histogram(_POST_BUCKETS[1:]))
    post_s: Histogram = field(default_factory=lambda: Histogram(_POST_BUCKETS))
    transferred_bytes: Histogram = field(default_factory=lambda: Histogram(_BYTES_BUCKETS))
    descriptors: Histogram = field(default_factory=lambda: Histogram(_DESCRIPTOR_BUCKETS))
    failed_transfers: int = 0
    failed_notifications: int = 0

    def transferred(self, duration_s: float, size_bytes: int, descriptors: int) -> None:
        """Count a read that came to its end."""
        self.transfer_s.observe(duration_s)
        self.post_s.observe(POST_S)
        self.transferred_bytes.observe(size_bytes)
        self.descriptors.observe(descriptors)

    def notification_failed(self) -> None:
        """Count a notification that did not reach its peer."""
        self.failed_transfers += 1
        self.failed_notifications += 1

    def families(self, kept: KeptBlocks, labels: Mapping[str, str], created: float) -> Iterator[Family]:
        """Yield the families in the order in which vLLM makes them."""
        for name, text, histogram in (
            ("xfer_time_seconds", "Duration of KV transfers (s).", self.transfer_s),
            ("post_time_seconds", "Time to post a KV transfer (s).", self.post_s),
            ("bytes_transferred", "Bytes of a KV transfer.", self.transferred_bytes),
            ("num_descriptors", "Descriptors of a KV transfer.", self.descriptors),
        ):
            yield HistogramFamily(f"vllm:nixl_{name}", text, labels, histogram, created)
        reads: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("failed_transfers", "KV transfers that failed.", lambda: self.failed_transfers),
            ("failed_notifications", "Notifications that failed.", lambda: self.failed_notifications),
            ("kv_expired_reqs", "Prefills whose KV nobody read in time.", lambda: kept.expired),
            ("notifications_after_expiry", "Reads of KV that was not kept.", lambda: kept.late_releases),
        )
        for name, text, read in reads:
            yield Counter(f"vllm:nixl_num_{name}", text, [Series(labels, read)], created)
