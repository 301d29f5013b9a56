"""Counts of HTTP requests as vLLM's web instrumentation keeps them.

Separate from the engine's account: this one is about routes, and a crash of the engine clears both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.mock.account import Histogram
from engines.mock.wire import Request

FINE_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0,
    2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
COARSE_BUCKETS = (0.1, 0.5, 1.0)

UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Routes that the instrumentation leaves out."""


@dataclass(slots=True)
class Sizes:
    """Number and sum of body sizes of one route."""

    created: float
    count: int = 0
    sum: int = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.sum += size


@dataclass(slots=True)
class HttpAccount:
    """Series by route, in the order in which they first appeared.

    Attributes:
        requests: (route, method, status class) to count and creation date.
        durations: (route, method) to histogram and creation date.
    """

    requests: dict[tuple[str, str, str], Sizes] = field(default_factory=dict)
    request_sizes: dict[str, Sizes] = field(default_factory=dict)
    response_sizes: dict[str, Sizes] = field(default_factory=dict)
    all_durations: Histogram = field(default_factory=lambda: Histogram(FINE_BUCKETS))
    durations: dict[tuple[str, str], tuple[Histogram, float]] = field(default_factory=dict)

    def observe(self, request: Request, duration_s: float, unix_now: float) -> None:
        """Count one answered request."""
        if request.status is None or request.path in UNCOUNTED:
            return
        # A path that no route knows is counted under one name: the label set stays bounded.
        path = "none" if request.status == 404 else request.path
        method = request.scope["method"]
        status = f"{request.status // 100}xx"
        self.requests.setdefault((path, method, status), Sizes(unix_now)).add(1)
        self.request_sizes.setdefault(path, Sizes(unix_now)).add(len(request.body))
        self.response_sizes.setdefault(path, Sizes(unix_now)).add(request.sent_bytes)
        self.all_durations.observe(duration_s)
        histogram, _ = self.durations.setdefault((path, method), (Histogram(COARSE_BUCKETS), unix_now))
        histogram.observe(duration_s)
