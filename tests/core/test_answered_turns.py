"""Laws of the answer that comes back: who is taken to hold it, and who is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answered_turns import last_answer, with_answer
from router.core.prefix_match import Match
from router.core.prompt_text import canonical_text


def rendered(*messages: tuple[str, Any]) -> bytes:
    """The canonical form of a conversation."""
    said = [{"role": role, "content": content} for role, content in messages]
    return canonical_text({"messages": json.dumps(said).encode()})


TALK = (("system", "s" * 100), ("user", "q" * 100), ("assistant", "a" * 600), ("user", "r" * 200))
BEFORE, AFTER = rendered(*TALK[:2]), rendered(*TALK[:3])


def test_the_last_answer_reaches_to_the_message_behind_it() -> None:
    assert last_answer(rendered(*TALK)) == (len(BEFORE), len(AFTER))
    later = rendered(*TALK, ("assistant", "b" * 50), ("tool", "t"), ("user", "u"))
    assert last_answer(later) == (len(rendered(*TALK)), len(rendered(*TALK, ("assistant", "b" * 50))))


@pytest.mark.parametrize(
    "messages",
    [TALK[:2], TALK[:3], (("user", "I am the assistant"),), ()],
    ids=["no answer", "an answer to go on with", "a word", "nothing"],
)
def test_without_an_answer_that_a_message_follows_there_is_none(messages: Any) -> None:
    assert last_answer(rendered(*messages)) is None


def test_whoever_holds_the_conversation_up_to_its_answer_holds_the_answer() -> None:
    text = rendered(*TALK)
    match = Match(250, {"had it": len(BEFORE) * 250 // len(text), "system prompt": 20, "all": 240})
    found = with_answer(match, text)
    assert found.tokens == {"had it": len(AFTER) * 250 // len(text), "system prompt": 20, "all": 240}


def test_a_match_of_nobody_is_left_alone() -> None:
    match = Match(250, {})
    assert with_answer(match, rendered(*TALK)) is match


def test_many_messages_behind_the_last_answer_are_not_searched_for_ever() -> None:
    assert last_answer(rendered(*TALK, *(("user", "x") for _ in range(1_000)))) is None


@given(st.binary(max_size=200), st.integers(1, 100), st.dictionaries(st.text(max_size=2), st.integers(1, 99)))
def test_nobody_holds_less_than_before_nor_the_last_token(
    text: bytes, tokens: int, held: dict[str, int]
) -> None:
    text = text.replace(b"~", b"\xffmassistant").replace(b"#", b"\xffmuser") or b"x"
    before = Match(tokens, {name: min(value, tokens - 1) for name, value in held.items() if tokens > 1})
    after = with_answer(before, text)
    assert after.tokens.keys() == before.tokens.keys()
    for name, value in before.tokens.items():
        assert value <= after.tokens[name] < tokens
