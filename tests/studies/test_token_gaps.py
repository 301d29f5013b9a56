"""Gaps between tokens add up to the time of the answers, however many steps pass at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.studies.simulation.copies import Copies
from router.studies.simulation.fleet import Delays, FleetPlan, Trouble
from router.studies.simulation.run import simulate
from router.studies.simulation.token_gaps import TokenGaps
from tests.studies.simulation_examples import calls, fleet, split_fleet


def with_room(plan: FleetPlan, blocks: int) -> FleetPlan:
    """The same with so many blocks in each engine."""
    pools = [
        replace(
            pool,
            workers=tuple(
                replace(w, engine=replace(w.engine, num_blocks=blocks, max_model_len=1_000))
                for w in pool.workers
            ),
        )
        for pool in plan.pools
    ]
    return replace(plan, pools=tuple(pools))


FLEETS = {
    "alone": fleet(3),
    "group": fleet(4, group="g"),
    "every step": fleet(3, delays=Delays(stretch_s=0.0)),
    "pair": split_fleet(),
    "preempting": with_room(fleet(2), 70),
    "frozen": fleet(2, troubles=[Trouble(0.5, "w0", "freeze"), Trouble(2.5, "w0", "thaw")]),
    "slowed": fleet(2, troubles=[Trouble(0.5, "w0", "slow", 7.0)]),
}


@pytest.mark.parametrize("name", FLEETS)
def test_gaps_are_the_time_from_the_first_token_to_the_last(name: str) -> None:
    result = simulate(FLEETS[name], calls(150, rate=60.0))
    assert {record.outcome for record in result.calls} == {"ok"}
    preempted = sum(engine.preemptions for engine in result.engines.values())
    assert (preempted > 0) is (name == "preempting")
    gaps = result.gaps
    assert gaps is not None
    assert gaps.count == sum(record.tokens - 1 for record in result.calls)
    spans = [(record.done or 0.0) - (record.first or 0.0) for record in result.calls]
    assert gaps.total_s == pytest.approx(math.fsum(spans))
    assert sum(gaps.counts.values()) == gaps.count


def test_a_hang_and_a_preemption_are_one_long_gap_each_and_not_part_of_a_mean() -> None:
    def longest_s(name: str) -> float:
        gaps = simulate(FLEETS[name], calls(150, rate=60.0)).gaps
        assert gaps is not None
        return gaps.longest_s

    assert longest_s("frozen") > 2.0
    assert longest_s("preempting") > 2 * longest_s("alone")


@given(
    lengths=st.lists(st.floats(1e-4, 0.5), min_size=1, max_size=30).map(sorted), sequences=st.integers(1, 40)
)
def test_steps_at_once_are_the_same_as_steps_one_by_one(lengths: list[float], sequences: int) -> None:
    ends, at = [], 3.0
    for length in lengths:
        at += length
        ends.append(at)
    together, single = TokenGaps(), TokenGaps()
    together.add_steps(3.0, ends, sequences)
    for before, end in zip([3.0, *ends], ends, strict=False):
        single.add(end - before, sequences)
    assert together.counts == single.counts
    assert together.count == single.count
    assert together.total_s == pytest.approx(single.total_s)
    assert together.longest_s == pytest.approx(single.longest_s)


@given(values=st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=200), share=st.floats(0.0, 1.0))
def test_a_quantile_is_right_to_the_width_of_a_bucket(values: list[float], share: float) -> None:
    gaps = TokenGaps()
    for value in values:
        gaps.add(value, 1)
    [found] = gaps.quantiles([share])
    exact = sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
    assert found == pytest.approx(exact, rel=0.013)


def test_an_answer_of_one_token_has_no_gap() -> None:
    gaps = TokenGaps()
    gaps.add(1.0, 0)
    assert gaps.distribution() is None
    assert gaps.quantiles([0.5]) == []


# --- copies ---------------------------------------------------------------------------------------------


def test_copies_count_how_often_a_block_lies_somewhere() -> None:
    copies = Copies()
    copies.look([{b"a", b"b"}, {b"a"}, set()])
    assert copies.mean == 1.5
    copies.look([{b"a"}, {b"a"}])
    assert copies.mean == 1.75
    copies.look([set(), set()])
    assert copies.samples == [1.5, 2.0]
    assert Copies().mean is None


def test_who_spreads_a_shared_prefix_has_it_everywhere() -> None:
    def mean(policy: str) -> float:
        found = simulate(fleet(4, policy=policy), calls(80, rate=5.0, shared=4_000)).copies
        assert found is not None
        return found

    assert mean("round_robin") > 1.5
    assert mean("cache_aware") < 1.3


def test_where_nothing_is_cached_there_are_no_copies() -> None:
    plan = fleet(2)
    pools = [
        replace(
            pool,
            workers=tuple(
                replace(w, engine=replace(w.engine, enable_prefix_caching=False)) for w in pool.workers
            ),
        )
        for pool in plan.pools
    ]
    assert simulate(replace(plan, pools=tuple(pools)), calls(20)).copies is None
