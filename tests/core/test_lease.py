"""Laws of one lease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.lease import Lease, Outcome
from tests.core.fleet_examples import request


def lease(expected: int = 50, prompt: int = 100, generated: int = 0) -> Lease:
    made = Lease(request("r"), "a", 3, 1.0, prompt, expected)
    made.generated_tokens = generated
    return made


def test_a_lease_is_held_until_it_has_an_outcome() -> None:
    made = lease()
    assert not made.settled
    assert repr(made) == "<Lease r on a#3 [100+0 tokens | held]>"
    ended = lease()
    ended.outcome = Outcome.CANCELLED
    assert ended.settled
    assert repr(ended) == "<Lease r on a#3 [100+0 tokens | cancelled]>"


def test_leases_of_equal_content_are_different_leases() -> None:
    made = lease()
    assert len({made, lease(), made}) == 2


def test_kv_is_the_prompt_and_what_was_generated() -> None:
    assert lease(prompt=100, generated=7).kv_tokens == 107


@given(expected=st.integers(1, 100_000), generated=st.integers(0, 200_000))
def test_remaining_is_what_was_expected_less_what_came_and_an_overrun_stays_visible(
    expected: int, generated: int
) -> None:
    remaining = lease(expected, generated=generated).remaining_tokens
    assert remaining == max(expected - generated, min(max(8, expected // 10), expected))
    assert 1 <= remaining <= expected
