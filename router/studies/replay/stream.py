"""What one streamed answer tells a load client: when its tokens came, how many, and how it ended.

Sans-IO: bytes of events and times go in. Separate from the connection so that every shape an engine was
seen to send can be tried without one.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

BAD_FINISHES = frozenset({"abort", "error"})
"""Finish reasons that no client asked for: vLLM ends a stream so when it is told to stop."""


class Failure(msgspec.Struct, frozen=True):
    """Why a request did not succeed: a fixed word, and the other side's own words."""

    kind: str
    message: str


class _Delta(msgspec.Struct):
    role: str | None = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    @property
    def output(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def bears_token(self) -> bool:
        """Whether a token lies behind this event, by what engines were seen to send.

        Text is a token. No text is one too (an unfinished character, a held-back stop string), unless the
        event only opens the answer (vLLM's role chunk) or only ends it (SGLang's finish chunk).
        """
        if self.text or (self.delta is not None and self.delta.output):
            return True
        opens = self.delta is not None and self.delta.role is not None
        return not opens and self.finish_reason is None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The engine's own count. `completion_tokens` is None where an engine leaves it out."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None

    @property
    def failed(self) -> bool:
        """Whether this is an error: nested as OpenAI and vLLM have it, or flat as SGLang has it."""
        return self.error is not None or self.object == "error"


_CHUNKS = msgspec.json.Decoder(_Chunk)


def error_message(body: bytes) -> str:
    """The sentence inside an error body of any known shape, else the beginning of the body."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace")
    error = fields.get("error", fields)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:200]


class StreamMeter:
    """Reads the events of one stream. Mutable state: all fields below; times are those given to `event`.

    Attributes:
        first: when the first token came; a finish without any token before it counts as one.
        last: when the last event with a choice came.
    """

    __slots__ = ("_previous", "done", "failure", "finish_reason", "first", "itl_us", "last", "usage")

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.itl_us = array("Q")
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.failure: Failure | None = None
        self.done = False
        self._previous = 0.0

    def event(self, data: bytes, now: float) -> None:
        """Takes the data of one event. After a failure the rest of the stream changes nothing."""
        if len(data) < 16 and data.strip() == b"[DONE]":
            self.done = True
            return
        if self.failure is not None:
            return
        try:
            chunk = _CHUNKS.decode(data)
        except msgspec.DecodeError as error:
            self.failure = Failure("bad_event", f"{error}: {data[:80]!r}")
            return
        if chunk.failed:
            self.failure = Failure("error_event", error_message(data))
            return
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.choices:
            self._choice(chunk.choices[0], now)

    def _choice(self, choice: _Choice, now: float) -> None:
        self.last = now
        if choice.bears_token:
            if self.first is None:
                self.first = now
            else:
                self.itl_us.append(round((now - self._previous) * 1e6))
            self._previous = now
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            if self.first is None:
                self.first = now

    def end(self) -> Failure | None:
        """The verdict at the clean end of the connection's answer. `[DONE]` alone proves nothing."""
        if self.failure is None and self.finish_reason in BAD_FINISHES:
            self.failure = Failure("aborted", f"the engine ended the answer with {self.finish_reason!r}")
        if self.failure is None and self.finish_reason is None:
            self.failure = Failure("cut", "the stream ended without a finish reason")
        return self.failure
