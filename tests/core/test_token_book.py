"""Laws of what finished answers teach."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.answer import Usage
from router.core.body_text import PromptSize
from router.core.request import Api
from router.core.token_book import TokenBook
from tests.core.fleet_examples import MODEL, request

SIZE = PromptSize(text_bytes=4000)


def taught(completion: int | None, *, times: int = 60, prompt: int | None = None, **fields: Any) -> TokenBook:
    book = TokenBook()
    for _ in range(times):
        book.learn(request(**fields), SIZE, Usage(prompt, completion))
    return book


def test_an_unknown_model_is_expected_to_write_what_the_prior_says() -> None:
    assert TokenBook().expected(request()) == 211


def test_output_is_expected_as_it_was_seen() -> None:
    assert taught(400).expected(request()) == pytest.approx(400, rel=0.05)


def test_each_of_n_sequences_is_expected_to_be_as_long() -> None:
    assert TokenBook().expected(request(sequences=3)) == 3 * 211
    assert taught(1200, sequences=3).expected(request()) == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 20}, 20),
        ({"max_tokens": 5000}, 211),
        ({"max_tokens": 5000, "ignore_eos": True}, 5000),
        ({"min_tokens": 600}, 600),
        ({"min_tokens": 600, "max_tokens": 500}, 500),
        ({"max_tokens": 0}, 1),
    ],
)
def test_what_the_client_demands_bounds_what_is_expected(fields: dict[str, Any], expected: int) -> None:
    assert TokenBook().expected(request(**fields)) == expected


def test_a_call_that_generates_nothing_is_expected_to_write_one_token() -> None:
    assert TokenBook().expected(request(api=Api.OTHER, sequences=5)) == 1


def test_a_length_that_the_client_dictated_teaches_nothing() -> None:
    assert taught(900, ignore_eos=True).expected(request()) == 211


def test_an_answer_cut_at_a_short_bound_does_not_make_the_model_terse() -> None:
    assert taught(16, max_tokens=16).expected(request()) == 211


def test_an_answer_cut_beyond_the_mean_shows_that_the_model_writes_more() -> None:
    assert taught(1000, max_tokens=1000).expected(request()) > 800


def test_an_answer_that_ended_before_its_bound_teaches_its_length() -> None:
    assert taught(50, max_tokens=1000).expected(request()) == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize("completion", [None, 0])
def test_an_answer_without_output_teaches_no_length(completion: int | None) -> None:
    assert taught(completion).expected(request()) == 211


def test_prompt_lengths_are_learned_from_usage() -> None:
    assert taught(10, prompt=2000).prompts.estimate(MODEL, SIZE) == pytest.approx(2000, rel=0.05)


def test_asking_about_names_that_clients_make_up_remembers_nothing() -> None:
    book = TokenBook()
    for number in range(500):
        book.expected(request(model=f"made up {number}"))
        book.prompts.estimate(f"made up {number}", SIZE)
    assert (
        repr(book)
        == "<TokenBook <PromptTokens [0 models]> <StreamTokens [0 sources]> <OutputTokens [0 models]>>"
    )
