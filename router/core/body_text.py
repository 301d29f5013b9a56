"""How long a prompt is before any tokenizer has seen it: bytes of text, exact token ids, media parts.

Separate from `body` because its only subject is measuring; `tokens` makes the estimate in tokens from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.core.json_bounds import too_many_values

_ANY = msgspec.json.Decoder()
_LIST = msgspec.json.Decoder(list[Raw])
_SAMPLE_BYTES = 2_048
_SPACE = b" \t\r\n"
_TOKEN_BYTES = b"0123456789,[]" + _SPACE

_MEDIA_TYPES = frozenset(
    {
        "image", "image_url", "input_image", "image_pil", "image_embeds", "audio", "audio_url", "input_audio",
        "video", "video_url", "file", "input_file", "document",
    }
)  # fmt: skip
_MEDIA_KEYS = ("image_url", "audio_url", "video_url", "input_audio", "image_embeds")
_MEDIA_MARKERS = tuple(b'"' + name.encode() + b'"' for name in sorted(_MEDIA_TYPES))


class PromptSize(msgspec.Struct, frozen=True, gc=False):
    """Length of all prompts of one call together.

    Attributes:
        text_bytes: UTF-8 bytes of text with the JSON around it, near enough to what a template adds per
            message; media not counted.
        prompts: at least 1.
        tokens: exact length when the prompts were sent as token ids, None otherwise.
        first_tokens: of the first prompt, likewise.
        media_parts: images, audio, video and files.
    """

    text_bytes: int = 0
    prompts: int = 1
    tokens: int | None = None
    first_tokens: int | None = None
    media_parts: int = 0


def measure(data: bytes, prompt: Raw | UnsetType, rest: Iterable[Raw | UnsetType]) -> PromptSize:
    """Size of a completions `prompt` (when set), or of the other prompt-shaping fields of the body `data`."""
    if isinstance(prompt, Raw):
        return _prompt_size(bytes(prompt))
    fields = [raw for raw in rest if raw is not UNSET]
    json_bytes = sum(map(len, fields))
    parts = 0
    # Every media part names its type or holds a data URL; a plain chat has neither and is not decoded.
    if (b'"type"' in data or b";base64," in data) and any(marker in data for marker in _MEDIA_MARKERS):
        for raw in fields:
            media_bytes, found = _media(_decode(raw))
            json_bytes -= media_bytes
            parts += found
    return PromptSize(round(max(json_bytes, 0) * _utf8_share(data)), media_parts=parts)


def _utf8_share(data: bytes) -> float:
    """Bytes of UTF-8 per byte of JSON text: \\uXXXX is six bytes for three, other escapes two for one.
    (A backslash in the text itself counts as nothing: it is rare, and one search more is not worth it.)

    Judged from both ends of a long text, so that the cost does not grow with it.
    """
    sample = data if len(data) <= 2 * _SAMPLE_BYTES else data[:_SAMPLE_BYTES] + data[-_SAMPLE_BYTES:]
    escapes = sample.count(b"\\")
    if not escapes:
        return 1.0
    return 1.0 - (escapes + 2 * sample.count(b"\\u")) / len(sample)


def _text_bytes(data: bytes) -> int:
    """Bytes of UTF-8 of one JSON string without its quotes."""
    return max(round((len(data) - 2) * _utf8_share(data)), 0)


def _prompt_size(data: bytes) -> PromptSize:
    if not data.startswith(b"["):
        return PromptSize(_text_bytes(data))
    if not data.translate(None, _TOKEN_BYTES):
        return _token_size(data)
    if too_many_values(data):
        strings = (data.count(b'"') - data.count(b'\\"')) // 2
        return PromptSize(_text_bytes(data), max(strings, 1))
    try:
        prompts = _LIST.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return PromptSize(_text_bytes(data))
    return PromptSize(sum(_text_bytes(bytes(one)) for one in prompts), max(len(prompts), 1))


def _token_size(data: bytes) -> PromptSize:
    """Only digits, commas and brackets: a list of ids or a list of such lists, whose commas count the ids.

    Counted and not split: there may be millions of lists.
    """
    inner = data.translate(None, _SPACE)[1:-1]
    if not inner.startswith(b"["):
        tokens = _ids(inner)
        return PromptSize(tokens=tokens, first_tokens=tokens)
    tokens = _ids(inner) - inner.count(b"[]")
    first = inner[1 : inner.find(b"]")]
    return PromptSize(prompts=inner.count(b"["), tokens=tokens, first_tokens=_ids(first))


def _ids(data: bytes) -> int:
    return data.count(b",") + 1 if data else 0


def _decode(data: Raw) -> Any:
    if too_many_values(data):
        return None
    try:
        return _ANY.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _media(value: Any) -> tuple[int, int]:
    """Bytes and number of the media parts in `value`, at any depth that the decoder allowed."""
    media_bytes = 0
    parts = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            if _is_media(one):
                parts += 1
                media_bytes += _string_bytes(one)
            else:
                waiting.extend(one.values())
    return media_bytes, parts


def _is_media(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in _MEDIA_TYPES
    return any(key in part for key in _MEDIA_KEYS)


def _string_bytes(value: Any) -> int:
    total = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one) + 2
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            total += sum(len(key) + 4 for key in one)
            waiting.extend(one.values())
    return total
