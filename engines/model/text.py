"""The mock's tokenizer and its chat template.

Separate because prompts, usage and prefix caching all rest on one property: four UTF-8 bytes are one token.
So anyone can predict a token count, and generated text encodes back to the tokens it was generated as, which
lets the next turn of a conversation find them in the cache.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

BYTES_PER_TOKEN: Final = 4
VOCABULARY_SIZE: Final = 1 << 32
"""Every token id is below this: its four bytes, read big-endian."""

MESSAGE_OVERHEAD_TOKENS: Final = 4
"""Around the content of each message: start, role, end of turn, separator."""
GENERATION_PROMPT_TOKENS: Final = 2
"""After the last message, so that the answer is the assistant's: start, role."""

IMAGE_TOKENS: Final = 576
"""Of one image, whatever its size: the 24 x 24 patches of LLaVA-1.5."""
AUDIO_TOKENS: Final = 750
"""Of one clip, whatever its length: 30 s at the 25 tokens a second of Qwen2-Audio."""
VIDEO_TOKENS: Final = 8 * IMAGE_TOKENS
"""Of one video, as eight sampled frames; an estimate."""

# Bytes from 0xF8 up never occur in UTF-8. 0xFF fills up the last token of a text; a token that begins with
# one of the others stands for no text.
_FILL = b"\xff"
_NO_TEXT = 0xF800_0000
_MEDIA = 0xFC00_0000
_ROLE = 0xFD00_0000
_START = 0xFE00_0001
_SEPARATOR = 0xFE00_0002
EOS_TOKEN: Final = 0xFE00_0000
"""Ends an answer, and every message of a rendered chat."""

_MEDIA_TOKENS = {
    "image_url": IMAGE_TOKENS,
    "input_image": IMAGE_TOKENS,
    "image": IMAGE_TOKENS,
    "image_pil": IMAGE_TOKENS,
    "input_audio": AUDIO_TOKENS,
    "audio_url": AUDIO_TOKENS,
    "video_url": VIDEO_TOKENS,
}
_TEXT_FIELDS = ("text", "refusal")

Message = Mapping[str, object]


def encode(text: str) -> list[int]:
    """Token ids of a text: four UTF-8 bytes each, the last token holds what is left."""
    return _tokens(text.encode("utf-8", "surrogatepass"), _FILL)


def decode(token_ids: Iterable[int]) -> str:
    """The text of token ids; `decode(encode(text)) == text` for every text.

    Special and media tokens have no text. Where a cut falls inside a character, U+FFFD stands for the rest.

    Raises:
        ValueError: for an id outside the vocabulary.
    """
    data = text_bytes(token_ids)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def text_bytes(token_ids: Iterable[int]) -> bytes:
    """The UTF-8 bytes behind token ids, for callers that decode a stream piece by piece.

    Raises:
        ValueError: for an id outside the vocabulary.
    """
    ids = [token for token in token_ids if not _NO_TEXT <= token < 0xFF00_0000]
    try:
        data = struct.pack(f">{len(ids)}I", *ids)
    except struct.error as error:
        raise ValueError(f"a token id is outside the vocabulary of {VOCABULARY_SIZE}") from error
    return data.replace(_FILL, b"")


def render_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None = None,
    documents: Sequence[object] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of a chat, as a chat template would lay it out.

    Each message costs `MESSAGE_OVERHEAD_TOKENS` and its content, padded with spaces to a token boundary.
    Tools and documents come first, as JSON in messages of their own, in the order they were sent. Thoughts
    of earlier turns (`reasoning_content`) are dropped, as reasoning templates do. With
    `continue_final_message` the last message stays open and no generation prompt follows.

    Raises:
        ValueError: for a message without a role, or with content that is neither text nor parts.
    """
    ids: list[int] = []
    for role, items in (("tools", tools), ("documents", documents)):
        if items:
            ids += _wrap(role, _padded(_json(items)))
    for message in messages:
        ids += _wrap(_role(message), _content(message))
    if continue_final_message and messages:
        return ids[:-2]
    if add_generation_prompt:
        ids += _header("assistant")
    return ids


def has_media(token_ids: Iterable[int]) -> bool:
    """Whether an image, audio or video part is in a prompt."""
    return any(_MEDIA <= token < _ROLE for token in token_ids)


def media_tokens(part: Mapping[str, object]) -> list[int]:
    """Token ids of an image, audio or video part; equal parts have equal ids.

    Raises:
        ValueError: for a part of unknown type.
    """
    kind = part.get("type")
    count = _MEDIA_TOKENS.get(kind) if isinstance(kind, str) else None
    if count is None:
        raise ValueError(f"content parts of type {kind!r} are not understood")
    digest = blake2b(_json(part).encode("utf-8", "surrogatepass"), digest_size=3).digest()
    return [_MEDIA | int.from_bytes(digest, "big")] * count


def _tokens(data: bytes, fill: bytes) -> list[int]:
    data += fill * (-len(data) % BYTES_PER_TOKEN)
    return list(struct.unpack(f">{len(data) // BYTES_PER_TOKEN}I", data))


def _padded(text: str) -> list[int]:
    # Spaces, not filler: a client that strips the trailing blank of an answer still hits the cached prefix.
    return _tokens(text.encode("utf-8", "surrogatepass"), b" ")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _header(role: str) -> list[int]:
    return [_START, _ROLE | (crc32(role.encode("utf-8", "surrogatepass")) & 0xFF_FFFF)]


def _wrap(role: str, content: list[int]) -> list[int]:
    return [*_header(role), *content, EOS_TOKEN, _SEPARATOR]


def _role(message: Message) -> str:
    role = message.get("role")
    if isinstance(role, str):
        return role
    raise ValueError("every message needs a role")


def _content(message: Message) -> list[int]:
    content = message.get("content")
    ids: list[int] = []
    if isinstance(content, str):
        ids += _padded(content)
    elif isinstance(content, Sequence):
        ids += _parts(content)
    elif content is not None:
        raise ValueError("the content of a message is a text or a list of parts")
    calls = message.get("tool_calls")
    if calls:
        ids += _padded(_json(calls))
    return ids


def _parts(parts: Sequence[object]) -> list[int]:
    ids: list[int] = []
    texts: list[str] = []
    for part in parts:
        text = _part_text(part)
        if text is not None:
            texts.append(text)
            continue
        ids += _padded("\n".join(texts))
        texts.clear()
        ids += media_tokens(part) if isinstance(part, Mapping) else []
    return ids + _padded("\n".join(texts))


def _part_text(part: object) -> str | None:
    """The text of a part, None for media."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        texts = (part.get(field) for field in _TEXT_FIELDS)
        return next((text for text in texts if isinstance(text, str)), None)
    raise ValueError("a content part is a text or an object with a type")
