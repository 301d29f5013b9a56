"""What an engine publishes of its KV blocks: numbered batches, in its dialect's encoding, the last ones kept.

Separate from the sockets because this is what other programs read byte for byte; the shapes are recorded ones
(vLLM 0.32) and those of the versions before the change of encoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from engines.mock.kv_events_config import Encoding
from engines.model.block_hash import BlockHash, published
from engines.model.kv_cache import BlockRemoved, BlocksStored, KvEvent

END = (-1).to_bytes(8, "big", signed=True)
"""Stands for a number at the end of a replay."""

Encode = Callable[[Iterable[KvEvent]], list[object]]
"""Events in one dialect."""

_GPU = "GPU"


class Outlet(Protocol):
    """Where messages go."""

    def send(self, frames: Sequence[bytes]) -> None:
        """To all who listen now; nobody else gets them."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    rank: int


class _StoredBlocks(msgspec.Struct):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Sequence[str] | None] | None
    group_idx: int | None


class _Stored(_StoredBlocks, tag="BlockStored"):
    kv_cache_spec_kind: str = "full_attention"


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _StoredRow(_StoredBlocks, tag="BlockStored", array_like=True):
    pass


class _RemovedRow(_Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedRow(_Cleared, tag="AllBlocksCleared", array_like=True):
    pass


class _SglangStored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None


def vllm_events(events: Iterable[KvEvent], encoding: Encoding) -> list[object]:
    """The events as vLLM encodes them."""
    rows = encoding == "arrays"
    stored, removed = (_StoredRow, _RemovedRow) if rows else (_Stored, _Removed)
    encoded: list[object] = []
    for event in events:
        if isinstance(event, BlocksStored):
            one = stored(
                block_hashes=[published(block) for block in event.hashes],
                parent_block_hash=None if event.parent is None else published(event.parent),
                token_ids=event.token_ids,
                block_size=event.block_size,
                lora_id=None,
                medium=_GPU,
                lora_name=event.lora,
                extra_keys=event.extra_keys,
                group_idx=0,
            )
            encoded.append(one)
        elif isinstance(event, BlockRemoved):
            encoded.append(removed(block_hashes=[published(event.hash)], medium=_GPU, group_idx=0))
        else:
            encoded.append(_ClearedRow() if rows else _Cleared())
    return encoded


def sglang_events(events: Iterable[KvEvent]) -> list[object]:
    """The events as SGLang encodes them: a page at a time, under signed names."""
    encoded: list[object] = []
    for event in events:
        if isinstance(event, BlocksStored):
            encoded.extend(_pages(event))
        elif isinstance(event, BlockRemoved):
            encoded.append(_Removed(block_hashes=[_signed(event.hash)], medium=_GPU))
        else:
            encoded.append(_Cleared())
    return encoded


def _pages(event: BlocksStored) -> Iterator[_SglangStored]:
    parent, size = event.parent, event.block_size
    for index, block in enumerate(event.hashes):
        keys = [key for key in event.extra_keys[index] or () if key != event.lora]
        yield _SglangStored(
            block_hashes=[_signed(block)],
            parent_block_hash=None if parent is None else _signed(parent),
            token_ids=event.token_ids[index * size : (index + 1) * size],
            block_size=size,
            lora_id=None,
            medium=_GPU,
            cache_salt=keys[0] if keys else None,
            lora_name=event.lora,
        )
        parent = block


def _signed(block_hash: BlockHash) -> int:
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[:8], "big", signed=True)


class KvPublisher:
    """The publisher of one incarnation; its numbers begin at 0.

    Args:
        encode: events in the engine's dialect.
        topic: of every message.
        buffer_steps: batches that can be asked for again.

    Attributes:
        outlet: where messages go; None, and nobody hears them, though they are kept.
        to_drop: so many of the next batches are not sent, as if they were lost on the way.
    """

    def __init__(self, encode: Encode, topic: str = "", buffer_steps: int = 10_000, rank: int = 0) -> None:
        self.outlet: Outlet | None = None
        self.to_drop = 0
        self.sequence = 0
        self._encode = encode
        self._topic = topic.encode()
        self._rank = rank
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)

    def publish(self, events: Sequence[KvEvent], ts: float) -> None:
        """The events of one step; no events are no batch.

        Args:
            ts: now (Unix seconds).
        """
        if not events:
            return
        payload = msgspec.msgpack.encode(_Batch(ts, self._encode(events), self._rank))
        number, self.sequence = self.sequence, self.sequence + 1
        self._kept.append((number, payload))
        if self.to_drop:
            self.to_drop -= 1
        elif self.outlet is not None:
            self.outlet.send((self._topic, number.to_bytes(8, "big"), payload))

    def replay(self, start: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Topic, number and payload of every kept batch from `start` on, and the end."""
        for number, payload in self._kept:
            if number >= start:
                yield self._topic, number.to_bytes(8, "big"), payload
        yield b"", END, b""

    def __repr__(self) -> str:
        return f"<KvPublisher [next {self.sequence} | {len(self._kept)} kept]>"
