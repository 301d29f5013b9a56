"""The meaning of single stream events: each one adds to the facts of its stream.

Separate from the scanner, which finds events in bytes and decides what is forwarded; this module reads their
JSON, in the shapes of chat and completions, Messages and Responses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from router.core.answer import (
    EngineError,
    Payload,
    Usage,
    message_reason,
    read_choices,
    read_error,
    read_payload,
    read_usage,
    response_reason,
)
from router.core.request import Api
from router.core.sse import Event

_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(slots=True)
class StreamFacts:
    """What one stream has said so far.

    Attributes:
        events: dispatched events of any kind.
        data_events: those that carry an answer: not `[DONE]`, not errors, not malformed ones, not pings.
        content_events: those that may stand for new tokens, for engines that count nothing themselves.
        comments: blocks without data, such as keep-alives.
        malformed: data events that are not a JSON object.
        done: the end that the API promises: `[DONE]` as an event of its own, `message_stop`, or
            `response.completed`, `.incomplete` or `.failed`.
        finish_reasons: by index of the choice; Messages and Responses have index 0 only.
        error: the first error event.
        answer_id: id of the completion, message or response, "" until it is known.
        tokens_by_choice: running usage, by index of the choice.
        token_ids: how many token ids were sent, None when none were.
        total_tokens: output tokens of all choices together, from the final usage.
    """

    events: int = 0
    data_events: int = 0
    content_events: int = 0
    comments: int = 0
    malformed: int = 0
    done: bool = False
    finish_reasons: dict[int, str] = field(default_factory=dict)
    error: EngineError | None = None
    answer_id: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens_by_choice: dict[int, int] = field(default_factory=dict)
    token_ids: int | None = None
    total_tokens: int | None = None

    @property
    def generated_tokens(self) -> int | None:
        """Output tokens of all choices so far as the engine counts them; None while it has not said.

        The final usage when it came, else running usage, else the token ids.
        """
        if self.total_tokens is not None:
            return self.total_tokens
        if self.tokens_by_choice:
            return sum(self.tokens_by_choice.values())
        return self.token_ids

    @property
    def usage(self) -> Usage | None:
        """Usage so far, running or final; None when none was reported."""
        generated = self.generated_tokens
        if self.prompt_tokens is None and generated is None:
            return None
        return Usage(self.prompt_tokens, generated, self.cached_tokens)

    @property
    def aborted(self) -> bool:
        """Whether a choice ended in `abort`: a failure unless the client asked for it."""
        return "abort" in self.finish_reasons.values()

    @property
    def failed(self) -> bool:
        """Whether the engine said that this answer is broken, whatever end it put behind it."""
        return self.error is not None or self.aborted


def read_event(api: Api, event: Event, facts: StreamFacts) -> bool:
    """Adds one event to `facts`; True when it is a usage-only event of chat or completions."""
    facts.events += 1
    if event.is_done:
        # vLLM's Messages of some versions put a [DONE] behind message_stop: there it promises nothing
        facts.done = facts.done or api in (Api.CHAT, Api.COMPLETIONS)
        return False
    if api is Api.MESSAGES and event.event == "content_block_delta":
        facts.data_events += 1
        facts.content_events += 1
        return False
    if api is Api.RESPONSES and event.event is not None and event.event.endswith(".delta"):
        facts.data_events += 1
        facts.content_events += 1
        return False
    payload = read_payload(event.data)
    if payload is None:
        facts.malformed += 1
        return False
    if api is Api.MESSAGES:
        _read_message_event(event.event, payload, facts)
    elif api is Api.RESPONSES:
        _read_response_event(event.event, payload, facts)
    else:
        return _read_chunk(api, payload, facts)
    return False


def _note_error(payload: Payload, facts: StreamFacts) -> bool:
    error = read_error(payload, first=facts.data_events == 0)
    if error is None:
        return False
    facts.error = facts.error or error
    return True


def _read_chunk(api: Api, payload: Payload, facts: StreamFacts) -> bool:
    if _note_error(payload, facts):
        return False
    facts.data_events += 1
    if not facts.answer_id and isinstance(payload.id, str):
        facts.answer_id = payload.id
    indexes = _note_choices(payload, facts)
    usage = read_usage(api, payload.usage)
    if usage is None:
        return False
    _note_usage(usage, facts)
    if usage.completion_tokens is not None:
        # beside one choice vLLM counts that choice alone; beside none it counts all of them
        if len(indexes) == 1:
            facts.tokens_by_choice[indexes[0]] = usage.completion_tokens
        else:
            facts.total_tokens = usage.completion_tokens
    return isinstance(payload.choices, list) and not payload.choices


def _note_choices(payload: Payload, facts: StreamFacts) -> list[int]:
    choices = read_choices(payload.choices)
    for index, reason, ids in choices:
        if reason is not None:
            facts.finish_reasons[index] = reason
        if ids is not None:
            facts.token_ids = (facts.token_ids or 0) + ids
    if choices and not _role_only(payload.choices):
        facts.content_events += 1
    return [index for index, _, _ in choices]


def _role_only(choices: list[Any]) -> bool:
    """Whether this is the opening chunk, which names the role and holds no token."""
    return all(isinstance(choice, dict) and _opens(choice) for choice in choices)


def _opens(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict) or "role" not in delta:
        return False
    if choice.get("token_ids") or choice.get("finish_reason"):
        return False
    return not any(value for name, value in delta.items() if name != "role")


def _note_usage(usage: Usage, facts: StreamFacts) -> None:
    if usage.prompt_tokens is not None:
        facts.prompt_tokens = usage.prompt_tokens
    if usage.cached_tokens is not None:
        facts.cached_tokens = usage.cached_tokens


def _read_message_event(name: str | None, payload: Payload, facts: StreamFacts) -> None:
    kind = name or payload.type
    if _note_error(payload, facts) or kind == "ping":
        return
    facts.data_events += 1
    if kind == "content_block_delta":
        facts.content_events += 1
    elif kind == "message_start" and isinstance(payload.message, dict):
        message_id = payload.message.get("id")
        facts.answer_id = message_id if isinstance(message_id, str) else ""
        usage = read_usage(Api.MESSAGES, payload.message.get("usage"))
        if usage is not None:
            _note_usage(usage, facts)
    elif kind == "message_delta":
        _read_message_delta(payload, facts)
    elif kind == "message_stop":
        facts.done = True


def _read_message_delta(payload: Payload, facts: StreamFacts) -> None:
    if isinstance(payload.delta, dict) and "stop_reason" in payload.delta:
        facts.finish_reasons[0] = message_reason(payload.delta["stop_reason"])
    usage = read_usage(Api.MESSAGES, payload.usage)
    if usage is not None:
        _note_usage(usage, facts)
        facts.total_tokens = usage.completion_tokens


def _read_response_event(name: str | None, payload: Payload, facts: StreamFacts) -> None:
    kind = name or payload.type
    if (kind == "error" or payload.response is None) and _note_error(payload, facts):
        return
    facts.data_events += 1
    if isinstance(kind, str) and kind.endswith(".delta"):
        facts.content_events += 1
    response = payload.response
    if not isinstance(response, dict):
        return
    if isinstance(response.get("id"), str):
        facts.answer_id = response["id"]
    if kind in _RESPONSE_ENDS:
        _read_response_end(response, payload, facts)


def _read_response_end(response: dict[str, object], payload: Payload, facts: StreamFacts) -> None:
    facts.done = True
    usage = read_usage(Api.RESPONSES, response.get("usage"))
    if usage is not None:
        _note_usage(usage, facts)
        facts.total_tokens = usage.completion_tokens
    reason = response_reason(response.get("status"), response.get("incomplete_details"))
    if reason:
        facts.finish_reasons[0] = reason
    if reason == "failed" or payload.type == "response.failed":
        inner = Payload(error=response.get("error") or {"message": "The worker failed this response."})
        facts.error = facts.error or read_error(inner, first=facts.data_events <= 1)
