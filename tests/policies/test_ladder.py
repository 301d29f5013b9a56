"""Laws of the fallbacks: what steps on each rung, and that asking moves nothing."""

from __future__ import annotations

import copy
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.policy import Choice
from router.policies.ladder import Ladder, LadderSettings, Rung, two_of
from tests.policies.calibrated_examples import chat
from tests.policies.examples import NOW, idle, request


def ladder(**settings: float) -> Ladder:
    return Ladder(LadderSettings(**settings))  # type: ignore[arg-type]  # an example names only what it is about


def commit(made: Ladder, worker: str = "w", prompt: int = 100, output: float = 50.0, **what: object) -> None:
    now = what.pop("now", NOW)
    assert isinstance(now, float)
    choice = Choice("r", worker, reason=str(what.get("reason", "physical")))
    made.committed(chat(prompt_tokens=prompt), output, choice, now)


@pytest.mark.parametrize(("workers", "rung"), [(1, Rung.NARROW_POOL), (3, Rung.NARROW_POOL), (4, None)])
def test_three_workers_are_narrow(workers: int, rung: Rung | None) -> None:
    assert ladder().by_counts(workers, NOW) is rung


def test_alike_needs_both_lengths_alike_and_enough_of_them() -> None:
    alike, prompts, outputs, few = ladder(), ladder(), ladder(), ladder()
    for n in range(30):
        commit(alike, prompt=100 + n, output=50 + n / 10)
        commit(prompts, prompt=100 if n % 2 else 900, output=50)
        commit(outputs, prompt=100, output=50 if n % 2 else 500)
    for _ in range(29):
        commit(few)
    assert alike.by_counts(8, NOW) is Rung.HOMOGENEOUS
    assert prompts.by_counts(8, NOW) is outputs.by_counts(8, NOW) is few.by_counts(8, NOW) is None


def test_only_the_last_five_minutes_count() -> None:
    made = ladder()
    for n in range(40):
        commit(made, prompt=100 if n % 2 else 9_000, now=NOW)
    for _ in range(40):
        commit(made, now=NOW + 301)
    assert made.homogeneous(NOW + 302)
    assert not made.homogeneous(NOW + 602)


@given(st.lists(st.tuples(st.integers(1, 10**5), st.floats(1, 10**4)), min_size=30, max_size=200))
def test_variation_is_standard_deviation_over_mean(sizes: list[tuple[int, float]]) -> None:
    made = ladder()
    for prompt, output in sizes:
        commit(made, prompt=prompt, output=output)
    for values, spread in (([p for p, _ in sizes], made._prompts), ([o for _, o in sizes], made._outputs)):
        expected = statistics.pstdev(values) / statistics.fmean(values)
        assert spread.variation(len(sizes)) == pytest.approx(expected, abs=1e-5)


def test_quantiles_of_prompts_are_renewed_now_and_then() -> None:
    made = ladder()
    for n in range(31):
        commit(made, prompt=n)
    before = (made.median_tokens, made.long_tokens)
    commit(made, prompt=31)
    assert before == (None, None)
    assert (made.median_tokens, made.long_tokens) == (16, 28)


def test_scarcity_holds_from_its_last_sign() -> None:
    made = ladder(scarcity_hold_s=30)
    assert not made.scarce_lately(NOW)
    commit(made, reason=Rung.SCARCITY.value)
    commit(made, reason=Rung.SCARCITY_LATELY.value, now=NOW + 20)
    assert made.scarce_lately(NOW + 29.9)
    assert not made.scarce_lately(NOW + 30)
    commit(made, reason=Rung.SCARCITY.value, now=NOW + 29)
    assert made.scarce_lately(NOW + 58)


def test_a_worker_may_have_twice_its_share_of_the_last_64_picks() -> None:
    made = ladder()
    for n in range(64):
        commit(made, worker="a" if n < 16 else f"other {n}")
    assert not made.concentrated("a", 8)
    assert made.concentrated("a", 9)
    commit(made, worker="a")
    assert not made.concentrated("a", 8)  # one of its own fell out
    for n in range(64):
        commit(made, worker=f"b {n}")
    assert not made.concentrated("a", 1_000)


def test_a_few_picks_of_a_large_pool_are_chance() -> None:
    made = ladder()
    for _ in range(7):
        commit(made, worker="a")
    assert not made.concentrated("a", 1_000)
    commit(made, worker="a")
    assert made.concentrated("a", 1_000)


def test_what_is_remembered_is_bounded() -> None:
    made = ladder()
    for n in range(3_000):
        commit(made, worker=f"w{n}")
    assert len(made._sizes) <= 1_024
    assert len(made._picks) == len(made._counts) == 64


def test_asking_moves_nothing() -> None:
    made = ladder()
    for n in range(70):
        commit(made, worker=f"w{n % 3}", reason=Rung.SCARCITY.value)
    before = copy.deepcopy(made)
    for now in (NOW, NOW + 1e6):
        made.by_counts(9, now), made.scarce_lately(now), made.concentrated("w1", 9), made.homogeneous(now)
    assert made == before


def test_each_pair_of_workers_is_drawn_alike() -> None:
    pool, counts = idle(4), Counter[tuple[int, int]]()
    for n in range(6_000):
        first, second = two_of(pool, request(n), 1)
        assert first != second
        counts[first, second] += 1
    assert len(counts) == 12
    assert all(380 < count < 620 for count in counts.values())
    assert two_of(idle(1), request(1), 1) == (0, 0)
