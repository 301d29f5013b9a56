"""The mock's KV events are vLLM's to the byte, and mean to the router what the engine's cache holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.mock.kv_events import END, Encode, KvPublisher, sglang_events, vllm_events
from engines.model.block_hash import BlockChain, published
from engines.model.kv_cache import AllBlocksCleared, BlockRemoved, BlocksStored, KvCache, KvEvent
from router.core.prefix_index import PrefixIndex
from router.core.prompt_key import Partition
from router.core.trust import TrustSignal
from router.kv_events.framing import live_message, replayed_message
from router.kv_events.reader import Naming, Reader

CAPTURED = [
    [bytes.fromhex(frame) for frame in answer]
    for answer in json.loads(Path("tests/wire/vllm_kv_event_frames.json").read_text())
]
TOPIC = "kv@127.0.0.1:18001@tiny"


def maps(events: Any) -> list[object]:
    return vllm_events(events, "maps")


def arrays(events: Any) -> list[object]:
    return vllm_events(events, "arrays")


encodings = pytest.mark.parametrize("encode", [maps, arrays, sglang_events])


class Ear:
    def __init__(self) -> None:
        self.heard: list[Sequence[bytes]] = []

    def send(self, frames: Sequence[bytes]) -> None:
        self.heard.append(frames)


def on_the_wire(events: object) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(events))


def digest(name: int) -> bytes:
    return name.to_bytes(32, "big")


def recorded(payload: bytes) -> tuple[float, BlocksStored]:
    """The engine's side of a captured batch."""
    ts, (event,), _rank = msgspec.msgpack.decode(payload)
    parent = event["parent_block_hash"]
    stored = BlocksStored(
        hashes=tuple(digest(name) for name in event["block_hashes"]),
        parent=None if parent is None else digest(parent),
        token_ids=tuple(event["token_ids"]),
        block_size=event["block_size"],
        extra_keys=tuple(event["extra_keys"]),
    )
    return ts, stored


def test_batches_and_replays_are_those_of_a_recorded_vllm() -> None:
    publisher, ear = KvPublisher(maps, TOPIC), Ear()
    publisher.outlet = ear
    for answer in CAPTURED[:-1]:
        ts, event = recorded(answer[3])
        publisher.publish([event], ts)
    assert [list(frames) for frames in ear.heard] == [answer[1:] for answer in CAPTURED[:-1]]
    assert [[b"", *frames] for frames in publisher.replay(0)] == CAPTURED
    assert [list(frames) for frames in publisher.replay(2)] == [CAPTURED[2][1:], [b"", END, b""]]


def test_the_other_events_have_the_recorded_shapes() -> None:
    removed, cleared = maps([BlockRemoved(digest(16648219738543283227)), AllBlocksCleared()])
    assert on_the_wire(removed) == {
        "type": "BlockRemoved",
        "block_hashes": [16648219738543283227],
        "medium": "GPU",
        "group_idx": 0,
    }
    assert on_the_wire(cleared) == {"type": "AllBlocksCleared"}


def test_older_versions_write_rows() -> None:
    stored = BlocksStored((digest(7),), None, (1, 2), 2, (None,))
    rows = on_the_wire(arrays([stored, BlockRemoved(digest(7)), AllBlocksCleared()]))
    assert rows == [
        ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, [None], 0],
        ["BlockRemoved", [7], "GPU", 0],
        ["AllBlocksCleared"],
    ]


def test_sglang_writes_a_page_at_a_time_under_signed_names() -> None:
    names = [b"\xff" * 32, b"\0" * 31 + b"\1", b"\0" * 7 + b"\1" + b"\0" * 24]
    stored = BlocksStored((names[0], names[2]), names[1], (1, 2, 3, 4), 2, (None, None))
    assert on_the_wire(sglang_events([stored])) == [
        {"type": "BlockStored", "block_hashes": [-1], "parent_block_hash": 0, "token_ids": [1, 2],
         "block_size": 2, "lora_id": None, "medium": "GPU"},
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": -1, "token_ids": [3, 4],
         "block_size": 2, "lora_id": None, "medium": "GPU"},
    ]  # fmt: skip


def test_a_step_without_events_is_no_batch() -> None:
    publisher = KvPublisher(maps)
    publisher.publish([], 1.0)
    assert (publisher.sequence, list(publisher.replay(0))) == (0, [(b"", END, b"")])


def test_only_the_last_steps_are_kept_and_dropped_ones_are() -> None:
    publisher, ear = KvPublisher(maps, buffer_steps=2), Ear()
    publisher.outlet = ear
    publisher.to_drop = 1
    for _ in range(4):
        publisher.publish([AllBlocksCleared()], 1.0)
    assert [live_message(frames).sequence for frames in ear.heard] == [1, 2, 3]
    kept = [replayed_message([b"", *frames]) for frames in publisher.replay(0)]
    assert [message and message.sequence for message in kept] == [2, 3, None]


def run_cache(cache: KvCache, publish: Callable[[Sequence[KvEvent]], None]) -> list[BlockChain]:
    """Prompts of tenants with common beginnings, in a cache too small for all of them."""
    chains = []
    for number in range(40):
        tokens = [*range(32), *range(100 * (number % 7), 100 * (number % 7) + 64), *([number] * 16)]
        chain = BlockChain(
            tokens, 16, cache_salt=("a", None)[number % 2], lora=("poet", None)[number % 3 > 0]
        )
        found = cache.find(chain.hash_full_blocks(), len(chain.hashes))
        cache.take(found)
        blocks = [*found, *cache.allocate(len(chain.hashes) - len(found))]
        cache.store(chain, blocks, len(found), len(chain.hashes))
        cache.free(blocks)
        publish(cache.drain_events())
        chains.append(chain)
    return chains


@encodings
def test_a_router_that_follows_knows_what_the_cache_holds(encode: Encode) -> None:
    publisher, ear = KvPublisher(encode), Ear()
    publisher.outlet = ear
    cache = KvCache(60, 16, record_events=True)
    chains = run_cache(cache, lambda events: publisher.publish(events, 1.0))
    index, reader = PrefixIndex(), Reader(Naming("model"))
    index.admit("one", 1)
    index.follow("one")
    for frames in ear.heard:
        batch = reader.read(live_message(frames).payload)
        assert (batch.broken, batch.unknown, batch.ignored) == (0, 0, 0)
        for event in batch.events:
            index.apply("one", event)
    index.stream("one", TrustSignal.COMPLETE)
    some = False
    for chain in chains:
        salt = next((key for key in chain.extra_keys(0) or () if key != chain.lora), "")
        partition = Partition(chain.lora or "model", "", salt)
        held = 16 * len(cache.find(chain.hashes, len(chain.hashes)))
        match = index.match(partition, tuple(chain.tokens), len(chain.tokens))
        assert match.on("one") == min(held, len(chain.tokens) - 1)  # the last token is always computed
        some = some or 0 < held < len(chain.tokens)
    assert some


def test_the_published_name_of_a_recorded_block_is_the_recorded_one() -> None:
    tokens = [1, 87, 85, 266, 201, 330, 326, 320, 322, 323, 314, 264, 324, 321, 319, 311, 308, 298, 268, 327,
              313, 264, 328, 329, 306, 270, 312, 325, 270, 264, 326, 320]  # fmt: skip
    assert published(BlockChain(tokens, 32).hash_full_blocks()[0]) == 14528084244029381271
