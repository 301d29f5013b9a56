"""Laws of policies that decide without effect: they see what was seen, learn what happened, harm nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from router.core.errors import InternalError
from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from router.core.request import Request
from router.core.seat import Seat
from router.core.shadows import MAX_SHADOWS, Shadow, Verdict
from router.core.worker import WorkerView
from tests.core.fleet_examples import FirstPair, FirstWorker, assert_idle, joined, pool, request


class Priced:
    """Prefers the lowest price; a worker without one is out of the question. Remembers what it is told."""

    def __init__(self, prices: dict[str, float], tiers: dict[str, int] | None = None) -> None:
        self._prices = prices
        self._tiers = tiers or {}
        self.loads: list[list[int]] = []
        self.told: list[tuple[str, str, float, str]] = []
        self.ended: list[Outcome] = []

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        self.loads.append([worker.in_flight for worker in workers])
        rows = [self._row(worker.name) for worker in workers]
        return Table(unit="coins", seed=0, sequence=request.sequence, rows=rows)

    def _row(self, name: str) -> Row:
        price = self._prices.get(name)
        tier = None if price is None else self._tiers.get(name, 0)
        return Row(worker=name, total=price or 0.0, tier=tier, reason="price")

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        raise AssertionError("a shadow is asked for its table")

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        self.told.append((request.id, choice.worker, choice.cost, choice.reason))

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        self.ended.append(outcome)


def shadowed(made: Pool, *policies: Any, sample: float = 1.0) -> list[Shadow]:
    shadows = [Shadow(Seat(f"s{index}", policy), "coins") for index, policy in enumerate(policies)]
    made.chooser.shadow(shadows, sample)
    return shadows


def place(made: Pool, one: str, **fields: Any) -> Lease:
    made.submit(request(one, **fields), 1.0)
    (lease,) = made.assign(1.0)
    return lease


@pytest.mark.parametrize(
    ("prices", "tiers", "verdict", "regret"),
    [
        ({"a": 1.0, "b": 2.0}, {}, Verdict.AGREED, 0.0),
        ({"a": 5.0, "b": 2.0}, {}, Verdict.DEARER, 3.0),
        ({"a": 5.0, "b": 9.0}, {"a": 1}, Verdict.OUTRANKED, 0.0),
        ({"b": 2.0}, {}, Verdict.REFUSED, 0.0),
        ({}, {}, Verdict.REFUSED, 0.0),
    ],
)
def test_a_shadow_says_what_the_decision_costs_in_its_own_unit(
    prices: dict[str, float], tiers: dict[str, int], verdict: Verdict, regret: float
) -> None:
    made = pool("a", "b")
    (shadow,) = shadowed(made, Priced(prices, tiers))
    assert place(made, "1").worker == "a"
    assert shadow.verdicts == {verdict: 1}
    assert shadow.regret == regret


def test_of_equals_some_are_agreed_on_and_the_others_cost_nothing() -> None:
    made = pool("a", "b", in_flight=1000)
    (shadow,) = shadowed(made, Priced({"a": 1.0, "b": 1.0}))
    for number in range(200):
        place(made, str(number))
    assert set(shadow.verdicts) == {Verdict.AGREED, Verdict.EQUAL}
    assert 60 < shadow.verdicts[Verdict.EQUAL] < 140
    assert shadow.regret == 0.0


def test_a_shadow_sees_the_loads_before_the_charge_and_learns_what_happened() -> None:
    policy = Priced({"a": 5.0, "b": 2.0})
    made = pool("a", "b")
    shadowed(made, policy)
    first = place(made, "1")
    place(made, "2")
    assert policy.loads == [[0, 0], [1, 0]]
    made.release(first, Outcome.FAILED, 2.0)
    assert policy.told == [("1", "a", 5.0, "price"), ("2", "a", 5.0, "price")]
    assert policy.ended == [Outcome.FAILED]


def test_a_shadow_changes_no_choice() -> None:
    bare, watched = pool("a", "b"), pool("a", "b")
    shadowed(watched, Priced({"b": 0.0}), Priced({"a": 1.0}))
    for number in range(20):
        asked = request(str(number))
        leases = []
        for made in (bare, watched):
            made.submit(asked, 1.0)
            leases += made.assign(1.0)
        assert (leases[0].worker, leases[0].cost) == (leases[1].worker, leases[1].cost)
    assert bare.chooser.counts == watched.chooser.counts


@pytest.mark.parametrize("where", ["explain", "committed", "settled"])
def test_a_shadow_that_fails_is_dropped_and_harms_nobody(where: str) -> None:
    def fail(*_args: Any, **_named: Any) -> Any:
        raise ZeroDivisionError

    bad, good = Priced({"a": 1.0}), Priced({"a": 1.0})
    setattr(bad, where, fail)
    made = pool("a")
    dropped: list[tuple[str, Exception]] = []
    made.chooser.on_dropped = lambda name, error: dropped.append((name, error))
    shadowed(made, bad, good)
    for number in range(3):
        made.release(place(made, str(number)), Outcome.OK, 2.0)
    assert [name for name, _ in dropped] == ["s0"]
    assert isinstance(dropped[0][1], ZeroDivisionError)
    assert [shadow.seat.name for shadow in made.chooser.shadows] == ["s1"]
    assert len(good.told) == 3
    assert_idle(made)


@pytest.mark.parametrize(("sample", "low", "high"), [(0.0, 0, 0), (0.25, 60, 140), (1.0, 400, 400)])
def test_a_sample_is_judged_and_all_is_told(sample: float, low: int, high: int) -> None:
    policy = Priced({"a": 1.0})
    made = pool("a", in_flight=1000)
    (shadow,) = shadowed(made, policy, sample=sample)
    for number in range(400):
        place(made, str(number))
    assert low <= shadow.verdicts.total() <= high
    assert len(policy.told) == 400


def test_what_a_shadow_costs_is_measured() -> None:
    made = pool("a")
    (shadow,) = shadowed(made, Priced({"a": 1.0}))
    ticks = iter(range(100))
    made.chooser.shadows.clock = lambda: float(next(ticks))
    place(made, "1")
    assert shadow.busy_s == 2.0  # a second to judge, and one to be told


def test_there_are_only_so_many_shadows_and_each_can_explain_itself() -> None:
    made = pool("a")
    with pytest.raises(InternalError, match="more than"):
        shadowed(made, *[Priced({}) for _ in range(MAX_SHADOWS + 1)])
    with pytest.raises(InternalError, match="no table"):
        Shadow(Seat("first", FirstWorker()), "")


def test_of_a_pair_the_shadow_of_single_workers_judges_its_own_side() -> None:
    decode, prefill = joined(pool("d1", "d2", policy=FirstPair()), pool("p1", "p2"))
    (shadow,) = shadowed(decode, Priced({"d1": 1.0, "d2": 0.5}))
    assert place(decode, "1", split=True).worker == "d1"
    assert shadow.verdicts == {Verdict.DEARER: 1}
    assert shadow.regret == 0.5
    assert not prefill.chooser.counts


def test_the_other_leg_is_judged_by_the_shadows_of_its_pool() -> None:
    decode, prefill = joined(pool("d1"), pool("p1", "p2"))
    policy = Priced({"p1": 3.0, "p2": 1.0})
    (shadow,) = shadowed(prefill, policy)
    lease = place(decode, "1", split=True)
    assert lease.prefill is not None
    assert lease.prefill.worker == "p1"
    assert shadow.regret == 2.0
    assert policy.told == [("1", "p1", 3.0, "price")]
    decode.release(lease, Outcome.OK, 2.0)
    assert policy.ended == [Outcome.OK]
