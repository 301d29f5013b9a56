"""Laws of where what waits should go, in a pool that decodes what others prefilled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.binding import Mode
from router.core.eligibility import Eligibility
from router.core.lease import Outcome
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView
from tests.core.fleet_examples import FirstPair, FirstWorker, NewestFirst, Nobody, request
from tests.core.pair_examples import OVERDUE_S, couple, join


class NeverNow:
    """A batch policy that leaves all queued."""

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        return []


class NoPair:
    def pick_pair(self, *_: object) -> None:
        return None


class Everybody(NeverNow):
    """A batch policy that places whom it sees, and remembers them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        self.seen += [one.id for one in waiting]
        return [Choice(one.id, workers[0].name) for one in waiting]


# --- nothing starves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Nobody, NeverNow, NoPair])
def test_what_waited_a_third_of_its_lease_goes_whatever_the_policy_says(policy: type) -> None:
    made = couple("p", "d", policy=policy(), mode=Mode.LATE, slots=1, max_transfers=1)
    made.pooled(1.0)
    made.pooled(1.0)
    assert made.decode.assign(0.9 + OVERDUE_S) == []
    leases = made.decode.assign(1.0 + OVERDUE_S)
    assert [lease.reason for lease in leases] == ["bypass", "bypass"]
    assert made.consumer("d").mirror.transfers == 2
    for lease in leases:
        made.decode.release(lease, Outcome.OK, 20.0)
    made.assert_idle()


def test_what_is_overdue_is_spread_by_what_runs_already() -> None:
    made = couple("p", "def", policy=Nobody())
    for _ in range(6):
        made.pooled(1.0)
    assert sorted(lease.worker for lease in made.decode.assign(1.0 + OVERDUE_S)) == list("ddeeff")


def test_a_policy_may_still_choose_for_what_is_overdue() -> None:
    made = couple("p", "de", policy=FirstWorker())
    made.pooled(1.0)
    (lease,) = made.decode.assign(1.0 + OVERDUE_S)
    assert (lease.worker, lease.reason) == ("d", "first")


def test_a_request_that_holds_no_kv_waits_for_the_policy_however_long() -> None:
    made = couple("p", "d", policy=Nobody())
    made.decode.submit(request(), 1.0)
    assert made.decode.assign(25.0) == []


# --- batches -------------------------------------------------------------------------------------------


def test_a_batch_policy_sees_only_what_it_may_place() -> None:
    policy = Everybody()
    made = couple("p", "d", policy=policy, max_transfers=1)
    ours = made.pooled()
    made.pooled()
    leases = made.decode.assign(1.0)
    assert [lease.request.id for lease in leases] == [ours.id], "there was room for one transfer"
    assert made.decode.queued == 1
    policy.seen.clear()
    assert made.decode.assign(1.0) == []
    assert policy.seen == [], "nothing can be placed, so nothing is asked"


def test_a_batch_policy_that_takes_the_newest_does_not_starve_the_oldest() -> None:
    made = couple("p", "d", policy=NewestFirst())
    old = made.pooled(1.0)
    made.pooled(8.0)
    placed = [lease.request.id for lease in made.decode.assign(1.0 + OVERDUE_S)]
    assert old.id in placed
    assert len(placed) == 2


# --- pairs ---------------------------------------------------------------------------------------------


class CrossedPair:
    """Wants the last prefill worker with the first decode worker, whatever they can read of each other."""

    def pick_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Choice:
        return Choice(request.id, decodes[0].name, prefill_worker=prefills[-1].name)


def test_a_policy_of_pairs_cannot_pair_two_revisions() -> None:
    made = couple("p", "d", policy=CrossedPair())
    join(made.prefill, "q", revision="2")
    join(made.decode, "e", revision="2")
    lease = made.decode.place_now(request(split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    assert (lease.prefill.worker, lease.worker) in {("p", "d"), ("q", "e")}


def test_a_policy_of_pairs_cannot_choose_one_that_rests_while_another_is_possible() -> None:
    made = couple("pq", "de", policy=CrossedPair())
    made.partners.pairs.failed(("q", 0), ("d", 0), 1.0)
    lease = made.decode.place_now(request(split=True), 1.0)
    assert lease is not None
    assert lease.prefill is not None
    assert (lease.prefill.worker, lease.worker) != ("q", "d")
    for pair in ("pd", "pe", "qe"):
        made.partners.pairs.failed((pair[0], 0), (pair[1], 0), 1.0)
    assert made.decode.place_now(request(split=True), 1.0) is not None, "all rest, so none does"


def test_a_pair_for_what_was_prefilled_has_its_producer_at_one_end() -> None:
    made = couple("pq", "d", policy=CrossedPair())
    waiting = made.pooled(avoid=frozenset("q"))
    (lease,) = made.decode.assign(1.0)
    assert lease.prefill is not None
    assert lease.prefill.worker == "p"
    assert made.producer("p").in_flight == 1
    assert waiting.id == lease.request.id
    made.decode.release(lease, Outcome.OK, 2.0)
    made.assert_idle()


def test_a_request_that_is_served_whole_is_charged_to_one_worker_by_a_policy_of_pairs_too() -> None:
    made = couple("p", "d", policy=FirstPair())
    lease = made.decode.place_now(request(), 1.0)
    assert lease is not None
    assert lease.prefill is None
    assert not lease.transferring
    assert made.producer("p").in_flight == 0
    made.decode.release(lease, Outcome.OK, 2.0)
    made.assert_idle()


def test_what_was_prefilled_by_a_process_that_is_gone_does_not_wait_for_a_pair() -> None:
    made = couple("p", "d", policy=FirstPair())
    made.pooled()
    made.prefill.roster._reincarnate(made.producer("p"), 1.0, "restarted")
    (lease,) = made.decode.assign(1.0)
    assert lease.reason == "bypass"
    made.decode.release(lease, Outcome.FAILED, 2.0)
    made.assert_idle()


# --- a long queue --------------------------------------------------------------------------------------


def test_a_full_pool_is_asked_once_for_each_kind_of_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = couple("p", "d", max_transfers=1)
    made.decoding()
    for _ in range(20):
        made.pooled()
    asked = []
    suited_to = Eligibility.suited_to
    monkeypatch.setattr(
        Eligibility, "suited_to", lambda self, one: asked.append(one.id) or suited_to(self, one)
    )
    assert made.decode.assign(1.0) == []
    assert len(asked) == 1


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from(["", "d", "e"])), max_size=12))
def test_remembering_who_was_full_changes_no_placement(wishes: list[tuple[int, bool, str]]) -> None:
    """Against a pool that asks for every request anew, which places one at a time."""

    def story(*, together: bool) -> list[tuple[str, str]]:
        made = couple("pq", "def", mode=Mode.LATE, slots=2, max_transfers=1)
        placed = []
        for number, (sequences, split, avoid) in enumerate(wishes):
            fields = {"request_id": f"{number}", "sequences": sequences, "avoid": frozenset(avoid)}
            asked = made.prefilled(**fields) if split else request(**fields)  # type: ignore[arg-type]  # of any field
            if together:
                made.decode.submit(asked, 1.0)
            else:
                placed.append(made.decode.place_now(asked, 1.0))
        leases = made.decode.assign(1.0) if together else placed
        return [(lease.request.id, lease.worker) for lease in leases if lease is not None]

    assert story(together=True) == story(together=False)
