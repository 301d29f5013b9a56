"""What an engine says about its work: usage, finish reasons and errors, in each API's shape.

Separate because streams and whole answers carry the same objects, and because only here are the dialects
known: vLLM, SGLang (flat errors), FastAPI (`detail`), mlx-lm (an error that is a string) and Messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.core.request import Api


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine reported them; None where it said nothing.

    Attributes:
        prompt_tokens: the whole prompt, its cached part included.
        completion_tokens: of all sequences together.
        cached_tokens: the part of the prompt that came from the engine's prefix cache.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineError:
    """An error object of an engine.

    Attributes:
        code: as sent, as text; "" when there was none.
        status: the HTTP status that `code` names, None when it names none.
        first: in a stream, whether no data event came before it.
    """

    message: str
    type: str = ""
    code: str = ""
    status: int | None = None
    first: bool = False


class Answer(msgspec.Struct, frozen=True):
    """Facts of one whole answer.

    Attributes:
        finish_reasons: by index of the choice; Messages and Responses have index 0 only.
        error: set when the body is an engine's error, whatever its HTTP status.
    """

    id: str = ""
    usage: Usage | None = None
    finish_reasons: Mapping[int, str] = msgspec.field(default_factory=dict)
    error: EngineError | None = None

    @property
    def aborted(self) -> bool:
        """Whether a sequence ended in `abort`: the engine died, or was told to stop."""
        return "abort" in self.finish_reasons.values()


class Payload(msgspec.Struct, gc=False):
    """The fields of an engine's JSON object that are read. No type is taken for granted."""

    id: Any = None
    type: Any = None
    object: Any = None
    choices: Any = None
    usage: Any = None
    error: Any = None
    message: Any = None
    code: Any = None
    detail: Any = None
    delta: Any = None
    status: Any = None
    stop_reason: Any = None
    incomplete_details: Any = None
    response: Any = None


