"""Laws of joint where requests wait for slots: it plans on drafts, and fills gaps when slots are short."""

from __future__ import annotations

import copy
from collections import Counter

from hypothesis import given, settings

from router.core.policy import BatchPolicy
from router.core.request import Api, Request
from router.core.worker import StepModel, Worker
from router.policies.joint import Joint, Parameters
from router.policies.joint_draft import drafts_of
from tests.policies.examples import NOW, worker
from tests.policies.prefix_examples import Fleet, asking, tokens
from tests.policies.rank_examples import FrozenRank, fleets, group, prompts, queues

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)


def joint(seed: int = 1) -> Joint:
    return Joint(Parameters(), seed)


@settings(max_examples=60, deadline=None)
@given(pool=fleets, waiting=queues())
def test_nobody_is_placed_twice_or_beyond_the_slots_and_nothing_moves(
    pool: list[FrozenRank], waiting: list[Request]
) -> None:
    policy = joint()
    before = copy.deepcopy(policy)
    choices = policy.admit(waiting, pool, NOW)
    assert policy.admit(waiting, pool, NOW) == choices
    assert policy == before
    ids = [choice.request_id for choice in choices]
    assert len(set(ids)) == len(ids)
    by_id = {one.id: one for one in waiting}
    for w in pool:
        taken = [
            by_id[choice.request_id].sequences
            for choice in choices
            if choice.worker == w.name and choice.reason != "oversized"  # the engine refuses those at once
        ]
        if w.free_slots is not None and w.in_flight:
            assert sum(taken) <= w.free_slots


def test_it_decides_in_rounds_where_it_must_and_alone_where_it_may() -> None:
    assert isinstance(joint(), BatchPolicy)
    assert list(joint().admit([], group(1), NOW)) == []
    assert list(joint().admit(prompts(1), [], NOW)) == []


def test_each_of_many_sees_those_before_it() -> None:
    pool = [worker(f"w{n}", free_slots=8, step=STEP) for n in range(4)]
    waiting = prompts(*[1_000] * 16, api=Api.CHAT, stream=True)
    placed = Counter(choice.worker for choice in joint().admit(waiting, pool, NOW))
    assert set(placed.values()) == {4}


def test_a_queue_for_full_workers_stays_a_queue() -> None:
    pool = [worker("w0", free_slots=2, in_flight=4), worker("w1", free_slots=0, in_flight=4)]
    choices = joint().admit(prompts(*[100] * 5, api=Api.CHAT), pool, NOW)
    assert [choice.request_id for choice in choices] == ["r0", "r1"]
    assert {choice.worker for choice in choices} == {"w0"}


def test_while_slots_are_plenty_each_fills_the_gap_below_the_slowest_of_its_group() -> None:
    pool = group(90_000, 20_000, free=4, step=StepModel(0.0, 1e-9, 0.02, 1e-4, 1e-7))
    choices = joint().admit(prompts(30_000, 30_000, api=Api.CHAT, stream=True), pool, NOW)
    assert [choice.worker for choice in choices] == ["w1", "w1"]


def test_when_more_wait_than_there_are_slots_the_best_subset_enters() -> None:
    """One slot at a worker 9,000 tokens below the highest: of 20,000, 9,000 and 100 the second fits best."""
    pool = group(90_000, 81_000, free=0, step=STEP)
    pool[1] = type(pool[1])(
        name="w1", barrier_group="g", barrier_peers=pool, kv_tokens=81_000, in_flight=1, sequences=1,
        free_slots=1, step=STEP,
    )  # fmt: skip
    choices = joint().admit(prompts(20_000, 9_000, 100, api=Api.CHAT), pool[1:], NOW)
    assert [(choice.request_id, choice.reason) for choice in choices] == [("r1", "subset")]


def test_a_cache_that_saves_the_group_more_than_it_waits_for_goes_before_the_gaps() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    for one in fleet.workers:
        one.slots, one.barrier_group, one.barrier_peers = 40, "g", tuple(fleet.workers)
    document = tokens("d", 8_000)
    fleet.serve(asking(document, 0), to=0)
    for number, one in enumerate(fleet.workers):
        one.mirror.sequences = one.mirror.in_flight = 39
        one.mirror.kv_tokens = 60_000 - 20_000 * number
    policy = fleet.policy
    assert isinstance(policy, Joint)
    waiting = [
        asking(tokens(letter, 100), 1 + number, api=Api.CHAT, max_tokens=8)
        for number, letter in enumerate("xyz")
    ]
    waiting.append(asking(document + tokens("q", 50), 9, api=Api.CHAT, max_tokens=8))
    first = policy.admit(waiting, fleet.workers, NOW)[0]
    assert (first.request_id, first.worker, first.reason) == ("r9", "w0", "prefix")


def test_drafts_know_each_other_as_the_workers_do() -> None:
    pool = group(10, 20, 30, free=2)
    drafts = drafts_of(pool[:2])
    assert [draft.name for draft in drafts] == ["w0", "w1"]
    assert drafts[0].barrier_peers[1] is drafts[1]
    assert [peer.name for peer in drafts[1].barrier_peers] == ["w0", "w1", "w2"]
    alone = Worker(name="alone")
    alone.barrier_peers = (alone,)
    assert drafts_of([alone])[0].barrier_peers == ()
