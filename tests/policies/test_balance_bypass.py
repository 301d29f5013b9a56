"""Laws of BalanceRoute in a pool that places requests as they come."""

from __future__ import annotations

import pytest

from router.core.binding import Mode
from router.core.lease import Outcome
from router.core.pool import Pool
from router.policies import build
from tests.core.fleet_examples import NewestFirst, assert_idle, pool, request
from tests.core.pair_examples import OVERDUE_S, couple


def placed_early(policy: str, *, slots: int | None = 2) -> Pool:
    return pool("a", "b", policy=build(policy, {}, 0), slots=slots, mode=Mode.EARLY)


@pytest.mark.parametrize(
    ("policy", "reason"), [("balance_route_0", "bypass"), ("balance_route_h", "fallback:low_use")]
)
def test_a_request_that_comes_is_placed_by_its_own_score_without_a_round(policy: str, reason: str) -> None:
    made = placed_early(policy)
    heavy = made.place_now(request(prompt_tokens=1_000), 0.0)
    light = made.place_now(request(prompt_tokens=10), 0.0)
    assert heavy is not None
    assert light is not None
    assert heavy.reason == light.reason == reason
    assert heavy.worker != light.worker
    # What was dispatched counts at once: the next one fills the gap below the heavy one.
    third = made.place_now(request(prompt_tokens=500), 0.0)
    assert third is not None
    assert third.worker == light.worker
    for lease in (heavy, light, third):
        made.release(lease, Outcome.OK, 1.0)
    assert_idle(made)


def test_nobody_is_sent_beyond_known_slots_although_binding_is_early() -> None:
    made = placed_early("balance_route_0", slots=1)
    leases = [made.place_now(request(), 0.0) for _ in range(2)]
    made.submit(request("late"), 0.0)
    assert made.assign(0.0) == []
    assert leases[0] is not None
    made.release(leases[0], Outcome.OK, 1.0)
    (lease,) = made.assign(1.0)
    assert (lease.request.id, lease.worker, lease.reason) == ("late", leases[0].worker, "bypass")


def test_without_a_bypass_of_its_own_a_policy_decides_in_rounds_also_then() -> None:
    made = pool("a", "b", policy=NewestFirst(), slots=2, mode=Mode.EARLY)
    assert made.decides_by_batch
    assert made.place_now(request(), 0.0) is None


def test_where_binding_is_late_all_that_wait_are_seen_at_once() -> None:
    made = pool("a", policy=build("balance_route_0", {}, 0), slots=1, late_binding=True)
    assert made.decides_by_batch
    assert made.place_now(request(), 0.0) is None


def test_what_is_overdue_goes_also_where_no_slot_is_free() -> None:
    made = couple("p", "de", policy=build("balance_route_0", {}, 0), mode=Mode.LATE, slots=1)
    for _ in range(3):
        made.pooled(1.0)
    assert len(made.decode.assign(1.0)) == 2
    assert made.decode.assign(2.0) == []
    (lease,) = made.decode.assign(1.0 + OVERDUE_S)
    assert lease.reason == "bypass"
