"""Who is next, and that nobody is lost."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.job import EngineConfig, Job
from engines.model.prefix_queues import LongestPrefix, PriorityGroups
from engines.model.sequence import Sequence
from engines.model.waiting import ArrivalQueue, PriorityQueue, WaitingQueue

CONFIG = EngineConfig(num_blocks=100, max_model_len=64)
QUEUES: list[Callable[[], WaitingQueue]] = [
    ArrivalQueue,
    PriorityQueue,
    lambda: PriorityGroups(some),
    lambda: LongestPrefix(some),
]


def sequence(order: int, priority: int = 0, arrival: float | None = None) -> Sequence:
    tokens = range(order % 7 + 1)
    job = Job(id=str(order), prompt_token_ids=tokens, priority=priority, arrival=arrival)
    return Sequence(job, CONFIG, order, now=float(order))


def some(sequence: Sequence) -> int:
    """Cached tokens of a prompt, more or less."""
    return sequence.order * 5 % 8 * sequence.length // 8


def emptied(queue: WaitingQueue) -> list[int]:
    return [queue.take().order for _ in range(len(queue))]


def test_first_come_is_first_served() -> None:
    queue = ArrivalQueue()
    for order in range(4):
        queue.add(sequence(order, priority=-order))
    assert emptied(queue) == [0, 1, 2, 3]


def test_one_that_was_put_back_is_next() -> None:
    queue = ArrivalQueue()
    for order in range(3):
        queue.add(sequence(order))
    queue.put_back(sequence(9))
    assert emptied(queue) == [9, 0, 1, 2]


def test_the_lower_priority_value_goes_first_and_ties_go_by_arrival() -> None:
    queue = PriorityQueue()
    queue.add(sequence(0, priority=5))
    queue.add(sequence(1, priority=0, arrival=7.0))
    queue.add(sequence(2, priority=0, arrival=3.0))
    queue.add(sequence(3, priority=-1))
    queue.put_back(sequence(4, priority=5, arrival=-1.0))
    assert emptied(queue) == [3, 2, 1, 4, 0]


@pytest.mark.parametrize("kind", QUEUES)
def test_an_empty_queue_has_no_head(kind: Callable[[], WaitingQueue]) -> None:
    queue = kind()
    assert queue.head() is None
    with pytest.raises(IndexError, match="nobody waits"):
        queue.take()


def test_those_who_left_from_deep_in_the_queue_do_not_pile_up() -> None:
    queue = PriorityQueue()
    queue.add(sequence(0, priority=-1))
    for order in range(1, 1_000):
        queue.add(sequence(order))
        queue.discard(queue._heap[-1][1])
    assert len(queue) == 1
    assert len(queue._heap) < 50


@given(
    st.sampled_from(QUEUES),
    st.lists(st.tuples(st.sampled_from(["add", "put_back", "take", "discard", "look"]), st.integers(0, 9))),
)
def test_length_and_tokens_follow_every_coming_and_going(
    kind: Callable[[], WaitingQueue], moves: list[tuple[str, int]]
) -> None:
    queue, inside = kind(), dict[int, Sequence]()
    members = [sequence(order, priority=order % 3) for order in range(10)]
    for move, order in moves:
        if move in {"add", "put_back"} and order not in inside:
            getattr(queue, move)(members[order])
            inside[order] = members[order]
        elif move == "discard":
            queue.discard(members[order])
            inside.pop(order, None)
        elif move == "take" and inside:
            head = queue.head()
            assert queue.take() is head
            assert head is not None
            del inside[head.order]
        elif move == "look":
            queue.look()
    assert len(queue) == len(inside)
    assert sorted(emptied(queue)) == sorted(inside)
