"""Laws of a prefill worker's budget: two marks, what holds KV, and what is stranded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.prefill_budget import BudgetSettings, PrefillBudget, Strand
from router.core.worker import Role, Worker
from tests.core.fleet_examples import request

CAPACITY = 1000


def worker(
    held: int = 0, *, usage: float | None = None, capacity: int | None = CAPACITY, taken: float = 0.0
) -> Worker:
    made = Worker(name="p", role=Role.PREFILL, configured_kv_tokens=capacity)
    if usage is not None:
        made.stats = EngineStats(taken=taken, kv_usage=usage)
    if held:
        hold(made, held)
    return made


def hold(made: Worker, tokens: int) -> Lease:
    lease = Lease(request(), made.name, made.incarnation, 0.0, tokens, 1)
    made.mirror.charge(lease)
    return lease


@pytest.mark.parametrize(("held", "opens"), [(850, True), (851, False), (2000, False)])
def test_a_worker_is_saturated_above_the_high_mark(held: int, opens: bool) -> None:
    budget, made = PrefillBudget(), worker(held)
    assert budget.open(made, 0.0) is opens
    assert budget.open(made, 0.0) is opens, "asked twice, it answers the same"
    assert budget.is_saturated(made) is not opens


@pytest.mark.parametrize("usage", [0.75, 0.80, 0.85])
def test_between_the_marks_a_worker_stays_what_it_was(usage: float) -> None:
    fresh, full = PrefillBudget(), PrefillBudget()
    made = worker(10, usage=0.9)
    assert not full.open(made, 0.0)
    made.stats = EngineStats(taken=0.0, kv_usage=usage)
    assert fresh.open(made, 0.0)
    assert not full.open(made, 0.0)
    made.stats = EngineStats(taken=0.0, kv_usage=0.749)
    assert full.open(made, 0.0)


@pytest.mark.parametrize(("held", "usage", "expected"), [(500, 0.3, 0.5), (300, 0.5, 0.5), (0, None, 0.0)])
def test_usage_is_the_larger_of_what_was_polled_and_what_is_known(
    held: int, usage: float | None, expected: float
) -> None:
    assert PrefillBudget().usage(worker(held, usage=usage), 0.0) == pytest.approx(expected)


def test_a_stale_scrape_says_nothing() -> None:
    budget, made = PrefillBudget(BudgetSettings(stale_s=0.75)), worker(100, usage=0.9, taken=10.0)
    assert not budget.open(made, 10.75)
    assert budget.open(made, 10.76)


def test_without_a_capacity_only_the_scrape_counts() -> None:
    budget = PrefillBudget()
    assert budget.open(worker(10**9, capacity=None), 0.0)
    assert not budget.open(worker(10, usage=0.9, capacity=None), 0.0)


def test_a_worker_that_holds_nothing_is_open_whatever_it_says() -> None:
    budget, made = PrefillBudget(), worker(usage=1.0)
    assert budget.open(made, 0.0)
    lease = hold(made, 5)
    assert not budget.open(made, 0.0)
    made.mirror.settle(lease)
    assert budget.open(made, 0.0)
    assert repr(budget) == "<PrefillBudget 0.75–0.85 [0 saturated | 0 tokens stranded]>"


def test_a_prompt_beyond_the_whole_budget_passes_alone() -> None:
    budget, made = PrefillBudget(), worker()
    assert budget.open(made, 0.0)
    hold(made, 5 * CAPACITY)
    assert not budget.open(made, 0.0)


# --- stranded hand-overs -----------------------------------------------------------------------------------


def test_stranded_kv_counts_until_the_end_of_its_lease() -> None:
    budget, made = PrefillBudget(), worker()
    budget.strand("p", 0, 900, until=30.0)
    assert not budget.open(made, 29.9), "it holds something, though no lease is left"
    assert budget.held([made], 29.9) == budget.stranded() == 900
    assert budget.open(made, 30.0)
    assert budget.stranded() == 0


def test_a_sweep_frees_what_has_ended_and_says_how_much() -> None:
    budget = PrefillBudget()
    budget.strand("p", 0, 100, until=20.0)
    budget.strand("p", 0, 200, until=10.0)
    budget.strand("q", 3, 400, until=10.0)
    assert [budget.sweep(now) for now in (9.9, 10.0, 10.0, 20.0)] == [0, 600, 0, 100]
    assert budget.stranded() == 0
    assert not budget._stranded, "a worker without stranded KV leaves nothing behind"


def test_kv_that_the_engine_let_go_early_is_freed_once() -> None:
    budget, made = PrefillBudget(), worker()
    first, second = (budget.strand("p", 0, tokens, until=30.0) for tokens in (500, 300))
    assert budget.recover(first)
    assert not budget.recover(first)
    assert budget.held_tokens(made, 0.0) == 300
    assert budget.sweep(30.0) == 300
    assert not budget.recover(second)


def test_stranded_kv_is_gone_with_its_incarnation() -> None:
    budget, made = PrefillBudget(), worker()
    strand = budget.strand("p", 0, 900, until=30.0)
    made.incarnation = 1
    assert budget.held_tokens(made, 0.0) == 0
    assert not budget.recover(strand)
    budget.strand("p", 1, 10, until=30.0)
    budget.strand("p", 0, 900, until=30.0)
    assert budget.held_tokens(made, 0.0) == 10, "a late word of the old process counts for nothing"


def test_a_new_incarnation_is_not_saturated_by_the_old_one() -> None:
    budget, made = PrefillBudget(), worker(900)
    assert not budget.open(made, 0.0)
    made.incarnation = 1
    assert not budget.is_saturated(made)
    assert budget.open(worker(800), 0.0) is False
    made.mirror = worker(800).mirror
    assert budget.open(made, 0.0), "between the marks, as one that was never saturated"


def test_a_removed_worker_leaves_nothing_behind() -> None:
    budget = PrefillBudget()
    budget.strand("p", 0, 900, until=30.0)
    assert not budget.open(worker(10), 0.0)
    budget.forget("p")
    assert repr(budget) == "<PrefillBudget 0.75–0.85 [0 saturated | 0 tokens stranded]>"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["strand", "recover", "sweep"]),
            st.sampled_from(["p", "q"]),
            st.integers(0, 5000),
            st.floats(0, 40, allow_nan=False),
        ),
        max_size=40,
    )
)
def test_what_is_stranded_is_always_the_sum_of_what_has_not_ended(
    story: list[tuple[str, str, int, float]],
) -> None:
    budget, now = PrefillBudget(), 0.0
    counted: dict[Strand, None] = {}
    for step, name, tokens, seconds in story:
        if step == "strand":
            counted[budget.strand(name, 0, tokens, now + seconds)] = None
        elif step == "recover" and counted:
            one = list(counted)[tokens % len(counted)]
            del counted[one]
            assert budget.recover(one)
        elif step == "sweep":
            now += seconds
            ended = [one for one in counted if one.until <= now]
            assert budget.sweep(now) == sum(one.tokens for one in ended)
            for one in ended:
                del counted[one]
        assert budget.stranded() == sum(one.tokens for one in counted)
    budget.sweep(now + 41.0)
    assert budget.stranded() == 0


@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=50))
def test_a_worker_flaps_only_as_often_as_its_usage_crosses_both_marks(usages: list[float]) -> None:
    budget, made, open_now = PrefillBudget(), worker(1), True
    for usage in usages:
        made.stats = EngineStats(taken=0.0, kv_usage=usage)
        before, open_now = open_now, budget.open(made, 0.0)
        if usage > 0.85:
            assert not open_now
        elif usage < 0.75:
            assert open_now
        else:
            assert open_now is before
