"""Laws of policies that choose two workers: for whom they do, and what they know of the other side."""

from __future__ import annotations

from router.core.lease import Outcome
from router.core.pool import Pool
from router.core.prefixes import Prefixes
from tests.core.fleet_examples import (
    FirstPair,
    FirstWorker,
    NewestFirst,
    assert_idle,
    joined,
    pool,
    request,
)


class Both(FirstWorker, FirstPair):
    """Chooses pairs where two workers are wanted at once, and one worker otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: Prefixes | None = None
        self.bound = 0

    def bind_producers(self, prefixes: Prefixes | None) -> None:
        self.producers = prefixes
        self.bound += 1


class Follows(FirstWorker):
    def bind(self, prefixes: Prefixes) -> None:
        self.prefixes = prefixes


def pair(decode: object, prefill: object | None = None) -> tuple[Pool, Pool]:
    return joined(pool("d1", "d2", policy=decode), pool("p1", "p2", policy=prefill))


def test_whoever_can_do_both_chooses_pairs_where_two_workers_are_wanted_at_once() -> None:
    policy = Both()
    decode, prefill = pair(policy)
    lease = decode.place_now(request("split", split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    assert (lease.reason, lease.worker, lease.prefill.worker) == ("pair", "d1", "p1")
    alone = decode.place_now(request("whole"), 1.0)
    assert alone is not None
    assert (alone.reason, alone.prefill) == ("first", None)
    for held in (lease, alone):
        decode.release(held, Outcome.OK, 2.0)
    assert_idle(decode)
    assert_idle(prefill)


def test_the_other_pool_is_told_of_a_pair_that_it_did_not_choose() -> None:
    policy, other = Both(), FirstWorker()
    decode, _ = pair(policy, other)
    decode.chooser.use(policy, "both")
    lease = decode.place_now(request("r", split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    assert policy.committed_requests == [("r", False)]
    assert other.committed_requests == [("r", False)]
    assert lease.policy == lease.prefill.policy == "both"


def test_of_two_legs_each_pool_is_told_once_when_each_chooses_its_own() -> None:
    policy, other = FirstWorker(), FirstWorker()
    decode, _ = pair(policy, other)
    assert decode.place_now(request("r", split=True), 1.0) is not None
    assert policy.committed_requests == other.committed_requests == [("r", False)]


def test_who_chooses_pairs_sees_what_prefill_workers_hold_as_long_as_somebody_keeps_it() -> None:
    policy = Both()
    decode, prefill = pair(policy)
    known = [policy.producers is not None]
    for other in (Follows(), FirstWorker(), Follows()):
        prefill.use(other, "other")
        known.append(policy.producers is not None)
    assert known == [False, True, False, True]
    later = Both()
    decode.use(later, "later")
    assert later.producers is not None


def test_a_pool_without_producers_asks_for_one_worker() -> None:
    made = pool("a", policy=Both())
    lease = made.place_now(request(split=True), 1.0)
    assert lease is not None
    assert lease.reason == "first"


def test_a_policy_of_batches_alone_chooses_no_pairs() -> None:
    made = pool("a", policy=NewestFirst())
    assert not made.chooser.by_pairs(request(split=True))
