"""Renders the prompt-shaping fields of a body into the typed segments of a text prompt key.

Separate from the key itself because it knows the three shapes of a prompt (chat and completions, Responses,
Messages) and nothing of hashing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from router.core.json_bounds import too_many_values

_BORDER = b"\xff"
_ANY = msgspec.json.Decoder()
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode

_OPTIONS = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "previous_response_id",
    "conversation",
)
"""Fields that change how the engine renders what follows. They stand first: a difference then shares nothing,
which costs a hit where a template uses them only at its end, and never claims one that is not there."""

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning_text"})
_MEDIA_PARTS = frozenset(
    {
        "image", "image_url", "input_image", "image_pil", "image_embeds", "audio", "audio_url", "input_audio",
        "video", "video_url", "file", "input_file", "document",
    }
)  # fmt: skip
_RENDERED_APART = frozenset({"role", "content", "cache_control"})
_BILLING = "x-anthropic-billing-header"
_SYSTEM_ROLES = frozenset({"system", "developer"})


def canonical_text(fields: Mapping[str, msgspec.Raw | bytes]) -> bytes:
    """Typed segments of the first prompt in `fields` (raw JSON by field name)."""
    segments: list[bytes] = []
    for place in sorted([_PLACES[name] for name in fields if name in _PLACES]):
        name, render = _RENDERED[place]
        raw = bytes(fields[name])
        if raw != b"null":
            segments.extend(render(name, raw))
    return b"".join(segments)


def _option(name: str, raw: bytes) -> Iterator[bytes]:
    yield _BORDER + b"o" + name.encode() + b"=" + raw


def _documents(_: str, raw: bytes) -> Iterator[bytes]:
    yield _BORDER + b"d" + raw


def _system(_: str, raw: bytes) -> Iterator[bytes]:
    yield _BORDER + b"msystem"
    yield from _content(_decode(raw), system=True)


def _decode(raw: bytes) -> Any:
    """The value, or its raw bytes where it cannot be read: the key stays exact, only less shared."""
    if too_many_values(raw):
        return raw
    try:
        return _ANY.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return raw


def _tools(_: str, raw: bytes) -> Iterator[bytes]:
    """Each tool as sent, key order and spaces included, because engines render schemas as sent."""
    tools = _raw_list(raw)
    if tools is None:
        yield _BORDER + b"f" + raw
        return
    for tool in tools:
        yield _BORDER + b"f" + _without_cache_control(bytes(tool))


def _raw_list(raw: bytes) -> list[msgspec.Raw] | None:
    try:
        return None if too_many_values(raw) else _LIST.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _without_cache_control(raw: bytes) -> bytes:
    if b'"cache_control"' not in raw:
        return raw
    try:
        tool = _OBJECT.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw
    tool.pop("cache_control", None)
    if "function" in tool:
        tool["function"] = msgspec.Raw(_without_cache_control(bytes(tool["function"])))
    return _encode(tool)


def _prompt(_: str, raw: bytes) -> Iterator[bytes]:
    prompt = _decode(raw)
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    yield _BORDER + b"p" + (_text(first) if isinstance(first, str) else _plain(first))


def _messages(_: str, raw: bytes) -> Iterator[bytes]:
    messages = _decode(raw)
    if isinstance(messages, str):  # Responses: a bare string is one user message
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        yield _BORDER + b"m" + _plain(messages)
        return
    for message in messages:
        plain = _plain_message(message)
        if plain is None:
            yield from _message(message)
        else:
            yield plain


def _plain_message(message: Any) -> bytes | None:
    """What `_message` makes of a role and a text, at a fraction of the cost: most messages are that. None for
    any other."""
    if not isinstance(message, dict) or len(message) != 2:
        return None
    role, text = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(text, str) or not role or role in _SYSTEM_ROLES:
        return None
    return _BORDER + b"m" + _text(role) + _BORDER + b"t" + _text(text)


def _message(message: Any) -> Iterator[bytes]:
    if not isinstance(message, dict):
        yield _BORDER + b"m" + _plain(message)
        return
    role = message.get("role") or message.get("type")
    name = _text(role) if isinstance(role, str) else _plain(role)
    yield _BORDER + b"m" + name
    yield from _content(message.get("content"), system=role in _SYSTEM_ROLES)
    for field, value in message.items():
        if value is not None and (field, value) != ("type", "message") and field not in _RENDERED_APART:
            yield _BORDER + b"k" + _text(field) + b"=" + _plain(value)


def _content(content: Any, *, system: bool = False) -> Iterator[bytes]:
    if isinstance(content, str):
        yield from _text_part(content, system=system)
    elif isinstance(content, list):
        for part in content:
            yield from _part(part, system=system)
    elif content is not None:
        yield _BORDER + b"x" + _plain(content)


def _part(part: Any, *, system: bool) -> Iterator[bytes]:
    if isinstance(part, str):
        yield from _text_part(part, system=system)
        return
    if not isinstance(part, dict):
        yield _BORDER + b"x" + _plain(part)
        return
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        text = part.get("text", part.get(kind))
        yield from _content(text, system=system)
    elif kind in _MEDIA_PARTS:
        yield _BORDER + b"i" + _hashed(part)
    elif kind == "tool_result":
        yield _BORDER + b"r" + _plain(part.get("tool_use_id"))
        yield from _content(part.get("content"))
    else:
        yield _BORDER + b"x" + _plain(_drop(part))


def _text_part(text: str, *, system: bool) -> Iterator[bytes]:
    if system and text.startswith(_BILLING):
        # A new value in every request of Claude Code; engines' own caches miss on it, ours should not.
        text = text.partition("\n")[2]
        if not text:
            return
    yield _BORDER + b"t" + _text(text)


def _hashed(part: dict[str, Any]) -> bytes:
    return blake2b(_plain(_drop(part)), digest_size=16).hexdigest().encode()


def _drop(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "cache_control"}


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return _encode(value)


_RENDERED: tuple[tuple[str, Callable[[str, bytes], Iterator[bytes]]], ...] = (
    *((name, _option) for name in _OPTIONS),
    ("tools", _tools),
    ("documents", _documents),
    ("system", _system),
    ("instructions", _system),
    ("messages", _messages),
    ("input", _messages),
    ("prompt", _prompt),
)
"""The fields in the order in which engines render them."""

_PLACES = {name: place for place, (name, _) in enumerate(_RENDERED)}
