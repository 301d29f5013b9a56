"""The bodies of a prefill leg against those of a real vLLM 0.32 with its NIXL connector, key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.mock.ask import HandOver
from engines.mock.fields import Fields
from engines.mock.nixl_wire import Handle, read_params, runs_of
from engines.mock.peers import Address
from tests.engines.pd_stage import CHAT, COMPLETIONS, Pair, play, prefill_body

WIRE = Path(__file__).parent.parent / "wire"
RECORDED = {
    COMPLETIONS: json.loads((WIRE / "vllm_completions_prefill.json").read_text()),
    CHAT: json.loads((WIRE / "vllm_chat_prefill.json").read_text()),
}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": list(range(1000, 1100))},
    CHAT: {"messages": [{"role": "user", "content": "x" * 128}], "return_token_ids": True},
}
FREE = {
    "id", "created", "model", "text", "content", "system_fingerprint", "token_ids", "prompt_token_ids",
    "created_cache_tokens", "remote_engine_id", "remote_request_id", "remote_host", "remote_port",
}  # fmt: skip
"""What differs with the model, the seed and the place."""


def outline(value: object, name: str = "") -> object:
    """Keys in order, and every value that is not free."""
    if name in FREE:
        return type(value).__name__
    if isinstance(value, dict):
        return [(key, outline(inner, key)) for key, inner in value.items()]
    if isinstance(value, list):
        return [outline(inner) for inner in value]
    return value


@pytest.mark.parametrize("path", BODIES)
def test_the_body_of_a_prefill_is_the_recorded_one(path: str) -> None:
    async def scene(act: Pair) -> None:
        if path == CHAT:
            # As in the recorded run, a completion was prefilled and read before.
            await act.split(BODIES[COMPLETIONS])
        reply = await act.prefill.ask(path, prefill_body(BODIES[path]))
        assert outline(reply.json()) == outline(RECORDED[path])

    play(scene, block_size=32, kv_tokens=62 * 32, kv_lease_s=12.0)


HANDLE: dict[str, Any] = RECORDED[COMPLETIONS]["kv_transfer_params"]


def test_a_recorded_handle_is_understood() -> None:
    assert Handle.of(HANDLE) == Handle(
        "prefill-0", HANDLE["remote_request_id"], Address("127.0.0.1", 25600), (1, 2, 3, 4), beats=True
    )
    assert read_params(Fields(HANDLE)).remote_cached_tokens == 0


def test_a_recorded_wish_is_one_to_retain() -> None:
    wish = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
    assert read_params(Fields(wish)) == HandOver(retain=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"do_remote_prefill": False}, {"remote_block_ids": None}, {"remote_block_ids": []},
        {"remote_block_ids": [[]]}, {"remote_block_ids": "12"}, {"remote_block_ids": [["1"]]},
        {"remote_block_ids": [[True]]}, {"remote_port": None}, {"remote_port": "many"},
        {"remote_port": 1 << 16}, {"remote_port": -1}, {"remote_port": True}, {"remote_port": 1.5},
        {"remote_host": None},
        {"remote_engine_id": None}, {"remote_request_id": None},
    ],
)  # fmt: skip
def test_what_names_no_blocks_or_no_place_is_no_handle(wrong: dict[str, object]) -> None:
    assert Handle.of({**HANDLE, **wrong}) is None


def test_a_port_may_be_a_text() -> None:
    handle = Handle.of({**HANDLE, "remote_port": "25600"})
    assert handle is not None
    assert handle.address.port == 25600


@pytest.mark.parametrize("cached", [None, -1, "3", True, 1.5])
def test_cached_tokens_that_are_no_number_are_not_reported(cached: object) -> None:
    assert (
        read_params(Fields({**HANDLE, "remote_prefill_cached_tokens": cached})).remote_cached_tokens is None
    )


def test_neighbouring_blocks_are_one_descriptor() -> None:
    assert [runs_of(blocks) for blocks in ((1, 2, 3, 4), (43, 32, 31, 21), (4, 5, 9), (7,))] == [1, 4, 2, 1]
