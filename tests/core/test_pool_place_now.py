"""Laws of placing at once: the way through an empty queue, without the queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import InternalError, NoWorker
from router.core.health import Sign
from router.core.lease import Outcome
from router.core.policy import Choice
from router.core.request import Request
from tests.core.fleet_examples import (
    MODEL,
    FirstPair,
    FirstWorker,
    NewestFirst,
    Nobody,
    assert_idle,
    joined,
    pool,
    request,
)


class FailsWhenTold:
    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        raise ZeroDivisionError("a bug in a policy")


class FirstFailing(FailsWhenTold, FirstWorker):
    pass


class PairFailing(FailsWhenTold, FirstPair):
    pass


@pytest.mark.parametrize("policy", [FirstFailing(), PairFailing()], ids=["single", "pair"])
def test_a_policy_that_fails_when_it_is_told_leaves_no_lease_on_either_side(policy: object) -> None:
    made, partner = joined(pool("a", policy=policy, in_flight=1), pool("p1"))
    for _ in range(2):  # a second time: the only place in flight was given back
        with pytest.raises(ZeroDivisionError):
            made.place_now(request(split=True), 1.0)
        made.submit(request(split=True), 1.0)
        with pytest.raises(ZeroDivisionError):
            made.assign(1.0)
    assert_idle(made)
    assert_idle(partner)


def test_a_policy_that_invents_a_worker_is_found_out_at_once() -> None:
    class Inventor:
        def pick(self, request: Request, workers: object, now: float) -> Choice:
            return Choice(request.id, "nobody")

    made = pool("a", policy=Inventor())
    with pytest.raises(InternalError, match="nobody"):
        made.place_now(request(), 1.0)
    assert_idle(made)


def test_what_can_be_placed_at_once_takes_no_room_among_what_waits() -> None:
    made = pool("a", max_queued=0, queued_bytes=10)
    lease = made.place_now(request(body_bytes=1_000), 1.0)
    assert lease is not None
    made.release(lease, Outcome.OK, 2.0)
    assert_idle(made)


def test_who_comes_later_never_overtakes_one_that_waits() -> None:
    made = pool("a", policy=Nobody())
    made.submit(request(), 1.0)
    made.use(FirstWorker(), "first")
    assert made.place_now(request(), 2.0) is None
    assert len(made.assign(2.0)) == 1
    assert made.place_now(request(), 3.0) is not None


def test_nothing_is_placed_at_once_for_a_policy_that_sees_the_whole_queue() -> None:
    assert pool("a", policy=NewestFirst()).place_now(request(), 1.0) is None


def test_a_pair_is_placed_at_once_on_both_sides_or_not_at_all() -> None:
    decode, prefill = joined(pool("d", policy=FirstPair()), pool("p1"))
    lease = decode.place_now(request(split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    decode.release(lease, Outcome.OK, 2.0)
    prefill.roster.sign("p1", Sign.REFUSED, 3.0)
    assert decode.place_now(request(split=True), 3.0) is None
    assert_idle(decode)
    assert_idle(prefill)


@given(
    late=st.booleans(),
    in_flight=st.integers(1, 4),
    calls=st.lists(
        st.fixed_dictionaries(
            {
                "sequences": st.integers(1, 4),
                "model": st.sampled_from([MODEL, "nobody's"]),
                "pinned": st.sampled_from([None, "a", "z"]),
                "avoid": st.frozensets(st.sampled_from("ab")),
            }
        ),
        max_size=8,
    ),
)
def test_placing_at_once_is_the_way_through_an_empty_queue(
    late: bool, in_flight: int, calls: list[dict[str, Any]]
) -> None:
    quick, slow = (pool("a", "b", slots=3, late_binding=late, in_flight=in_flight) for _ in range(2))
    for fields in calls:
        asked = request(**fields)
        lease = quick.place_now(asked, 1.0)
        try:
            slow.submit(asked, 1.0)
        except NoWorker:
            assert lease is None
            continue
        placed = slow.assign(1.0)
        slow.withdraw(asked.id)
        assert [one.worker for one in placed] == ([] if lease is None else [lease.worker])
        assert repr(quick) == repr(slow)
        assert [w.mirror.kv_tokens for w in quick.roster] == [w.mirror.kv_tokens for w in slow.roster]
