"""The names of what is counted of split requests: their hand-overs, and how those fail.

Separate from `families` because a fleet without prefill and decode workers shows none of them but zeros.
"""

from __future__ import annotations

from router.telemetry.series import CounterFamily, HistogramFamily

TRANSFER_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
)  # fmt: skip
"""From a transfer within one host to the longest that a lease allows."""


class HandoverFamilies:
    """Of requests that one worker prefills and another decodes."""

    def __init__(self) -> None:
        # One statement for each metric: long, and cut in two no shorter to read.
        self.split = CounterFamily(
            "pointsman_split_requests_total",
            "Requests whose prefill was sent to one worker and whose decode to another.",
            ("model",),
        )
        self.unsplit = CounterFamily(
            "pointsman_unsplit_requests_total",
            "Requests of a split model that one worker served whole, and why.",
            ("model", "reason"),
        )
        self.split_refused = CounterFamily(
            "pointsman_split_refused_total",
            "Requests that could not be split and that nobody may serve whole.",
            ("model", "reason"),
        )
        self.prefill = HistogramFamily(
            "pointsman_prefill_seconds",
            "Prefill leg sent to its whole answer.",
            TRANSFER_BOUNDS_S,
            ("model",),
        )
        self.pool_wait = HistogramFamily(
            "pointsman_prompt_pool_wait_seconds",
            "Prefilled to a decode worker chosen.",
            TRANSFER_BOUNDS_S,
            ("model",),
        )
        self.transfer = HistogramFamily(
            "pointsman_transfer_seconds",
            "Decode leg sent to its first data event: the transfer of the KV and one decode step.",
            TRANSFER_BOUNDS_S,
            ("model",),
        )
        self.pool_expired = CounterFamily(
            "pointsman_prompt_pool_expired_total",
            "Prefilled requests for which no decode worker had room before their KV could be dropped.",
            ("model",),
        )
        self.handover_failures = CounterFamily(
            "pointsman_handover_failures_total",
            "Legs of split requests that failed before commit, by leg and kind of failure.",
            ("model", "leg", "reason"),
        )
        self.handover_retries = CounterFamily(
            "pointsman_handover_retries_total",
            "Handles offered to another decode worker, because the first took no connection.",
            ("model",),
        )
        self.reprefills = CounterFamily(
            "pointsman_reprefills_total",
            "Prompts prefilled again, because a leg failed.",
            ("model", "reason"),
        )
        self.legs_cancelled = CounterFamily(
            "pointsman_legs_cancelled_total",
            "Legs that were ended by the router: their client had left, or the other leg had failed.",
            ("leg", "reason"),
        )
        self.releases = CounterFamily(
            "pointsman_handover_releases_total",
            "KV of abandoned hand-overs: released (the engine was told), dropped (it took it and was cut), "
            "stranded (it stays until its lease ends).",
            ("outcome",),
        )
