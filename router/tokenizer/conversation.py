"""The messages of a chat as its template gets them, which is not quite as the client sent them.

Separate from the template because it knows no Jinja: it repeats what vLLM does to messages and tools before
it renders them, so that the same tokens come out. What only an engine can render (images, audio, a final
message to be continued) is refused, and is then keyed as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_TEXT = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_BILLING = "x-anthropic-billing-header"
_decode = msgspec.json.Decoder().decode

Message = dict[str, Any]


class NotRendered(Exception):
    """Only the engine knows what tokens this prompt becomes."""


def conversation(messages: object, *, parts: bool, knows_developer: bool) -> list[Message]:
    """The messages for the template.

    Args:
        parts: it wants content as a list of parts.
        knows_developer: it has a word for the role `developer`; elsewhere that is a system message.

    Raises:
        NotRendered: something else than text is in it, or it is no list of messages.
    """
    if not isinstance(messages, list):
        raise NotRendered("no list of messages")
    made = [_message(message, parts=parts) for message in messages]
    if not knows_developer and any(message["role"] == "developer" for message in made):
        made = _one_system([_as_system(message) for message in made])
    return made


def tool_schemas(tools: object) -> list[Message] | None:
    """The tools in the order of fields in which vLLM writes them.

    Raises:
        NotRendered: they are no list of functions.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise NotRendered("tools are no list")
    return [_tool(tool) for tool in tools]


def _message(message: object, *, parts: bool) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise NotRendered("a message without a role")
    role = message["role"]
    content = _content(message.get("content"), system=role == "system", parts=parts)
    made: Message = {"role": role, "content": content}
    if role == "assistant":
        _add_calls(made, message)
    elif role == "tool":
        _add_result(made, message)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            made[name] = message[name]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _content(content: object, *, system: bool, parts: bool) -> str | list[Message]:
    whole = [] if content is None else [content] if isinstance(content, str) else content
    if not isinstance(whole, list):
        raise NotRendered("content of no known kind")
    texts = [_text(part) for part in whole]
    if system:
        texts = [kept for text in texts if (kept := _without_billing(text)) is not None]
    if parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(text for text in texts if text)


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT:
        text = part.get("text", part.get(part["type"]))
        if isinstance(text, str):
            return text
    raise NotRendered("a part that is no text")


def _without_billing(text: str) -> str | None:
    """Without the line of Claude Code that is another one in every request; None when nothing is left."""
    return (text.partition("\n")[2] or None) if text.startswith(_BILLING) else text


def _add_result(made: Message, message: Mapping[str, Any]) -> None:
    """What a tool answered is one text for every template."""
    if "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    if isinstance(made["content"], list):
        made["content"] = "\n".join(part["text"] for part in made["content"])


def _add_calls(made: Message, message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise NotRendered("tool calls are no list")
        made["tool_calls"] = [_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = reasoning


def _call(call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise NotRendered("a tool call without a function")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(told: object) -> Message:
    """As an object; what is none counts as an empty one."""
    if isinstance(told, str) and told:
        try:
            told = _decode(told)
        except (msgspec.DecodeError, RecursionError):
            return {}
    return told if isinstance(told, dict) else {}


def _tool(tool: object) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or tool.get("type") != "function":
        raise NotRendered("a tool that is no function")
    made = {name: function.get(name) for name in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    optional = {
        "strict": function.get("strict"),
        "defer_loading": function.get("defer_loading", deferred),
    }
    made |= {name: value for name, value in optional.items() if value is not None}
    whole: Message = {"type": "function", "function": made}
    return whole if deferred is None else {**whole, "defer_loading": deferred}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {**{name: value for name, value in message.items() if name != "tools"}, "role": "system"}


def _one_system(messages: Sequence[Message]) -> list[Message]:
    """Merges system messages into one at the beginning, unless there is just that one."""
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) == 1 and messages[0]["role"] == "system":
        return list(messages)
    texts = [
        content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        for content in (message["content"] for message in systems)
    ]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]
