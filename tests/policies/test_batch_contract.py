"""What holds for every policy that sees all waiting requests at once."""

from __future__ import annotations

import copy
import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.policy import BatchPolicy, Commits
from router.core.request import Request
from router.core.worker import Role
from router.policies import POLICIES, Shape
from tests.policies.examples import NOW
from tests.policies.rank_examples import (
    FrozenRank,
    admitted,
    batch,
    commit,
    fleets,
    group,
    prompts,
    queues,
    rank,
)

every_batch_policy = pytest.mark.parametrize(
    "name", [spec.name for spec in POLICIES.values() if spec.shape is Shape.BATCH]
)


@every_batch_policy
@settings(max_examples=60)
@given(pool=fleets, waiting=queues(), seed=st.integers(-(2**40), 2**40))
def test_a_round_repeats_and_nothing_moves(
    name: str, pool: list[FrozenRank], waiting: list[Request], seed: int
) -> None:
    policy = batch(name, seed)
    before = copy.deepcopy(policy)
    first = policy.admit(tuple(waiting), tuple(pool), NOW)
    assert policy == before
    assert policy.admit(tuple(waiting), tuple(pool), NOW) == first
    assert policy == before


@every_batch_policy
@settings(max_examples=60)
@given(pool=fleets, waiting=queues())
def test_only_what_was_offered_is_chosen_and_each_request_once(
    name: str, pool: list[FrozenRank], waiting: list[Request]
) -> None:
    choices = batch(name).admit(waiting, pool, NOW)
    ids = [choice.request_id for choice in choices]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {one.id for one in waiting}
    assert {choice.worker for choice in choices} <= {w.name for w in pool}
    assert all(choice.reason and choice.prefill_worker is None for choice in choices)


@every_batch_policy
@settings(max_examples=100)
@given(pool=fleets, waiting=queues())
def test_nobody_is_given_more_than_its_slots_and_its_kv(
    name: str, pool: list[FrozenRank], waiting: list[Request]
) -> None:
    """Two exceptions: what an empty worker alone can take, alone; and what no worker could ever take."""
    given_to: dict[str, list[Request]] = defaultdict(list)
    by_id = {one.id: one for one in waiting}
    for choice in batch(name).admit(waiting, pool, NOW):
        if choice.reason == "oversized":
            sizes = [w.kv_capacity_tokens for w in pool]
            assert all(c is not None and by_id[choice.request_id].prompt_tokens > c for c in sizes)
        else:
            given_to[choice.worker].append(by_id[choice.request_id])
    for w in pool:
        slots = sum(one.sequences for one in given_to[w.name])
        tokens = sum(one.prompt_tokens for one in given_to[w.name])
        was_empty = not (w.in_flight or w.kv_tokens)
        alone = was_empty and len(given_to[w.name]) == 1
        assert w.free_slots is None or slots <= w.free_slots or alone
        if w.kv_capacity_tokens is not None and tokens:
            within = w.kv_tokens + tokens <= 0.95 * w.kv_capacity_tokens
            assert within or (alone and tokens <= w.kv_capacity_tokens)


@every_batch_policy
@settings(max_examples=60)
@given(pool=fleets, waiting=queues())
def test_no_slot_stays_empty_that_somebody_who_waits_fits(
    name: str, pool: list[FrozenRank], waiting: list[Request]
) -> None:
    choices = batch(name).admit(waiting, pool, NOW)
    by_id = {one.id: one for one in waiting}
    left = [one for one in waiting if one.id not in {choice.request_id for choice in choices}]
    for w in pool:
        mine = [by_id[choice.request_id] for choice in choices if choice.worker == w.name]
        free = (w.free_slots if w.free_slots is not None else 10**9) - sum(one.sequences for one in mine)
        room = 0.95 * (w.kv_capacity_tokens if w.kv_capacity_tokens is not None else 10**12) - w.kv_tokens
        room -= sum(one.prompt_tokens for one in mine)
        assert not [one for one in left if one.sequences <= free and one.prompt_tokens <= room]


@every_batch_policy
def test_nobody_waiting_and_nobody_offered_is_no_round(name: str) -> None:
    assert list(batch(name).admit([], group(1, 2), NOW)) == []
    assert list(batch(name).admit(prompts(1), [], NOW)) == []