_PAYLOAD = msgspec.json.Decoder(Payload)


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _UsageCounts(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Ending(msgspec.Struct, gc=False):
    index: int = 0
    finish_reason: str | None = None


class _Completion(msgspec.Struct, gc=False):
    """A whole answer of chat or completions in the types that the API gives its fields. What is of another
    type, or may be an error, is read as a Payload."""

    id: str | None = None
    type: str | None = None
    object: str | None = None
    choices: list[_Ending] | None = None
    usage: _UsageCounts | None = None
    error: None = None
    detail: None = None


_COMPLETION = msgspec.json.Decoder(_Completion)
_TYPED = frozenset({Api.CHAT, Api.COMPLETIONS, Api.OTHER})


def read_payload(data: bytes) -> Payload | None:
    """The fields of interest; None for bytes that are not a JSON object."""
    try:
        return _PAYLOAD.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def read_answer(api: Api, data: bytes) -> Answer:
    """Facts of a whole answer; an empty Answer when the body is not a JSON object.

    Nearly every answer is of the types that the API promises, and read without its text being decoded.
    """
    answer = _read_completion(data) if api in _TYPED else None
    return _read_any(api, data) if answer is None else answer


def _read_completion(data: bytes) -> Answer | None:
    """What `_read_any` reads, at a third of the cost; None where a value is of another type or it may be an
    error."""
    try:
        seen = _COMPLETION.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    if seen.object == "error" or seen.type == "error":
        return None
    reasons = {one.index: one.finish_reason for one in seen.choices or () if one.finish_reason}
    counts = seen.usage
    if counts is None:
        return Answer(seen.id or "", None, reasons)
    cached = counts.prompt_tokens_details.cached_tokens if counts.prompt_tokens_details is not None else None
    usage = Usage(_tokens(counts.prompt_tokens), _tokens(counts.completion_tokens), _tokens(cached))
    return Answer(seen.id or "", usage, reasons)


def _read_any(api: Api, data: bytes) -> Answer:
    payload = read_payload(data)
    if payload is None:
        return Answer()
    error = read_error(payload)
    if error is not None:
        return Answer(error=error)
    return Answer(
        id=payload.id if isinstance(payload.id, str) else "",
        usage=read_usage(api, payload.usage),
        finish_reasons=_finish_reasons(api, payload),
    )


def _finish_reasons(api: Api, payload: Payload) -> dict[int, str]:
    if api is Api.MESSAGES:
        return {0: message_reason(payload.stop_reason)} if payload.type == "message" else {}
    if api is Api.RESPONSES:
        reason = response_reason(payload.status, payload.incomplete_details)
        return {0: reason} if reason else {}
    return {index: reason for index, reason, _ in read_choices(payload.choices) if reason is not None}


def message_reason(stop_reason: Any) -> str:
    """Why a message of Anthropic's API ended. A whole one always says; vLLM has no word of that API for an
    abort, and says null before a clean end (seen in 0.32 after SIGTERM)."""
    return stop_reason if isinstance(stop_reason, str) else "abort"


def read_choices(choices: Any) -> list[tuple[int, str | None, int | None]]:
    """(index, finish reason, number of token ids) of each choice; None for what a choice does not say."""
    found: list[tuple[int, str | None, int | None]] = []
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            index = choice.get("index")
            ids = choice.get("token_ids")
            found.append(
                (
                    index if type(index) is int else 0,
                    _reason(choice.get("finish_reason")),
                    len(ids) if isinstance(ids, list) else None,
                )
            )
    return found


def _reason(value: Any) -> str | None:
    if isinstance(value, dict):  # SGLang's native form: {"type": "abort", "message": …}
        value = value.get("type")
    return value if isinstance(value, str) and value else None


def response_reason(status: Any, incomplete_details: Any) -> str:
    """Why a Responses answer ended: why it is incomplete, otherwise its status; "" while it runs."""
    if isinstance(incomplete_details, dict) and isinstance(incomplete_details.get("reason"), str):
        return str(incomplete_details["reason"])
    return status if status in ("completed", "incomplete", "failed", "cancelled") else ""


def read_usage(api: Api, usage: Any) -> Usage | None:
    """Usage of one answer or event; None when there is none."""
    if not isinstance(usage, dict):
        return None
    if api is Api.MESSAGES:
        return _messages_usage(usage)
    if api is Api.RESPONSES:
        details = usage.get("input_tokens_details")
        prompt, completion = usage.get("input_tokens"), usage.get("output_tokens")
    else:
        details = usage.get("prompt_tokens_details")
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_tokens(prompt), _tokens(completion), _tokens(cached))


def _messages_usage(usage: dict[str, Any]) -> Usage:
    """Anthropic counts the uncached, the written and the read part of the prompt apart; their sum is it."""
    fresh = _tokens(usage.get("input_tokens"))
    read = _tokens(usage.get("cache_read_input_tokens"))
    written = _tokens(usage.get("cache_creation_input_tokens"))
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(prompt, _tokens(usage.get("output_tokens")), read)


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def read_error(payload: Payload, *, first: bool = False) -> EngineError | None:
    """The error that a body or an event is, in any of the dialects; None when it is none."""
    error = payload.error
    if isinstance(error, dict):
        return _error(error.get("message"), error.get("type"), error.get("code"), first)
    if isinstance(error, str) and error:
        return _error(error, payload.type, payload.code, first)
    if payload.object == "error" or payload.type == "error":
        return _error(payload.message, payload.type, payload.code, first)
    if payload.detail is not None and payload.choices is None and payload.id is None:
        return _error(payload.detail, None, payload.code, first)
    return None


def _error(message: Any, kind: Any, code: Any, first: bool) -> EngineError:
    text = code if isinstance(code, str) else str(code) if type(code) is int else ""
    status = int(text) if text.isascii() and text.isdigit() and len(text) == 3 else None
    return EngineError(
        message if isinstance(message, str) else msgspec.json.encode(message).decode(),
        kind if isinstance(kind, str) else "",
        text,
        status if status is not None and 400 <= status <= 599 else None,
        first,
    )
