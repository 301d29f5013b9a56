"""Anthropic's Messages API as vLLM serves it: body to request, events and bodies back.

Separate because neither the roles, the stop reasons nor the events are OpenAI's, and there is no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece, ToolCall
from engines.mock.chat import tool_call_id
from engines.mock.errors import bad_body, bad_request
from engines.mock.fields import Fields, Json
from engines.mock.openai_ask import Context, check_model, rendered
from engines.mock.sampling import cache_salt, check_prompt_length, max_tokens, sampling, streaming
from engines.mock.script import tool_call
from engines.model.text import encode

_encode = msgspec.json.encode

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def messages_ask(fields: Fields, context: Context) -> Ask:
    """Read a Messages body.

    Raises:
        Refusal: 400 or 404.
    """
    fields.required("messages")
    limit = _positive(fields, "max_tokens")
    model = context.model_of(fields)
    chat = Fields(_as_chat(fields))
    tool = tool_call(chat, auto_allowed=True)
    prompts = (rendered(chat.objects("messages"), chat),)
    check_prompt_length(prompts, context.limits)
    limit = max_tokens(limit, prompts, context.limits)
    script = tuple(encode(tool.arguments)) if tool is not None else None
    return Ask(
        request_id=f"chatcmpl-{context.request_id}",
        model=model,
        prompts=prompts,
        sampling=sampling(chat, limit, None, script),
        streaming=streaming(chat),
        priority=fields.integer("priority") or 0,
        cache_salt=cache_salt(fields),
        tool=tool,
    )


def _positive(fields: Fields, name: str) -> int | None:
    """A number that the body's own shape demands: vLLM refuses it in the OpenAI form, as any wrong shape."""
    fields.required(name)
    value = fields.integer(name)
    if value is not None and value < 1:
        raise bad_body(f"1 validation error: body.{name} must be positive, got {value}", f"body.{name}")
    return value


def count_tokens(fields: Fields, model: str) -> bytes:
    """Return the body of `/v1/messages/count_tokens`.

    Raises:
        Refusal: 400 or 404.
    """
    fields.required("messages")
    check_model(fields, model)
    chat = Fields(_as_chat(fields))
    count = len(rendered(chat.objects("messages"), chat))
    return _encode({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _as_chat(fields: Fields) -> Json:
    """The body in chat's terms: the system prompt is a message, stop sequences are stop strings."""
    messages: list[Json] = []
    system = fields.raw("system")
    if system is not None:
        messages.append({"role": "system", "content": system})
    for message in fields.objects("messages"):
        messages += _chat_messages(message)
    choice = fields.object("tool_choice")
    return {
        "messages": messages,
        "tools": fields.raw("tools"),
        "tool_choice": None if choice is None else _choice(choice),
        "stop": fields.raw("stop_sequences"),
        "stream": fields.raw("stream"),
        "temperature": fields.raw("temperature"),
        "top_p": fields.raw("top_p"),
    }


def _choice(choice: Fields) -> object:
    kind = choice.text("type")
    if kind == "tool":
        return {"function": {"name": choice.raw("name")}}
    if kind not in _CHOICES:
        raise bad_request(f"tool_choice.type must be auto, any, tool or none, got {kind}.", "tool_choice")
    return _CHOICES[kind]


def _chat_messages(message: Mapping[str, object]) -> list[Json]:
    """One message, with tool uses and tool results taken out of its blocks."""
    content = message.get("content")
    if not isinstance(content, list):
        return [dict(message)]
    parts: list[object] = []
    calls: list[object] = []
    results: list[Json] = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            calls.append({"name": block["name"], "arguments": block.get("input")})
        elif kind == "tool_result":
            results.append({"role": "tool", "content": block.get("content")})
        elif kind not in {"thinking", "redacted_thinking"}:
            parts.append(block)
    chat: Json = {"role": message.get("role"), "content": parts}
    if calls:
        chat["tool_calls"] = calls
    return results + ([chat] if parts or calls else [])


class MessagesStream:
    """Encodes one Messages stream."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._reason: str | None = None
        self._sequence: str | None = None

    def opening(self) -> Iterator[bytes]:
        """Yield the message's start and the start of its one content block."""
        ask = self._ask
        message: Json = {
            "id": ask.request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": ask.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": ask.prompt_tokens, "output_tokens": 0},
        }
        yield _event("message_start", {"message": message})
        yield _event("content_block_start", {"content_block": _empty_block(ask), "index": 0})

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the delta of one piece; a piece without text has none."""
        if piece.text:
            kind, key = (
                ("text_delta", "text") if self._ask.tool is None else ("input_json_delta", "partial_json")
            )
            yield _event("content_block_delta", {"delta": {"type": kind, key: piece.text}, "index": 0})
        if piece.finish_reason is not None:
            self._reason, self._sequence = stop_reason(self._ask.tool, piece.finish_reason, piece.stop_reason)

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield the ends of block and message."""
        yield _event("content_block_stop", {"index": 0})
        delta = {"stop_reason": self._reason, "stop_sequence": self._sequence}
        usage = _usage(self._ask, extras, completion_tokens)
        yield _event("message_delta", {"delta": delta, "usage": usage})
        yield _event("message_stop", {})


def messages_body(ask: Ask, answers: Sequence[Answer], extras: Extras) -> bytes:
    """Return the body of a Messages answer that is not streamed."""
    answer = answers[0]
    block = _empty_block(ask)
    if ask.tool is None:
        block["text"] = answer.text
    else:
        block["input"] = _parsed(answer.text)
    reason, sequence = stop_reason(ask.tool, answer.finish_reason, answer.stop_reason)
    body: Json = {
        "id": ask.request_id,
        "type": "message",
        "role": "assistant",
        "content": [block],
        "model": ask.model,
        "stop_reason": reason,
    }
    if sequence is not None:
        body["stop_sequence"] = sequence
    body["usage"] = _usage(ask, extras, len(answer.token_ids))
    if extras.kv_transfer_params is not None:
        body["kv_transfer_params"] = extras.kv_transfer_params
    return _encode(body)


def stop_reason(
    tool: ToolCall | None, finish_reason: str, stopped_by: str | int | None
) -> tuple[str | None, str | None]:
    """Return Anthropic's stop reason and stop sequence; an abort has neither."""
    if isinstance(stopped_by, str):
        return "stop_sequence", stopped_by
    if tool is not None and finish_reason == "stop":
        return "tool_use", None
    return _STOP_REASONS.get(finish_reason), None


def _usage(ask: Ask, extras: Extras, completion_tokens: int) -> dict[str, int]:
    """Anthropic's input tokens are those neither found in the cache nor put into it."""
    cached = extras.cached_tokens
    created = 0 if cached is None else extras.created_cache_tokens
    return {
        "input_tokens": max(0, ask.prompt_tokens - (cached or 0) - created),
        "output_tokens": completion_tokens,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached or 0,
    }


def _empty_block(ask: Ask) -> Json:
    if ask.tool is None:
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": tool_call_id(ask, 0), "name": ask.tool.name, "input": {}}


def _parsed(arguments: str) -> object:
    """The arguments as an object; a cut text (max_tokens) is no JSON and becomes an empty one."""
    try:
        return msgspec.json.decode(arguments.encode())
    except msgspec.DecodeError:
        return {}


def _event(kind: str, fields: Mapping[str, object]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
