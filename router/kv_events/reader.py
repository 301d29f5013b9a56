"""From an engine's events to what the prefix index follows.

Separate from the encoding because this is judgement: which blocks count as the worker's prefix cache, and
which parts of a block's identity name its partition. Blocks count when they are on the GPU and in the group
of layers that attends to the whole prompt; copies on the CPU or on disk and the windows of hybrid models do
not tell how long a prefix is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.core.kv_event import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from router.core.prompt_key import Partition
from router.kv_events.encoding import (
    BrokenPayload,
    Cleared,
    Removed,
    Stored,
    UnknownEvent,
    read_envelope,
    read_event,
)

_GPU = (None, "GPU")
_WHOLE_PROMPT = ("full_attention", "mla_attention")


@dataclass(frozen=True, slots=True)
class Naming:
    """How clients name what an engine's events speak of.

    Attributes:
        model: the name by which prompts of the base model are keyed.
        adapters_are_models: vLLM's clients name a LoRA adapter as the model; SGLang's name it beside the
            model.
    """

    model: str
    adapters_are_models: bool = True

    def partition(self, lora: str, cache_salt: str) -> Partition:
        """Where prompts with that adapter ("" for none) and salt are keyed."""
        if lora and self.adapters_are_models:
            return Partition(lora, "", cache_salt)
        return Partition(self.model, lora, cache_salt)


@dataclass(slots=True)
class Batch:
    """What one step of an engine did.

    Attributes:
        ts: by the engine's clock (s since 1970); None when it cannot be read.
        rank: the data-parallel rank that speaks, None when it does not say.
        ignored: events of blocks that do not count.
        unknown: events of types that are not known.
        broken: events that could not be read; what they said is lost.
        oversized: it was not read at all; what it said is lost.
    """

    ts: float | None
    rank: int | None
    events: list[KvEvent] = field(default_factory=list)
    ignored: int = 0
    unknown: int = 0
    broken: int = 0
    oversized: bool = False


class Reader:
    """Reads the stream of one worker. It remembers which group of layers that one's prefix is told by."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._group: int | None = None

    def read(self, payload: bytes) -> Batch:
        """A batch. Raises BrokenPayload when it is none; a broken event in it is counted."""
        envelope = read_envelope(payload)
        batch = Batch(envelope.ts, envelope.rank)
        for raw in envelope.events:
            try:
                self._add(batch, read_event(raw))
            except BrokenPayload:
                batch.broken += 1
            except UnknownEvent:
                batch.unknown += 1
        return batch

    def _add(self, batch: Batch, event: Stored | Removed | Cleared) -> None:
        if isinstance(event, Cleared):
            batch.events.append(BlocksCleared())
        elif event.medium not in _GPU or not self._tells(event):
            batch.ignored += 1
        elif isinstance(event, Stored):
            batch.events.append(self._stored(event))
        else:
            batch.events.append(BlocksRemoved(tuple(event.block_hashes)))

    def _tells(self, event: Stored | Removed) -> bool:
        """Whether it speaks of the group that the prefix is told by: the first that attends to all of it."""
        group = event.group_idx
        if isinstance(event, Stored):
            kind = event.kv_cache_spec_kind
            if kind is not None and kind not in _WHOLE_PROMPT:
                return False
            if self._group is None:
                # Without a kind only group 0 can be taken for the one, as engines had it before they told.
                self._group = group if kind is not None else 0
        return group is None or group == self._group or (isinstance(event, Removed) and self._group is None)

    def _stored(self, event: Stored) -> BlocksStored:
        if event.block_size < 1 or len(event.token_ids) != event.block_size * len(event.block_hashes):
            raise BrokenPayload("its tokens do not fill its blocks")
        lora = event.lora_name or ("" if event.lora_id is None else f"#{event.lora_id}")
        salt, extras = _identity(event, lora)
        return BlocksStored(
            self._naming.partition(lora, salt),
            tuple(event.block_hashes),
            event.parent_block_hash,
            event.token_ids,
            event.block_size,
            extras,
        )

    def __repr__(self) -> str:
        return f"<Reader {self._naming.model} [group {self._group}]>"


def _identity(event: Stored, lora: str) -> tuple[str, tuple[bytes, ...]]:
    """Cache salt, and per block what else its hash depends on."""
    salt = event.cache_salt or ""
    if event.extra_keys is None or not any(event.extra_keys):
        return salt, ()
    if len(event.extra_keys) != len(event.block_hashes):
        raise BrokenPayload("its extra keys do not fit its blocks")
    rest = [_without_adapter(keys or [], lora) for keys in event.extra_keys]
    if event.parent_block_hash is None and not salt:
        salt = _take_salt(rest[0])
    if not any(rest):
        return salt, ()
    return salt, tuple(msgspec.msgpack.encode(keys) if keys else b"" for keys in rest)


def _without_adapter(keys: list[Any], lora: str) -> list[Any]:
    """Extra keys but the adapter's name, which vLLM puts first in every block of such a prompt."""
    if lora and keys and keys[0] in (lora, ["lora", lora]):
        return keys[1:]
    return keys


def _take_salt(keys: list[Any]) -> str:
    """Takes the salt out of the extra keys of a first block: there it is the last one that is plain text.

    Engines that still write an image as its plain hash let that be taken for a salt. Such prompts are not
    matched by their tokens anyway, so nothing is believed wrongly.
    """
    for index in range(len(keys) - 1, -1, -1):
        key = keys[index]
        if isinstance(key, list) and len(key) == 2 and key[0] == "cache_salt":
            key = key[1]
        if isinstance(key, str):
            del keys[index]
            return key
    return ""


def pieces(event: KvEvent, most: int) -> Iterator[KvEvent]:
    """The event in parts of at most `most` blocks, which mean the same one after the other."""
    if not isinstance(event, BlocksStored) or len(event.hashes) <= most:
        yield event
        return
    size, parent = event.block_tokens, event.parent
    for first in range(0, len(event.hashes), most):
        hashes = event.hashes[first : first + most]
        tokens = event.tokens[first * size : (first + len(hashes)) * size]
        extras = event.extras[first : first + most]
        yield BlocksStored(event.partition, hashes, parent, tokens, size, extras)
        parent = hashes[-1]
