"""The router places evenly and follows prefixes: whole, with four mock engines, under four kinds of traffic.

`python -m benchmarks.routing` plays the same on sockets, beside other routers.
"""

from __future__ import annotations

import pytest

from benchmarks.routing.scenarios import SCENARIOS
from tests.shell.routing_quality import quality

HITS = {"A": 0.92, "B": 0.70, "C": 0.92, "D": 0.0}
"""The most that any router can find: all but the first of its kind, and what is new in each turn."""
REQUESTS = {"A": 100, "B": 200, "C": 200, "D": 100}


@pytest.mark.parametrize("policy", ["cache_aware", "joint", "preble"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_worker_is_far_above_the_mean_and_what_is_cached_is_found(policy: str, scenario: str) -> None:
    bounds, found = SCENARIOS[scenario], quality(scenario, REQUESTS[scenario], policy=policy)
    assert len(found.turns) == REQUESTS[scenario]
    assert found.busiest <= bounds.busiest
    assert found.hits >= 0.9 * HITS[scenario]
    if bounds.stays is not None:
        assert found.stays is not None
        assert found.stays >= bounds.stays


def test_what_is_shown_can_be_bad() -> None:
    """Blind turns, to know that the figures above are figures."""
    found = quality("B", 100, policy="round_robin")
    assert found.stays is not None
    assert found.stays < 0.5
    assert found.hits < 0.5
    pure = {"cache_threshold": 0, "balance_abs_threshold": 1_000_000}
    assert quality("A", 100, policy="cache_aware", policy_params=pure).busiest == 4.0
