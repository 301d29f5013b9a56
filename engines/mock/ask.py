"""What one generation request asks for, after validation: the same for every API and dialect.

Separate from the parsing of each API's body so that the engine and the encoders share one vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function call that the answer is made to be (`tool_choice` required or named).

    Attributes:
        name: the function.
        arguments: its arguments as JSON text, written from the tool's schema.
        named: the client named the function itself; vLLM then leaves the finish reason as it is.
    """

    name: str
    arguments: str
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Limits and seeds of the output.

    Attributes:
        max_tokens: output limit, already clipped to the model's length (tokens).
        stop: strings that end the output; they are not part of it.
        logprobs: alternatives per token, 0 for the token alone, None for no logprobs.
        script: token ids that the output is made of in place of free text (tool calls), None for free text.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    logprobs: int | None = None
    script: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How the answer is written.

    Attributes:
        stream: as events, not as one body.
        include_usage: a last event with the usage.
        continuous_usage: usage on every event (only together with include_usage).
        interval: tokens of one event after the first.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    interval: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What a request says of KV on other engines.

    Attributes:
        retain: the prompt's blocks are kept at the end, for a decode engine.
        retain_stopped: also when the answer ended before its limit.
        offer: what a decode engine will ask for the kept blocks by, in the words of the connector; None where
            the answer says that.
        meets: the prompt is not computed before a decode engine is there to take it, and not answered before
            it has been taken.
        handle: where the prompt's KV is, in the words of the connector; None: it is computed here.
        remote_cached_tokens: cached tokens as the prefill engine counted them.
        prompt_token_ids: the prompt as the prefill engine read it, in place of reading it again.
        each: of each answer, where they differ.
    """

    retain: bool = False
    retain_stopped: bool = True
    offer: object | None = None
    meets: bool = False
    handle: object | None = None
    remote_cached_tokens: int | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    each: tuple[HandOver, ...] = ()

    def of(self, index: int) -> HandOver:
        """What it says of one answer."""
        return self.each[index] if self.each else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One validated request.

    Attributes:
        request_id: the answer's `id`.
        model: the name the answer carries.
        prompts: token ids of each prompt; chat has one.
        n: answers per prompt.
        priority: lower runs first.
        return_token_ids: the answer carries prompt and output ids.
        echo_prompt: a completion begins with its prompt.
        tool: the call the answer is made to be, None for text.
        echo: fields of the body that the Responses API repeats.
        prompt_logprobs: alternatives per prompt token, None for no log-probabilities of the prompt.
        hand_over: what it says of KV on other engines, None for nothing.
        rank: the data-parallel rank that is to run it; None leaves that to the engine.
    """

    request_id: str
    model: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    streaming: Streaming = Streaming()
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    return_token_ids: bool = False
    echo_prompt: bool = False
    tool: ToolCall | None = None
    echo: dict[str, object] = field(default_factory=dict)
    prompt_logprobs: int | None = None
    hand_over: HandOver | None = None
    rank: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt) for prompt in self.prompts)


@dataclass(slots=True)
class Piece:
    """What one step, or several that were merged, added to one answer.

    Attributes:
        index: prompt index · n + answer index.
        text: the new text; may be empty.
        token_ids: the new tokens.
        finish_reason: why the answer ended here, None when it goes on.
        stop_reason: the stop string or token id that ended it.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def absorb(self, later: Piece) -> None:
        """Add the piece that follows: a slow consumer gets both in one event, as in vLLM."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason


@dataclass(frozen=True, slots=True)
class Extras:
    """What the engine adds to an answer.

    Attributes:
        cached_tokens: of its prompts; None when details are not enabled.
        created_cache_tokens: of its prompts, computed here and cached since.
        kv_transfer_params: where the prompt's KV is kept; None when it is not.
    """

    cached_tokens: int | None
    created_cache_tokens: int = 0
    kv_transfer_params: Mapping[str, object] | None = None


@dataclass(slots=True)
class Answer:
    """One finished answer, for a body that is not streamed."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
