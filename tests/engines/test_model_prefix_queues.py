"""Orders that go by what is cached: shares of ten groups, and the longest prefix first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.model.engine import Engine, EngineConfig, Job
from engines.model.prefix_queues import GROUPS, LongestPrefix, PriorityGroups, group_of
from engines.model.roofline import StepTimes
from engines.model.sequence import Sequence

CONFIG = EngineConfig(num_blocks=200, max_model_len=2_000)
PROMPT = 100
CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=0.0, per_kv_token_s=0.0, prefill_base_s=0.01, prefill_per_token_s=0.001
)


class Cache:
    """Says how many tokens of each prompt of a hundred are cached."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.asked = 0

    def __call__(self, sequence: Sequence) -> int:
        self.asked += 1
        return self.tokens[sequence.order]

    def sequence(self, order: int, cached: int) -> Sequence:
        self.tokens[order] = cached
        return Sequence(Job(id=str(order), prompt_token_ids=range(PROMPT)), CONFIG, order, now=0.0)


@pytest.mark.parametrize(
    ("cached", "prompt", "group"),
    [(63, 100, 6), (0, 100, 0), (9, 100, 0), (10, 100, 1), (99, 100, 9), (100, 100, 9), (0, 1, 0), (1, 3, 3)],
)
def test_the_group_is_the_tenth_of_the_hit_ratio(cached: int, prompt: int, group: int) -> None:
    assert group_of(cached, prompt) == group


@given(st.integers(1, 100_000), st.data())
def test_every_prompt_has_a_group(prompt: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt))
    assert 0 <= group_of(cached, prompt) < GROUPS


def full(groups: range, each: int) -> tuple[PriorityGroups, Cache]:
    """So many in each group; they came one group after the other, in turns."""
    cache = Cache()
    queue = PriorityGroups(cache)
    order = 0
    for _ in range(each):
        for group in groups:
            queue.add(cache.sequence(order, 10 * group + 5))
            order += 1
    return queue, cache


def test_a_round_of_ten_full_groups_is_ten_to_one_of_fifty_five() -> None:
    queue, cache = full(range(10), 20)
    for _ in range(2):
        taken = [queue.take() for _ in range(55)]
        groups = [group_of(cache.tokens[one.order], PROMPT) for one in taken]
        assert groups == [group for group in range(9, -1, -1) for _ in range(group + 1)]
        assert Counter(groups) == {group: group + 1 for group in range(10)}


def test_inside_a_group_the_first_to_come_is_the_first_to_start() -> None:
    queue, _ = full(range(4, 5), 12)
    assert [queue.take().order for _ in range(12)] == list(range(12))


def test_a_group_without_anybody_leaves_its_share_to_nobody() -> None:
    cache = Cache()
    queue = PriorityGroups(cache)
    for order in range(6):
        queue.add(cache.sequence(order, 95 if order == 5 else 5))
    assert [queue.take().order for _ in range(6)] == [5, 0, 1, 2, 3, 4]


def test_a_round_goes_on_while_others_come_so_that_the_lowest_group_has_its_turn() -> None:
    cache = Cache()
    queue = PriorityGroups(cache)
    queue.add(cache.sequence(0, 0))
    started = []
    for order in range(1, 40):  # always a prompt with all of it cached that waits too
        queue.add(cache.sequence(order, 99))
        started.append(queue.take().order)
        queue.look()
    assert started.index(0) == 10


def test_a_prompt_moves_to_another_group_when_more_of_it_is_cached() -> None:
    cache = Cache()
    queue = PriorityGroups(cache)
    for order in range(3):
        queue.add(cache.sequence(order, 50))
    cache.tokens[2] = 80
    head = queue.head()
    assert head is not None
    assert head.order == 0
    queue.look()
    assert [queue.take().order for _ in range(3)] == [2, 0, 1]


