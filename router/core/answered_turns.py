"""The answer that a worker gave in the turn before: it holds that as well, though no prompt has shown it yet.

Separate from the index, which believes what was sent. What a worker generated stays in its cache behind the
prompt, and comes back as a part of the next prompt of the conversation. The text of answers passes through
the router unread, so the place is found in the next prompt: whoever holds a conversation up to the beginning
of its last answer is taken to hold that answer, too. Where a template renders answers otherwise than they
were generated (it drops the reasoning), that is too much by an answer; it is the right worker all the same.
"""

from __future__ import annotations

from router.core.prefix_match import Match

_BORDER = b"\xff"
_MESSAGE = b"\xffm"
_ANSWER = b"\xffmassistant"
_BORDERS = 64
"""Segments looked at, from the end: behind the last answer stands a question, or what tools returned."""


def with_answer(match: Match, text: bytes) -> Match:
    """The same match, with the last answer for everybody who holds all before it.

    Args:
        text: the canonical form of the prompt that was matched.
    """
    span = last_answer(text) if match.tokens else None
    if span is None:
        return match
    begin, end = span
    size, prompt_tokens = len(text), match.prompt_tokens
    upto = min(end * prompt_tokens // size, prompt_tokens - 1)
    # Tokens are rounded down from bytes; one more would be beyond what is held.
    tokens = {
        name: max(held, upto) if (held + 1) * size > begin * prompt_tokens else held
        for name, held in match.tokens.items()
    }
    return Match(prompt_tokens, tokens)


def last_answer(text: bytes) -> tuple[int, int] | None:
    """Where the last answer that a message follows begins and ends; None without one."""
    end = at = len(text)
    for _ in range(_BORDERS):
        at = text.rfind(_BORDER, 0, at)
        if at < 0:
            return None
        if text.startswith(_ANSWER, at):
            return (at, end) if end < len(text) else None
        if text.startswith(_MESSAGE, at):
            end = at
    return None
