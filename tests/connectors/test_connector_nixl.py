"""Laws of the NIXL connector: what a producer names reaches one decode engine, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from router.connectors import Handle, Pairing, Peer, build_connector
from router.core.errors import BadRequest, InternalError
from router.core.request import Api
from tests.connectors.connector_examples import CHAT, JSON, OBJECTS, WIRE, pairing, prefill

NIXL = build_connector("nixl")
PARAMS = b'{ "do_remote_prefill": true,"remote_block_ids":[[1, 2]], "new_key":1.50, "remote_port" : 25600}'


def read(answer: object, api: Api = Api.CHAT) -> Handle | None:
    return NIXL.read_prefill(json.dumps(answer).encode(), pairing(api))


# --- prefill leg -----------------------------------------------------------------------------------------


def test_a_prefill_leg_asks_the_producer_to_keep_its_kv_in_six_keys() -> None:
    assert prefill(NIXL)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def test_the_clients_own_transfer_is_replaced() -> None:
    sent = prefill(NIXL, kv_transfer_params={"do_remote_prefill": True, "remote_host": "elsewhere"})
    assert sent["kv_transfer_params"]["do_remote_prefill"] is False
    assert sent["kv_transfer_params"]["remote_host"] is None


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (None, ()),
        (Peer("p"), ()),
        (Peer("p", dp_rank=0, dp_size=2), ((b"x-data-parallel-rank", b"0"),)),
        (Peer("p", dp_rank=3, dp_size=4), ((b"x-data-parallel-rank", b"3"),)),
    ],
)
def test_a_rank_is_named_only_when_one_was_chosen(
    peer: Peer | None, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    one = Pairing(Api.CHAT, "m", "xfer-1", 1, peer)
    assert NIXL.prefill_leg(b"{}", one).headers == headers
    assert NIXL.decode_leg(b"{}", one, Handle(PARAMS)).headers == ()


# --- handle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "api", "tokens"),
    [
        ("vllm_completions_prefill.json", Api.COMPLETIONS, 100),
        ("vllm_chat_prefill.json", Api.CHAT, 38),
    ],
)
def test_the_answer_of_a_real_producer_is_a_handle(capture: str, api: Api, tokens: int) -> None:
    answer = (WIRE / capture).read_bytes()
    handle = NIXL.read_prefill(answer, pairing(api))
    assert handle is not None
    assert handle.params in answer
    assert len(json.loads(handle.params)) == 14
    assert (handle.prompt_tokens, handle.cached_tokens, handle.finish_reason) == (tokens, 0, "length")


@given(JSON, JSON)
def test_whatever_a_producer_names_is_forwarded_verbatim(value: object, other: object) -> None:
    params = json.dumps({"do_remote_prefill": True, "remote_block_ids": [1, 2], "x": value, "y": other})
    answer = b'{"id": "a", "kv_transfer_params" :  ' + params.encode() + b' , "metrics": null}'
    handle = NIXL.read_prefill(answer, pairing())
    assert handle is not None
    assert handle.params == params.encode()
    sent = NIXL.decode_leg(json.dumps(CHAT).encode(), pairing(), handle).body
    assert sent.endswith(b'"kv_transfer_params":' + params.encode() + b"}")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"kv_transfer_params": None},
        {"kv_transfer_params": {}},
        {"kv_transfer_params": []},
        {"kv_transfer_params": "text"},
        {"kv_transfer_params": 7},
        {"error": {"message": "no", "type": "InternalServerError", "code": 500}},
        [],
        "text",
    ],
)
def test_an_answer_that_names_nothing_gives_no_handle(answer: object) -> None:
    assert read(answer) is None


@pytest.mark.parametrize(
    "answer",
    [b'{"kv_transfer_params": { }}', b"", b"{", b"\xff", b"data: {}\n\n", b'{"kv_transfer_params": {"a": }}'],
)
def test_an_answer_that_cannot_be_read_gives_no_handle(answer: bytes) -> None:
    assert NIXL.read_prefill(answer, pairing()) is None


def test_the_handles_own_counts_fill_what_usage_does_not_say() -> None:
    params = {"do_remote_prefill": True, "remote_num_tokens": 64, "remote_prefill_cached_tokens": 32}
    handle = read({"kv_transfer_params": params, "usage": {"prompt_tokens_details": {"cached_tokens": 5}}})
    assert handle is not None
    assert (handle.prompt_tokens, handle.cached_tokens) == (64, 32)


@pytest.mark.parametrize("odd", ["64", None, [1], -1, 1.5])
def test_counts_of_an_odd_type_are_absent_and_the_handle_stays(odd: object) -> None:
    params = {"do_remote_prefill": True, "remote_num_tokens": odd, "remote_prefill_cached_tokens": odd}
    handle = read({"kv_transfer_params": params})
    assert handle is not None
    assert (handle.prompt_tokens, handle.cached_tokens) == (None, None)
    assert json.loads(handle.params) == params


def test_the_end_of_a_message_is_told_in_its_own_words() -> None:
    handle = read(
        {
            "type": "message",
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 19, "output_tokens": 1},
            "kv_transfer_params": {"do_remote_prefill": True},
        },
        Api.MESSAGES,
    )
    assert handle is not None
    assert (handle.prompt_tokens, handle.finish_reason) == (19, "max_tokens")


# --- decode leg ------------------------------------------------------------------------------------------


@given(OBJECTS)
def test_a_decode_leg_is_the_clients_request_and_the_handle(fields: dict[str, Any]) -> None:
    sent = json.loads(NIXL.decode_leg(json.dumps(fields).encode(), pairing(), Handle(PARAMS)).body)
    assert sent.pop("kv_transfer_params") == json.loads(PARAMS)
    fields.pop("kv_transfer_params", None)
    assert list(sent.items()) == list(fields.items())


def test_the_clients_transfer_is_replaced_in_every_place() -> None:
    data = b'{"kv_transfer_params":{"a":1}, "stream" : true, "kv_transfer_params": null}'
    sent = NIXL.decode_leg(data, pairing(), Handle(b'{"b":2}')).body
    assert sent == b'{"kv_transfer_params":{"b":2},"stream":true}'


def test_no_decode_leg_goes_without_a_handle() -> None:
    with pytest.raises(InternalError, match="needs the handle"):
        NIXL.decode_leg(b"{}", pairing(), None)


def test_a_body_that_is_no_object_has_no_decode_leg() -> None:
    with pytest.raises(BadRequest):
        NIXL.decode_leg(b"[]", pairing(), Handle(PARAMS))


# --- release ---------------------------------------------------------------------------------------------


def test_a_release_is_a_decode_leg_that_no_engine_can_take() -> None:
    leg = NIXL.release_leg(pairing(Api.MESSAGES), Handle(PARAMS))
    assert leg is not None
    assert leg.target == b"/v1/completions"
    assert PARAMS in leg.body
    sent = msgspec.json.decode(leg.body)
    assert sent.pop("kv_transfer_params") == json.loads(PARAMS)
    assert sent == {"model": "m", "prompt": [0], "max_tokens": 2**31 - 1, "stream": True}