@every_batch_policy
def test_one_worker_is_that_worker(name: str) -> None:
    policy = batch(name)
    for n, worker in enumerate([rank("only", free_slots=1), rank("only"), *group(500, free=1)]):
        ((_, chosen),) = admitted(policy.admit(prompts(100, first=n), [worker], NOW))
        assert chosen == worker.name


@every_batch_policy
def test_a_seed_gives_the_same_run_again_and_another_seed_another(name: str) -> None:
    def run(seed: int) -> list[list[tuple[str, str]]]:
        policy = batch(name, seed)
        return [admitted(policy.admit(prompts(100, first=n), group(*[5] * 8), NOW)) for n in range(64)]

    assert run(1) == run(1)
    assert run(1) != run(2)


@every_batch_policy
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_workers_are_chosen_evenly(name: str, seed: int) -> None:
    policy, pool, rounds = batch(name, seed), group(*[5] * 8, free=3), 4_000
    counts = Counter(
        worker
        for n in range(rounds)
        for _, worker in admitted(policy.admit(prompts(100, first=n), pool, NOW))
    )
    expected = rounds / len(pool)
    chi_square = sum((counts[w.name] - expected) ** 2 / expected for w in pool)
    assert chi_square < 24.3  # 7 degrees of freedom, 99.9 %


@every_batch_policy
def test_two_rounds_in_a_row_do_not_favour_a_pair_of_workers(name: str) -> None:
    policy, pool = batch(name), group(*[5] * 4, free=3)
    run = [admitted(policy.admit(prompts(100, first=n), pool, NOW))[0][1] for n in range(4_000)]
    pairs = Counter(itertools.pairwise(run))
    expected = (len(run) - 1) / 16
    chi_square = sum((pairs[a.name, b.name] - expected) ** 2 / expected for a in pool for b in pool)
    assert chi_square < 37.7  # 15 degrees of freedom, 99.9 %


@every_batch_policy
def test_a_retry_moves_no_state(name: str) -> None:
    policy, pool = batch(name), group(5, 5, 5)
    before = copy.deepcopy(policy)
    for n in range(50):
        waiting = prompts(100, first=n, attempt=1)
        commit(policy, waiting, policy.admit(waiting, pool, NOW), NOW)
    assert policy == before


@every_batch_policy
@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20_000), min_size=60, max_size=120),
    giant=st.integers(30_000, 60_000),
    slots=st.integers(1, 3),
)
def test_nobody_is_passed_over_beyond_the_bound(
    name: str, lengths: list[int], giant: int, slots: int
) -> None:
    """Rounds half a second apart, before each one request more than there are slots; the giant is early."""
    policy = batch(name, 1, age_s=2.0, max_overtaken=8)
    waiting: list[Request] = []
    arrivals = iter(prompts(*lengths[:2], giant, *lengths[2:]))
    passed: Counter[str] = Counter()
    first_passed: dict[str, float] = {}
    for round_number in range(40):
        now = NOW + round_number / 2
        waiting += itertools.islice(arrivals, 2 * slots + 1)
        pool = group(90_000, 60_000, free=slots, kv_capacity_tokens=300_000)
        choices = policy.admit(waiting, pool, now)
        commit(policy, waiting, choices, now)
        gone = {choice.request_id for choice in choices}
        for one in waiting:
            younger = sum(other.arrived > one.arrived for other in waiting if other.id in gone)
            if one.id not in gone and younger:
                assert now - first_passed.setdefault(one.id, now) < 2.0, "passed over in its old age"
                passed[one.id] += younger
                assert passed[one.id] <= 8 + 2 * slots
        waiting = [one for one in waiting if one.id not in gone]


@every_batch_policy
def test_the_registry_tells_what_a_batch_policy_is(name: str) -> None:
    spec = POLICIES[name]
    policy = spec.factory(spec.check({}), 1)
    assert spec.name == name
    assert isinstance(policy, BatchPolicy)
    assert isinstance(policy, Commits)
    assert Role.PREFILL not in spec.roles
    assert spec.cost_unit
    assert "seed=1" in repr(policy)
