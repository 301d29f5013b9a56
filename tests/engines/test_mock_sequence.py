"""Tokens to text: nothing is lost, however it is cut, and stop strings are found wherever they lie."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from engines.mock.ask import Sampling
from engines.mock.sequence import OutputSequence
from engines.model.text import decode, encode

TEXTS = st.text(max_size=60)
STOPS = st.lists(st.text(st.sampled_from("ab c"), min_size=1, max_size=4), min_size=1, max_size=4)


def fed(text: str, sampling: Sampling, sizes: list[int]) -> tuple[OutputSequence, str]:
    """A sequence that got the text's tokens in steps of these sizes, and what it showed."""
    sequence = OutputSequence(0, "job", sampling)
    ids = encode(text)
    shown = ""
    while ids and not sequence.finished:
        size = sizes.pop(0) if sizes else 1
        step, ids = ids[:size], ids[size:]
        shown += sequence.feed(step, None if ids else "length").text
    return sequence, shown


@given(TEXTS, st.lists(st.integers(1, 5), max_size=30))
def test_the_pieces_are_the_text_however_tokens_come(text: str, sizes: list[int]) -> None:
    sequence, shown = fed(text, Sampling(max_tokens=100), sizes)
    assert shown == text == sequence.text
    assert sequence.token_ids == encode(text)


@given(st.text(st.sampled_from("ab cx"), max_size=60), STOPS, st.lists(st.integers(1, 5), max_size=30))
def test_the_first_stop_string_ends_the_text(text: str, stops: list[str], sizes: list[int]) -> None:
    sequence, shown = fed(text, Sampling(max_tokens=100, stop=tuple(stops)), sizes)
    hits = [text.find(stop) for stop in stops if stop in text]
    if not hits:
        assert shown == text
        assert sequence.stop_reason is None
    elif len(encode(text)) == len(sequence.token_ids):
        assert sequence.finish_reason in {"stop", "length"}
    if sequence.finish_reason == "stop" and hits:
        assert sequence.stop_reason in stops
        assert text.startswith(shown + str(sequence.stop_reason))
        assert not any(stop in shown for stop in stops)


@given(st.text(st.sampled_from("ab cx"), max_size=40), STOPS)
def test_token_by_token_the_earliest_stop_wins(text: str, stops: list[str]) -> None:
    sequence, shown = fed(text, Sampling(max_tokens=100, stop=tuple(stops)), [])
    found = re.search("|".join(re.escape(stop) for stop in sorted(stops, key=len, reverse=True)), text)
    assert (sequence.finish_reason == "stop") == (found is not None)
    assert not any(stop in shown for stop in stops)


@given(st.text(st.sampled_from("ab cx"), min_size=1, max_size=40), STOPS)
def test_a_stop_that_is_kept_ends_the_text(text: str, stops: list[str]) -> None:
    sequence, shown = fed(text, Sampling(max_tokens=100, stop=tuple(stops), include_stop=True), [])
    if sequence.finish_reason == "stop":
        assert shown.endswith(str(sequence.stop_reason))
        assert text.startswith(shown)


def test_a_character_split_over_tokens_waits_for_its_end() -> None:
    sequence = OutputSequence(0, "job", Sampling(max_tokens=10))
    first, second = encode("abc" + "é" + "zzz")
    assert sequence.feed([first], None).text == "abc"
    assert sequence.feed([second], None).text == "ézzz"


def test_a_character_that_never_ends_is_shown_as_such_at_the_end() -> None:
    sequence = OutputSequence(0, "job", Sampling(max_tokens=10))
    first, _ = encode("abc" + "é" + "zzz")
    assert sequence.feed([first], "length").text == decode([first]) == "abc\ufffd"


def test_min_tokens_lets_stop_strings_pass() -> None:
    sequence, shown = fed("aaaabbbbaaaa", Sampling(max_tokens=10, min_tokens=3, stop=("bb",)), [])
    assert shown == "aaaabbbbaaaa"
    assert sequence.finish_reason == "length"


def test_an_abort_shows_what_was_held_back() -> None:
    sequence = OutputSequence(0, "job", Sampling(max_tokens=10, stop=("d!",)))
    assert sequence.feed(encode("abcd"), None).text == "abc"
    piece = sequence.close("abort")
    assert (piece.text, piece.finish_reason, sequence.text) == ("d", "abort", "abcd")


def test_a_script_replaces_the_sampled_tokens() -> None:
    sequence = OutputSequence(0, "job", Sampling(max_tokens=10, script=tuple(encode("hello world"))))
    shown = sequence.feed([1], None).text + sequence.feed([2, 3], "length").text
    assert shown == "hello world"
    assert sequence.finish_reason == "stop"


def test_a_script_that_is_cut_ends_with_length() -> None:
    sequence = OutputSequence(0, "job", Sampling(max_tokens=1, script=tuple(encode("hello world"))))
    assert sequence.feed([1], "length").finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_its_reason() -> None:
    ids = encode("aaaabbbbcccc")
    sequence = OutputSequence(0, "job", Sampling(max_tokens=10, stop_token_ids=frozenset({ids[1]})))
    assert not sequence.feed(ids[:1], None).finish_reason
    piece = sequence.feed(ids[1:], None)
    assert (piece.finish_reason, piece.stop_reason, piece.token_ids) == ("stop", ids[1], [ids[1]])
