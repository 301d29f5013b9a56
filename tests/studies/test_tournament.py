"""All policies against all workloads: what is near the best, what is kept, and that the page is fresh."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.policies import POLICIES
from router.studies.compare import cells
from router.studies.setups import SETUPS
from router.studies.tournament.entries import (
    CHALLENGER,
    LEVELS,
    Entry,
    Kept,
    entries_of,
    merged,
    policies_for,
    rounds_of,
    standings,
    tasks_of,
)
from router.studies.tournament.page import PAGE, render
from router.studies.tournament.store import load, save
from router.studies.tournament.words import WORDS
from router.studies.workloads import WORKLOADS


def entry(policy: str, goodput: float | None, e2e_s: float, level: float = 1.0) -> Entry:
    return Entry(
        workload="agents",
        level=level,
        rate=10.0 * level,
        policy=policy,
        goodput=[] if goodput is None else [goodput, goodput],
        e2e_s=[e2e_s, e2e_s],
        unanswered=0,
    )


@pytest.mark.parametrize(
    ("goodput", "e2e_s", "near"),
    [(0.90, 2.0, True), (0.881, 2.0, True), (0.879, 2.0, False), (0.95, 2.09, True), (0.95, 2.11, False)],
)
def test_near_the_best_is_two_points_and_a_twentieth(goodput: float, e2e_s: float, near: bool) -> None:
    (met,) = rounds_of(
        [entry("preble", 0.90, 3.0), entry("joint", goodput, e2e_s), entry("random", 0.5, 2.0)]
    )
    assert met.holds is near
    assert met.by_goodput is not None
    assert (met.by_goodput.policy, met.by_e2e.policy) == ("preble", "random")


def test_without_targets_only_time_counts() -> None:
    (met,) = rounds_of([entry("joint", None, 1.0), entry("random", None, 0.99)])
    assert met.goodput_gain is None
    assert met.holds


def test_a_policy_that_is_the_best_is_ahead_of_the_others() -> None:
    entries = [entry("joint", 0.9, 1.0), entry("random", 0.8, 2.0)]
    first, last = standings(entries)
    assert (first.policy, first.worst_e2e, first.near) == ("joint", 0.5, 1)
    assert first.worst_goodput == pytest.approx(10.0)
    assert (last.policy, last.worst_e2e, last.near) == ("random", 2.0, 0)
    assert last.worst_goodput == pytest.approx(-10.0)


def test_the_worst_round_counts_however_good_the_others_are() -> None:
    entries = [
        *(entry("joint", 0.9, 1.0, level) for level in LEVELS),
        *(entry("preble", 0.9, 4.0 if level == 1.0 else 1.0, level) for level in LEVELS),
    ]
    by_name = {each.policy: each for each in standings(entries)}
    assert by_name["preble"].worst_e2e == pytest.approx(4.0)
    assert by_name["preble"].mean_e2e == pytest.approx(4.0 ** (1 / 3))
    assert (by_name["preble"].near, by_name["preble"].rounds) == (2, 3)


def test_every_policy_is_in_a_tournament() -> None:
    for setup in SETUPS.values():
        left_out = set(POLICIES) - set(policies_for(setup))
        assert not left_out or setup.plain, f"{setup.name} leaves out {left_out}"
    assert CHALLENGER in policies_for(SETUPS["classic_16"])


def test_all_policies_meet_the_same_calls() -> None:
    tasks = tasks_of("agents", 50, 2)
    by_policy: dict[str, list[tuple[float | None, int]]] = {}
    for task in tasks:
        by_policy.setdefault(task.policy, []).append((task.rate, task.seed))
    assert set(by_policy) == set(POLICIES)
    assert len({tuple(each) for each in by_policy.values()}) == 1


def test_one_policy_is_played_anew_beside_the_others() -> None:
    old = [entry("joint", 0.9, 1.0), entry("random", 0.8, 2.0)]
    new = entry("joint", 0.95, 0.9)
    assert merged(old, [new]) == [new, old[1]]
    added = entry("preble", 0.9, 1.0)
    assert merged(old, [added]) == [*old, added]


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    entries = [entry("joint", 0.9, 1.0), entry("random", 0.8, 2.0)]
    kept = Kept(workload="agents", setup="agents_a100", calls=50, seeds=2, entries=entries)
    save(kept, tmp_path)
    assert load(["agents", "toolbench"], tmp_path) == [kept]


def test_a_spoiled_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "agents.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"agents\.json is no file of a tournament"):
        load(["agents"], tmp_path)


def test_the_page_is_what_the_stored_figures_say() -> None:
    stale = "stale: run python -m router.studies.tournament --page"
    assert PAGE.read_text(encoding="utf-8") == render(load(WORKLOADS), WORDS), stale


def test_the_readme_says_what_the_page_says() -> None:
    first, second, *_ = standings([entry for kept in load(WORKLOADS) for entry in kept.entries])
    words = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    assert first.policy == CHALLENGER
    assert (
        f"of {first.rounds} rounds, fifteen workloads at three loads, `{first.policy}` is near the best"
        in words
    )
    assert f"in {first.near}, the next policy in {second.near}:" in words


def test_every_workload_has_been_played() -> None:
    assert [each.workload for each in load(WORKLOADS)] == list(WORKLOADS)


@pytest.mark.parametrize(
    ("workload", "others"),
    [
        ("toolbench", ("least_work", "cache_aware")),
        ("mixed_bursty", ("least_requests", "calibrated")),
        ("balanceroute_azure", ("least_tokens", "balance_route_h")),
    ],
)
def test_one_policy_is_near_the_best_of_different_ones(workload: str, others: tuple[str, ...]) -> None:
    """With few calls and two seeds a twentieth is noise, so the band is wider than the bar of the page."""
    tasks = [
        task for task in tasks_of(workload, 200, 2, levels=[0.8]) if task.policy in (CHALLENGER, *others)
    ]
    (met,) = rounds_of(entries_of(cells(tasks)))
    assert met.goodput_gain is not None
    assert met.goodput_gain.mean >= -5
    assert met.e2e_ratio <= 1.1
