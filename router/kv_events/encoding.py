"""The two encodings of KV events, read into one form.

Separate from their meaning because engines changed the encoding and kept the meaning: vLLM since 0.24 and
SGLang since 0.5.23 write maps, older ones write arrays whose trailing fields may be missing. Both may meet in
one fleet, so each event says for itself which one it is. Fields and types that are newer than this file are
passed over.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Name = int | Annotated[bytes, msgspec.Meta(max_length=64)]
"""An engine's name of a block: 64 bits of its hash, or the whole digest."""


class Envelope(msgspec.Struct, array_like=True):
    """A batch: what one step of the engine did to its blocks.

    Attributes:
        ts: when, by the engine's clock (s since 1970).
        events: each still encoded.
        rank: the data-parallel rank that speaks; None when it does not say.
    """

    ts: float
    events: list[msgspec.Raw]
    rank: int | None = None


class Stored(msgspec.Struct):
    """`BlockStored`. The order of the fields is that of the array encoding.

    Attributes:
        lora_id: number of an adapter, in engines that do not name it.
        extra_keys: per block, what else its hash depends on.
        group_idx: which of a hybrid model's groups of layers.
        kv_cache_spec_kind: what kind of attention that group has.
        cache_salt: SGLang only; vLLM has it among the extra keys.
    """

    block_hashes: list[Name]
    parent_block_hash: Name | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class Removed(msgspec.Struct):
    """`BlockRemoved`."""

    block_hashes: list[Name]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct):
    """`AllBlocksCleared`."""


class _StoredMap(Stored, tag="BlockStored"):
    pass


class _RemovedMap(Removed, tag="BlockRemoved"):
    pass


class _ClearedMap(Cleared, tag="AllBlocksCleared"):
    pass


class _StoredRow(Stored, tag="BlockStored", array_like=True):
    pass


class _RemovedRow(Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedRow(Cleared, tag="AllBlocksCleared", array_like=True):
    pass


class _Tagged(msgspec.Struct):
    type: str


_envelope = msgspec.msgpack.Decoder(Envelope)
_map: msgspec.msgpack.Decoder[_StoredMap | _RemovedMap | _ClearedMap] = msgspec.msgpack.Decoder(
    _StoredMap | _RemovedMap | _ClearedMap
)
_row: msgspec.msgpack.Decoder[_StoredRow | _RemovedRow | _ClearedRow] = msgspec.msgpack.Decoder(
    _StoredRow | _RemovedRow | _ClearedRow
)
_map_tag = msgspec.msgpack.Decoder(_Tagged)
_row_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_tag = msgspec.msgpack.Decoder(str)

_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


class BrokenPayload(Exception):
    """This is no batch of events, or no event."""


class UnknownEvent(Exception):
    """A well-formed event of a type that this router does not know."""


def read_envelope(payload: bytes) -> Envelope:
    """The batch with its events still encoded. Raises BrokenPayload."""
    try:
        return _envelope.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenPayload(str(error)) from None


def read_event(raw: msgspec.Raw) -> Stored | Removed | Cleared:
    """One event. Raises BrokenPayload, or UnknownEvent for a type that is newer than this router."""
    encoded = memoryview(raw)
    try:
        return _row.decode(encoded) if _is_array(encoded[0]) else _map.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if _type_of(encoded) in _KNOWN:
            raise BrokenPayload(str(error)) from None
        raise UnknownEvent from None


def _type_of(encoded: memoryview) -> str:
    """The type that an event names. Raises BrokenPayload when it names none."""
    try:
        if not _is_array(encoded[0]):
            return _map_tag.decode(encoded).type
        return _tag.decode(_row_parts.decode(encoded)[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
        raise BrokenPayload("an event without a type") from None


def _is_array(first: int) -> bool:
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
