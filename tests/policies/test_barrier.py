"""Who belongs to a group, and what its loads are measured in."""

from __future__ import annotations

import pytest

from router.core.worker import StepModel
from router.policies.barrier import groups_of
from tests.policies.rank_examples import group, rank

FAST = StepModel(0.0, 0.0, 0.010, 1e-4, 1e-7)
SLOW = StepModel(0.0, 0.0, 0.020, 1e-4, 2e-7)


def test_members_that_were_not_offered_belong_to_the_group() -> None:
    members = group(10, 20, 30)
    (made,) = groups_of(members[:1])
    assert [m.name for m in made.members] == ["w0", "w1", "w2"]


def test_groups_are_kept_apart_and_the_rest_is_one_group() -> None:
    offered = [rank("a", barrier_group="g"), rank("b"), rank("c", barrier_group="h"), rank("d")]
    assert [[m.name for m in g.members] for g in groups_of(offered)] == [["a"], ["b", "d"], ["c"]]


def test_uncalibrated_loads_are_tokens_at_capacity_1() -> None:
    (made,) = groups_of([rank("a", capacity=2.0, step=FAST), rank("b")])
    assert [unit.load(1_000, 5) for unit in made.units] == [500, 1_000]


def test_calibrated_loads_are_seconds_of_a_step() -> None:
    (made,) = groups_of([rank("a", step=FAST), rank("b", step=SLOW)])
    for unit, step in zip(made.units, (FAST, SLOW), strict=True):
        assert unit.load(50_000, 8) * made.scale == pytest.approx(step.step_s(8, 50_000))
    assert [unit.tokens_per_sequence for unit in made.units] == [1_000, 500]


def test_members_that_are_alike_are_compared_in_their_own_tokens() -> None:
    (made,) = groups_of([rank("a", step=FAST), rank("b", step=FAST)])
    assert [unit.per_token for unit in made.units] == [1.0, 1.0]
    gap = made.units[0].load(50_000, 8) - made.units[1].load(20_000, 3)
    assert gap * made.scale == pytest.approx(FAST.step_s(8, 50_000) - FAST.step_s(3, 20_000))
    (tokens,) = groups_of([rank("a", capacity=0.5), rank("b", capacity=0.5)])
    assert (tokens.units[0].per_token, tokens.scale) == (1.0, 2.0)


def test_where_reads_of_kv_cost_nothing_tokens_are_the_unit() -> None:
    (made,) = groups_of([rank("a", step=FAST), rank("b", step=StepModel(0, 0, 0.01, 0, 0.0))])
    assert ([unit.per_token for unit in made.units], made.scale) == ([1.0, 1.0], 1.0)
