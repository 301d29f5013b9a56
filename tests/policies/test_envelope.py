"""Margins to the highest load, kept true as a round admits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policies.barrier import groups_of
from router.policies.envelope import Horizon, Present, Weights, discounts
from tests.policies.rank_examples import group, rank

columns = st.integers(1, 20).flatmap(
    lambda steps: st.lists(
        st.lists(st.integers(0, 10**6), min_size=steps, max_size=steps), min_size=1, max_size=6
    )
)


def test_the_margin_is_the_distance_to_the_highest() -> None:
    (made,) = groups_of(group(100, 400, 250))
    envelope = Present(made)
    assert [envelope.score(n, 1.0).best_tokens for n in range(3)] == [300, 0, 150]


def test_a_new_highest_widens_every_other_margin() -> None:
    (made,) = groups_of(group(100, 400))
    envelope = Present(made)
    envelope.raise_by(0, 500.0)
    assert [envelope.score(n, 1.0).best_tokens for n in range(2)] == [0, 200]


def test_a_margin_is_in_tokens_of_its_worker() -> None:
    (made,) = groups_of([rank("fast", capacity=2.0), rank("slow", kv_tokens=300)])
    assert Present(made).score(0, made.units[0].per_token).best_tokens == 600


def test_a_worker_that_came_back_lately_has_less_margin_and_widens_nobody_elses() -> None:
    pool = [rank("back", kv_tokens=300, warmup=2.0), rank("other", kv_tokens=500), rank("top", kv_tokens=800)]
    (made,) = groups_of(pool)
    envelope = Present(made)
    assert envelope.score(0, 2.0).best_tokens == (800 - 600) / 2
    assert envelope.score(1, 1.0).best_tokens == 300
    warm = Present(groups_of([rank("back", kv_tokens=900, warmup=2.0), rank("other", kv_tokens=500)])[0])
    assert warm.score(1, 1.0).best_tokens == 400
    assert warm.score(0, 2.0).best_tokens == 0


def ahead(
    loads: Sequence[Sequence[float]], warmups: list[float] | None = None, overflow: float = 8.0
) -> Horizon:
    weights = Weights([0.9**h for h in range(len(loads[0]))], 1.0, overflow)
    return Horizon(loads, warmups or [1.0] * len(loads), weights)


@given(columns, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**5), st.booleans()), max_size=10))
def test_the_envelope_kept_up_is_the_envelope_made_anew(
    loads: list[list[int]], admissions: list[tuple[int, int, bool]]
) -> None:
    kept = ahead(loads)
    raised = [list(steps) for steps in loads]
    for member, load, scored in admissions:
        if scored:  # as a round does; what it keeps of a score must not hide a new highest
            kept.score(member % len(loads), 1.0)
        kept.raise_by(member % len(loads), load)
        raised[member % len(loads)] = [have + load for have in raised[member % len(loads)]]
    anew = ahead(raised)
    for member in range(len(loads)):
        assert kept.load(member) == anew.load(member)
        for tokens in (0, 1_000, 100_000):
            value = kept.score(member, 2.0).value(tokens)
            assert value == pytest.approx(anew.score(member, 2.0).value(tokens), rel=1e-9, abs=1e-3)


def test_the_horizon_of_one_step_is_the_present() -> None:
    (made,) = groups_of(group(100, 400, 250))
    now = Present(made)
    one_step = ahead([[100.0], [400.0], [250.0]], overflow=3.0)
    for member in range(3):
        for tokens in (0, 150, 300, 600):
            expected = now.score(member, 1.0).value(tokens)
            assert one_step.score(member, 1.0).value(tokens) == pytest.approx(expected)


def test_a_warming_worker_looks_higher_to_itself_at_every_step() -> None:
    loads = [[300.0, 900.0], [800.0, 800.0]]
    warm = ahead(loads, [2.0, 1.0])
    assert warm.score(0, 2.0).least_margin == 0.0  # 1,800 of 900 at the second step
    assert warm.score(1, 1.0).least_margin == 0.0
    warm.raise_by(0, 100.0)
    assert warm.score(0, 2.0).least_margin == 0.0


@given(st.floats(0.01, 1.0), st.integers(1, 250))
def test_steps_that_hardly_count_are_put_together(discount: float, horizon: int) -> None:
    weights = discounts(discount, horizon)
    total = sum(discount**h for h in range(horizon + 1))
    assert sum(weights) == pytest.approx(total)
    assert all(weights[h] == discount**h for h in range(len(weights) - 1))
    assert weights[-1] - discount ** (len(weights) - 1) <= 1e-2 * total + 1e-9


def test_at_a_discount_of_0_86_there_are_31_steps_of_81() -> None:
    assert len(discounts(0.86, 80)) == 31
    assert len(discounts(1.0, 80)) == 81
