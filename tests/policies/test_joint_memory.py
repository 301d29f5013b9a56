"""What joint remembers is bounded, forgets what is over, and is right while it is young."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policies.joint_memory import Crowd, Memory, Portions, Silence, Unseen
from tests.policies.examples import NOW, request, worker


def test_a_rate_is_that_of_the_time_in_which_it_was_seen() -> None:
    portions = Portions()
    for number in range(21):
        portions.asked(7, NOW + number / 4)
    assert portions.rate_per_s(7, NOW + 5) == pytest.approx(4.0, rel=0.15)
    for number in range(400):
        portions.asked(7, NOW + 5 + number / 4)
    assert portions.rate_per_s(7, NOW + 105) == pytest.approx(4.0, rel=0.15)
    assert portions.rate_per_s(7, NOW + 205) < 0.01


def test_what_was_asked_for_once_or_never_has_no_rate() -> None:
    portions = Portions()
    portions.asked(7, NOW)
    assert (
        portions.rate_per_s(7, NOW + 1)
        == portions.rate_per_s(8, NOW)
        == portions.rate_per_s(None, NOW)
        == 0.0
    )


def test_a_burst_is_no_endless_rate() -> None:
    portions = Portions()
    for _ in range(32):
        portions.asked(7, NOW)
    assert portions.rate_per_s(7, NOW) <= 33.0


def test_the_portions_that_were_asked_for_longest_ago_make_room() -> None:
    portions = Portions()
    for number in range(5_000):
        portions.asked(number, NOW + number)
        portions.asked(number, NOW + number)
    assert len(portions) == 4_096
    assert portions.rate_per_s(0, NOW + 5_000) == 0.0


def test_a_mean_length_is_believed_after_a_few_answers() -> None:
    portions = Portions()
    portions.asked(7, NOW)
    for number in range(4):
        assert portions.mean_tokens(7) is None
        portions.ended(7, 10.0 * (number + 1))
    assert portions.mean_tokens(7) == pytest.approx(25.0)
    portions.ended(8, 99.0)
    assert portions.mean_tokens(8) is None


def test_the_first_of_a_queue_is_silent_longest() -> None:
    silence, busy = Silence(), worker("w", in_flight=2)
    silence.sent("a", "w", NOW)
    silence.sent("b", "w", NOW + 3)
    assert silence.longest_s([busy, worker("other")], NOW + 5) == [5.0, 0.0]
    silence.broken("a", "w")
    silence.broken("a", "w")
    assert silence.longest_s([busy], NOW + 5) == [2.0]
    assert silence.count(busy) == 1
    assert silence.longest_s([worker("w", in_flight=0)], NOW + 5) == [0.0]
    silence.broken("b", "w")
    assert len(silence) == 0


@given(gaps=st.lists(st.floats(0, 2), min_size=1, max_size=20), tokens=st.integers(1, 5_000))
def test_prompts_that_nobody_sees_start_are_prefilled_one_after_the_other(
    gaps: list[float], tokens: int
) -> None:
    """The same as a queue that is worked off at a constant speed."""
    unseen, now, left = Unseen(), NOW, 0.0
    for number, gap in enumerate(gaps):
        left = max(left - gap / 1e-3, 0.0) + tokens
        now += gap
        unseen.sent(request(number, prompt_tokens=tokens + 7), "w", tokens, now)
    assert unseen.backlog_tokens("w", 10**9, 1e-3, now) == pytest.approx(left, abs=1)
    assert unseen.backlog_tokens("w", tokens // 2, 1e-3, now) == tokens // 2
    assert unseen.prompt_tokens([worker("w")]) == [len(gaps) * (tokens + 7)]
    for number in range(len(gaps)):
        unseen.over(f"r{number}", "w")
        unseen.over(f"r{number}", "w")
    assert len(unseen) == 0
    assert unseen.backlog_tokens("w", 10**9, 1e-3, now) == 0


def test_a_lull_between_two_bursts_is_no_idle_pool() -> None:
    crowd = Crowd()
    assert crowd.mean(NOW) == 0.0
    for number in range(32):
        crowd.came(request(number), NOW)
    assert crowd.mean(NOW) == pytest.approx(32.0)
    assert crowd.mean(NOW + 0.3) == pytest.approx(32.0)
    for number in range(32):
        crowd.left(f"r{number}", NOW + 0.4)
    assert len(crowd) == 0
    assert crowd.mean(NOW + 0.41) > 30.0
    assert crowd.mean(NOW + 10.0) < 0.1


def test_a_request_is_counted_once_and_with_all_of_its_sequences() -> None:
    crowd = Crowd()
    for _ in range(3):
        crowd.came(request(1, sequences=4), NOW)
    assert len(crowd) == 4
    crowd.left("r1", NOW)
    crowd.left("r1", NOW)
    assert len(crowd) == 0


def test_a_new_memory_keeps_nothing() -> None:
    assert Memory().idle
    assert "0 sequences" in repr(Memory())
