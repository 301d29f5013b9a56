"""Laws of the expected output: it follows what was written, within what the client allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.lease import Lease
from router.core.request import Request
from router.policies.output_length import OutputLengths
from tests.policies.calibrated_examples import chat
from tests.policies.examples import request


def learned(count: int, tokens: int, **what: object) -> OutputLengths:
    lengths = OutputLengths(200.0)
    for n in range(count):
        lengths.learn(finished(chat(n, **what), tokens))
    return lengths


def finished(call: Request, tokens: int) -> Lease:
    return Lease(call, "w", 0, 0.0, call.prompt_tokens, 100, generated_tokens=tokens)


def test_what_nothing_is_known_of_is_taken_for_the_usual() -> None:
    assert OutputLengths(200.0).expected(chat()) == 200.0
    assert learned(7, 900).expected(chat()) == 200.0


def test_eight_answers_are_enough() -> None:
    assert learned(8, 900).expected(chat(99)) == 900.0


def test_what_generates_nothing_costs_no_output() -> None:
    assert OutputLengths(200.0).expected(request()) == 0.0
    assert learned(0, 0).expected(request(max_tokens=10)) == 0.0


def test_the_client_bounds_what_is_expected() -> None:
    lengths = learned(20, 900)
    assert lengths.expected(chat(max_tokens=50)) == 50.0
    assert lengths.expected(chat(min_tokens=2_000)) == 2_000.0
    assert lengths.expected(chat(max_tokens=3_000, ignore_eos=True)) == 3_000.0


def test_the_nearest_kind_that_has_seen_enough_tells() -> None:
    lengths = OutputLengths(200.0)
    for n in range(10):
        lengths.learn(finished(chat(n, tenant="terse", prompt_tokens=100), 10))
        lengths.learn(finished(chat(n, tenant="chatty", prompt_tokens=9_000), 1_000))
    assert lengths.expected(chat(tenant="terse", prompt_tokens=9_000)) == 10.0
    assert lengths.expected(chat(tenant="new", prompt_tokens=9_000)) == 1_000.0
    assert 10 < lengths.expected(chat(tenant="new", prompt_tokens=1)) < 1_000


def test_an_answer_that_was_cut_is_news_only_beyond_the_mean() -> None:
    lengths = learned(20, 900)
    for n in range(20):
        lengths.learn(finished(chat(n, max_tokens=50), 50))
    assert lengths.expected(chat(tenant="other")) == 900.0


def test_a_length_that_the_client_dictated_teaches_nothing() -> None:
    assert learned(20, 900, ignore_eos=True, max_tokens=900).expected(chat()) == 200.0


def test_sequences_share_what_was_written() -> None:
    assert learned(8, 400, sequences=4).expected(chat()) == 100.0


def test_one_absurd_answer_does_little() -> None:
    lengths = learned(20, 100)
    lengths.learn(finished(chat(), 100_000))
    assert lengths.expected(chat()) <= 116


def test_a_change_arrives() -> None:
    lengths = learned(50, 100)
    for n in range(80):
        lengths.learn(finished(chat(n), 1_000))
    assert lengths.expected(chat()) > 900


def test_kinds_are_bounded() -> None:
    lengths = OutputLengths(200.0)
    for n in range(5_000):
        lengths.learn(finished(chat(n, tenant=f"tenant {n}"), 10))
    assert len(lengths) <= 4_096


@given(
    tokens=st.lists(st.integers(0, 10**5), max_size=40),
    bound=st.none() | st.integers(1, 10**5),
    least=st.none() | st.integers(0, 10**5),
)
def test_an_expectation_is_at_least_one_and_within_the_bound(
    tokens: list[int], bound: int | None, least: int | None
) -> None:
    lengths = OutputLengths(200.0)
    for n, count in enumerate(tokens):
        lengths.learn(finished(chat(n), count))
    expected = lengths.expected(chat(max_tokens=bound, min_tokens=least))
    assert expected >= 1.0
    assert bound is None or expected <= bound
