"""What holds for the table of every policy: its own rule picks from it what the policy picks."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.explain import Explains, Table, decide
from router.core.policy import Choice, Policy
from router.core.request import Request
from router.core.worker import StepModel, WorkerView
from router.policies import POLICIES, Shape
from tests.policies.examples import NOW, FrozenWorker, idle, place, policy, varied
from tests.policies.prefix_examples import Fleet, asking, tokens
from tests.policies.rank_examples import FrozenRank, batch, fleets, queues
from tests.policies.test_contract import calls, pools

ONE_AT_A_TIME = [spec.name for spec in POLICIES.values() if spec.shape is Shape.ONE]
STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)
UNITS = ("_s", "_tokens", "_requests", "_sequences", "_slots", "_share", "_turns", "_bytes")
PLAIN = frozenset({"warmup", "capacity", "place", "turn", "probability", "copies"})
"""Terms without a unit: factors, places in an order, turns and shares."""


def table_of(asked: object, one: Request, workers: Sequence[WorkerView], now: float = NOW) -> Table:
    assert isinstance(asked, Explains)
    table = asked.explain(one, workers, now)
    assert asked.explain(one, workers, now) == table
    assert [row.worker for row in table.rows] == [w.name for w in workers]
    return table


def assert_same(choice: Choice | None, table: Table) -> None:
    row = decide(table)
    if choice is None:
        assert row is None
        return
    assert row is not None
    assert (row.worker, row.total, row.reason) == (choice.worker, choice.cost, choice.reason)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_explains_itself_in_its_unit(name: str) -> None:
    table = table_of(policy(name), varied(1), idle(3))
    assert table.unit == POLICIES[name].cost_unit
    for row in table.rows:
        assert row.reason
        for term in row.terms:
            assert term in PLAIN or term.endswith(UNITS), term


@pytest.mark.parametrize("name", ONE_AT_A_TIME)
@settings(max_examples=60)
@given(pool=pools, call=calls, seed=st.integers(-(2**40), 2**40))
def test_the_table_picks_what_the_policy_picks(
    name: str, pool: list[FrozenWorker], call: Request, seed: int
) -> None:
    chooser = policy(name, seed)
    before = copy.deepcopy(chooser)
    assert_same(chooser.pick(call, pool, NOW), table_of(chooser, call, pool))
    assert chooser == before


@pytest.mark.parametrize("name", ONE_AT_A_TIME)
def test_the_table_picks_among_equals_what_the_policy_picks(name: str) -> None:
    chooser: Policy = policy(name)
    pool = idle(7)
    for number in range(50):
        one = varied(number)
        assert_same(chooser.pick(one, pool, NOW), table_of(chooser, one, pool))
        place(chooser, one, pool)


@pytest.mark.parametrize("name", [name for name in ("cache_aware", "preble", "joint") if name in POLICIES])
@pytest.mark.parametrize("step", [None, STEP])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_table_follows_prefixes_as_the_policy_does(name: str, step: StepModel | None, seed: int) -> None:
    source = random.Random(seed)
    fleet = Fleet(name, 5, step=step, seed=seed)
    now = NOW
    reasons = set()
    for number in range(200):
        now += source.expovariate(2.0)
        text = tokens(source.choice("abc"), 600) + tokens(chr(200 + number), source.choice([20, 900]))
        one = asking(text, number, max_tokens=source.choice([None, 8, 200]))
        table = table_of(fleet.policy, one, fleet.workers, now)
        choice = fleet.send(one, now)
        assert_same(choice, table)
        reasons.add(choice.reason)
        if len(fleet.running) > 30:
            fleet.end(fleet.running[0], now)
    assert len(reasons) > 1


@pytest.mark.parametrize("name", [spec.name for spec in POLICIES.values() if spec.shape is Shape.BATCH])
@settings(max_examples=60)
@given(pool=fleets, waiting=queues(), seed=st.integers(-(2**40), 2**40))
def test_a_policy_of_batches_tells_what_it_would_do_with_one(
    name: str, pool: list[FrozenRank], waiting: list[Request], seed: int
) -> None:
    chooser, call = batch(name, seed), waiting[0]
    table = table_of(chooser, call, pool)
    assert isinstance(chooser, Policy)
    assert_same(chooser.pick(call, pool, NOW), table)
    assert all((row.tier is None) is (row.reason == "no room") for row in table.rows)
