"""Both encodings mean the same; what does not tell of a prefix is left out; what is broken is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_event import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from router.core.prompt_key import Partition
from router.kv_events.encoding import BrokenPayload
from router.kv_events.reader import Batch, Naming, Reader, pieces
from tests.kv_events.publisher import CLEARED, name, removed, stored

PROMPT = list(range(100, 148))
NAMING = Naming("model")


def read(*events: Any, reader: Reader | None = None, rank: int | None = 0) -> Batch:
    payload = msgspec.msgpack.encode([1.5, events, rank])
    return (reader or Reader(NAMING)).read(payload)


def only(batch: Batch) -> BlocksStored:
    (event,) = batch.events
    assert isinstance(event, BlocksStored)
    assert not batch.broken
    return event


def test_captured_batches_of_vllm_are_read() -> None:
    answers = json.loads(Path("tests/wire/vllm_kv_event_frames.json").read_text())
    reader = Reader(NAMING)
    batches = [reader.read(bytes.fromhex(frames[3])) for frames in answers[:3]]
    events = [only(batch) for batch in batches]
    assert [batch.rank for batch in batches] == [0, 0, 0]
    assert [event.parent for event in events] == [None, events[0].hashes[0], events[1].hashes[0]]
    assert events[0].hashes == (0x76EBD1FFB893F182,)
    assert {event.block_tokens for event in events} == {32}
    assert events[0].tokens[:3] == (35, 266, 418)
    assert [event.partition for event in events] == [Partition("model", "", "")] * 3
    assert not any(event.extras for event in events)


@pytest.mark.parametrize("fields", range(6, 12))
def test_arrays_of_all_versions_mean_what_maps_mean(fields: int) -> None:
    array = stored(PROMPT, array=True)
    assert isinstance(array, list)
    grown = [*array, None, 0, "full_attention", None]
    assert only(read(grown[:fields])) == only(read(stored(PROMPT)))


def test_both_encodings_may_meet_in_one_batch() -> None:
    batch = read(
        stored(PROMPT, array=True), removed(PROMPT), ["BlockRemoved", [7]], ["AllBlocksCleared"], CLEARED
    )
    assert batch.events[1:] == [
        BlocksRemoved((name(PROMPT),)),
        BlocksRemoved((7,)),
        BlocksCleared(),
        BlocksCleared(),
    ]


def test_whole_digests_are_names_too() -> None:
    digest = bytes(range(32))
    event = only(read(stored(PROMPT[:16], block_hashes=[digest], parent_block_hash=digest[::-1])))
    assert (event.hashes, event.parent) == ((digest,), digest[::-1])


def test_signed_hashes_of_sglang_are_names() -> None:
    assert only(read(stored(PROMPT[:16], block_hashes=[-(2**63)]))).hashes == (-(2**63),)


@pytest.mark.parametrize("medium", ["CPU", "STORAGE", "CPU_PINNED", "DISK", "EXTERNAL"])
def test_only_blocks_on_the_gpu_count(medium: str) -> None:
    batch = read(stored(PROMPT, medium=medium), removed(PROMPT, medium=medium))
    assert (batch.events, batch.ignored) == ([], 2)
    offloaded = stored([], block_size=0, block_hashes=[1, 2], medium=medium)
    assert read(offloaded).ignored == 1


def test_only_the_first_group_that_attends_to_the_whole_prompt_counts() -> None:
    reader = Reader(NAMING)
    window = stored(
        PROMPT, group_idx=0, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=128
    )
    whole = stored(PROMPT, group_idx=1, kv_cache_spec_kind="full_attention")
    other = stored(PROMPT, group_idx=2, kv_cache_spec_kind="full_attention")
    mamba = stored(PROMPT, group_idx=3, kv_cache_spec_kind="mamba")
    batch = read(window, whole, other, mamba, reader=reader)
    assert (len(batch.events), batch.ignored) == (1, 3)
    gone = read(*(removed(PROMPT, group_idx=group) for group in range(4)), reader=reader)
    assert (gone.events, gone.ignored) == ([BlocksRemoved((name(PROMPT),))], 3)


def test_latent_attention_attends_to_the_whole_prompt() -> None:
    assert only(read(stored(PROMPT, group_idx=0, kv_cache_spec_kind="mla_attention")))


def test_without_a_kind_group_zero_is_taken() -> None:
    batch = read(stored(PROMPT, group_idx=0), stored(PROMPT, group_idx=1))
    assert (len(batch.events), batch.ignored) == (1, 1)


def test_an_adapter_is_the_model_of_vllm_and_stands_beside_sglangs() -> None:
    event = stored(PROMPT, lora_name="poet", extra_keys=[["poet"]] * 3)
    assert only(read(event)).partition == Partition("poet", "", "")
    beside = Reader(Naming("model", adapters_are_models=False))
    assert only(read(event, reader=beside)).partition == Partition("model", "poet", "")
    assert not only(read(event)).extras


def test_an_adapter_without_a_name_is_kept_apart_by_its_number() -> None:
    assert only(read(stored(PROMPT, lora_id=3))).partition == Partition("#3", "", "")


@pytest.mark.parametrize("salt", ["tenantA", ["cache_salt", "tenantA"]])
def test_the_salt_is_the_last_text_among_the_keys_of_a_first_block(salt: Any) -> None:
    event = only(read(stored(PROMPT, extra_keys=[[salt], None, None])))
    assert (event.partition, event.extras) == (Partition("model", "", "tenantA"), ())
    beside_image = only(read(stored(PROMPT, extra_keys=[[["image", 3], salt], [["image", -13]], None])))
    assert beside_image.partition.cache_salt == "tenantA"
    assert [bool(extra) for extra in beside_image.extras] == [True, True, False]


def test_salt_and_adapter_may_have_one_name() -> None:
    event = only(read(stored(PROMPT, lora_name="same", extra_keys=[["same", "same"], ["same"], ["same"]])))
    assert (event.partition, event.extras) == (Partition("same", "", "same"), ())


def test_sglang_names_the_salt_in_a_field() -> None:
    assert only(read(stored(PROMPT, cache_salt="tenantA"))).partition == Partition("model", "", "tenantA")


def test_keys_of_a_later_block_are_no_salt() -> None:
    event = only(read(stored(PROMPT, skip=1, extra_keys=[["image"], None])))
    assert event.partition.cache_salt == ""
    assert [bool(extra) for extra in event.extras] == [True, False]


def test_equal_extra_keys_are_equal_and_others_are_not() -> None:
    images = [[[f"image{number}", 0]] for number in (1, 1, 2)]
    first, second, third = only(read(stored(PROMPT, extra_keys=images))).extras
    assert first == second != third


@pytest.mark.parametrize(
    "event",
    [
        stored(PROMPT, token_ids=PROMPT[:-1]),
        stored(PROMPT, token_ids=[["a"]] * 48),
        stored(PROMPT, block_size=0, token_ids=[]),
        stored(PROMPT, block_size=-16),
        stored(PROMPT, block_hashes=["text"] * 3),
        stored(PROMPT, block_hashes=[b"x" * 65] * 3),
        stored(PROMPT, extra_keys=[["image"]]),
        {"type": "BlockStored"},
        {"type": "BlockRemoved"},
        ["BlockStored"],
        ["BlockRemoved", 5],
        [],
        {},
        {"type": 5},
        [None, 1],
        5,
        None,
        b"\xff",
    ],
)
def test_a_broken_event_is_counted_and_the_others_of_its_batch_are_read(event: Any) -> None:
    batch = read(stored(PROMPT), event, removed(PROMPT))
    assert (len(batch.events), batch.broken, batch.unknown) == (2, 1, 0)


@pytest.mark.parametrize("event", [{"type": "BlockMoved", "to": "moon"}, ["BlockMoved", 1, 2]])
def test_an_event_of_a_later_type_is_passed_over(event: Any) -> None:
    batch = read(event, stored(PROMPT, invented="later"))
    assert (len(batch.events), batch.broken, batch.unknown) == (1, 0, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x93",
        b"\xc1",
        b"not msgpack",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, 7]),
        b"\x92\xcb" + b"\0" * 8 + b"\x91" * 100_000 + b"\xc0",
    ],
)
def test_what_is_no_batch_is_broken(payload: bytes) -> None:
    with pytest.raises(BrokenPayload):
        Reader(NAMING).read(payload)


def test_keys_as_deep_as_a_well_break_nothing() -> None:
    keys: Any = "bottom"
    for _ in range(500):
        keys = [keys]
    assert only(read(stored(PROMPT, extra_keys=[keys, None, None])))
    head = msgspec.msgpack.encode(stored(PROMPT, extra_keys=None))
    deep = head.replace(b"\xaaextra_keys\xc0", b"\xaaextra_keys" + b"\x91" * 100_000 + b"\xc0")
    with pytest.raises(BrokenPayload):
        Reader(NAMING).read(b"\x92\xcb" + b"\0" * 8 + b"\x91" + deep)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(payload: bytes) -> None:
    for encoded in (payload, b"\x92\xcb" + b"\0" * 8 + b"\x91" + payload):
        try:
            Reader(NAMING).read(encoded)
        except BrokenPayload:
            continue


@given(st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_a_flipped_byte_raises_nothing_else(at: int, value: int, array: bool) -> None:
    event = stored(PROMPT, array=array, extra_keys=[["salt"], None, None])
    payload = bytearray(msgspec.msgpack.encode([1.0, [event, removed(PROMPT)], 0]))
    payload[at % len(payload)] = value
    try:
        Reader(NAMING).read(bytes(payload))
    except BrokenPayload:
        return


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_pieces_together_are_the_event(blocks: int, most: int, keyed: bool) -> None:
    tokens = tuple(range(blocks * 4))
    hashes = tuple(range(1000, 1000 + blocks))
    extras = tuple(b"%d" % number for number in range(blocks)) if keyed else ()
    event = BlocksStored(Partition("model", "", ""), hashes, 999, tokens, 4, extras)
    parts: list[KvEvent] = list(pieces(event, most))
    whole = [part for part in parts if isinstance(part, BlocksStored)]
    assert sum((part.hashes for part in whole), ()) == hashes
    assert sum((part.tokens for part in whole), ()) == tokens
    assert sum((part.extras for part in whole), ()) == extras
    assert [part.parent for part in whole] == [999, *(part.hashes[-1] for part in whole[:-1])]
    assert all(len(part.hashes) <= most for part in whole)