def test_one_that_was_put_back_is_before_all_groups_and_uses_no_share() -> None:
    queue, cache = full(range(9, 10), 3)
    back = cache.sequence(99, 0)
    queue.put_back(back)
    assert queue.take() is back
    assert len(queue) == 3
    queue.put_back(back)
    queue.discard(back)
    assert [queue.take().order for _ in range(3)] == [0, 1, 2]
    assert "0 returned" in repr(queue)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=80), st.lists(st.integers(0, 99), max_size=300))
def test_nobody_waits_longer_than_a_round_for_each_before_it_in_its_group(
    first: list[int], later: list[int]
) -> None:
    cache = Cache()
    queue = PriorityGroups(cache)
    for order, cached in enumerate(first):
        queue.add(cache.sequence(order, cached))
    ahead = {
        order: sum(group_of(other, PROMPT) == group_of(cached, PROMPT) for other in first[:order])
        for order, cached in enumerate(first)
    }
    coming = list(enumerate(later, len(first)))
    for place in range(len(first) + len(later)):
        if coming:
            queue.add(cache.sequence(*coming.pop()))
        order = queue.take().order
        if order in ahead:
            assert place <= 55 * (ahead[order] + 2)
    assert len(queue) == 0


def test_the_longest_prefix_goes_first_and_ties_by_arrival() -> None:
    cache = Cache()
    queue = LongestPrefix(cache)
    for order, cached in enumerate((10, 60, 60, 0)):
        queue.add(cache.sequence(order, cached))
    cache.tokens[3] = 61
    assert queue.head() is not None
    queue.look()
    assert [queue.take().order for _ in range(4)] == [3, 1, 2, 0]


def test_the_longest_prefix_may_starve_a_prompt_and_groups_do_not() -> None:
    for queue_of, starts in ((LongestPrefix, False), (PriorityGroups, True)):
        cache = Cache()
        queue: LongestPrefix | PriorityGroups = queue_of(cache)
        queue.add(cache.sequence(0, 0))
        started = set()
        for order in range(1, 200):
            queue.add(cache.sequence(order, 99))
            started.add(queue.take().order)
        assert (0 in started) is starts


# --- in an engine -----------------------------------------------------------------------------------------


def order_of_start(scheduling: str) -> list[str]:
    """Who starts when, one at a time, after a prompt that three of four share has been computed."""
    config = EngineConfig(
        num_blocks=201, block_size=4, max_model_len=200, max_num_seqs=1, output_lengths=None,
        scheduling=scheduling,  # type: ignore[arg-type]  # one of them
    )  # fmt: skip
    engine = Engine(config, CLOCK)
    shared = range(40)
    engine.add(Job(id="first", prompt_token_ids=shared, max_tokens=1), 0.0)
    step = engine.begin_step(0.0)
    assert step is not None
    engine.end_step(step, 1.0)
    for name, prompt in (
        ("none", range(500, 540)),
        ("half", [*range(20), *range(600, 620)]),
        ("most", [*range(36), *range(700, 704)]),
        ("long", [*range(40), *range(800, 900)]),
    ):
        engine.add(Job(id=name, prompt_token_ids=prompt, max_tokens=1), 1.0)
    order = []
    while (step := engine.begin_step(1.0)) is not None:
        order += [output.job_id for output in engine.end_step(step, 1.0)]
    return order


def test_an_engine_starts_jobs_in_the_order_that_it_is_told() -> None:
    assert order_of_start("fcfs") == ["none", "half", "most", "long"]
    assert order_of_start("priority_groups") == ["most", "half", "long", "none"]
    assert order_of_start("longest_prefix") == ["long", "most", "half", "none"]


def test_without_a_prefix_cache_groups_are_first_come_first_served() -> None:
    config = EngineConfig(
        num_blocks=201, block_size=4, max_model_len=200, max_num_seqs=1, output_lengths=None,
        scheduling="priority_groups", enable_prefix_caching=False,
    )  # fmt: skip
    engine = Engine(config, CLOCK)
    for index in range(4):
        engine.add(Job(id=str(index), prompt_token_ids=range(40), max_tokens=1), 0.0)
    order = []
    while (step := engine.begin_step(1.0)) is not None:
        order += [output.job_id for output in engine.end_step(step, 1.0)]
    assert order == ["0", "1", "2", "3"]
