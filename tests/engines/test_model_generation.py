"""Answers are functions of prompt, seed and sequence, and read like words."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.generation import Answer, OutputLengths, prompt_key
from engines.model.text import decode, encode

keys = st.binary(min_size=16, max_size=16)
prompts = st.lists(st.integers(0, 2**32 - 1), max_size=20)


@given(keys, st.lists(st.integers(0, 300), min_size=1))
def test_a_token_does_not_depend_on_when_it_is_asked_for(key: bytes, indices: list[int]) -> None:
    in_order = Answer(key)
    expected = [in_order.token(index) for index in range(301)]
    anyhow = Answer(key)
    assert [anyhow.token(index) for index in indices] == [expected[index] for index in indices]


@given(prompts, st.integers(), st.integers(0, 8))
def test_seed_sequence_and_prompt_each_change_the_answer(prompt: list[int], seed: int, sequence: int) -> None:
    key = prompt_key(prompt, seed, sequence)
    assert key == prompt_key(tuple(prompt), seed, sequence)
    others = {
        prompt_key(prompt, seed + 1, sequence),
        prompt_key(prompt, seed, sequence + 1),
        prompt_key([*prompt, 0], seed, sequence),
    }
    assert len({key, *others}) == 4


@given(keys)
def test_an_answer_is_lower_case_words_and_encodes_back_to_its_tokens(key: bytes) -> None:
    answer = Answer(key)
    ids = [answer.token(index) for index in range(100)]
    text = decode(ids)
    assert text.isascii()
    assert all(word.isalpha() and word.islower() for word in text.split())
    assert "  " not in text
    assert not text.startswith(" ")
    assert len(text) == 400
    assert encode(text) == ids


def test_an_answer_does_not_repeat_itself() -> None:
    answer = Answer(b"k" * 16)
    ids = [answer.token(index) for index in range(320)]
    lines = {tuple(ids[start : start + 32]) for start in range(0, 320, 32)}
    assert len(lines) == 10


def test_words_are_of_readable_length() -> None:
    answer = Answer(b"k" * 16)
    words = decode(answer.token(index) for index in range(4_000)).split()
    assert 3 <= sum(map(len, words)) / len(words) <= 9


@given(keys, st.floats(1, 5_000), st.floats(0, 2))
def test_a_length_is_at_least_one_and_repeats(key: bytes, median_tokens: float, sigma: float) -> None:
    lengths = OutputLengths(median_tokens, sigma)
    assert lengths.draw(key) == lengths.draw(key) >= 1


def test_lengths_have_the_median_and_the_spread_asked_for() -> None:
    drawn = sorted(OutputLengths(200, 0.8).draw(number.to_bytes(16, "big")) for number in range(4_000))
    assert median(drawn) == pytest.approx(200, rel=0.05)
    # One sigma above the median: the 84.1th percentile.
    assert drawn[int(0.8413 * len(drawn))] == pytest.approx(200 * 2.2255, rel=0.08)


def test_without_spread_every_answer_has_the_median_length() -> None:
    assert {OutputLengths(50, 0.0).draw(bytes([number])) for number in range(20)} == {50}


@pytest.mark.parametrize(("median_tokens", "sigma"), [(0.5, 1.0), (10.0, -0.1)])
def test_impossible_lengths_are_refused(median_tokens: float, sigma: float) -> None:
    with pytest.raises(ValueError, match="median"):
        OutputLengths(median_tokens, sigma)
