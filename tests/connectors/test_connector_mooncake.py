"""Laws of the Mooncake connector: both legs name one transfer, and the engine that holds it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from router.connectors import Handle, Pairing, Peer, build_connector, read_bootstrap
from router.core.errors import InternalError
from router.core.request import Api
from tests.connectors.connector_examples import CHAT, OBJECTS, WIRE, pairing, prefill

MOONCAKE = build_connector("mooncake")
CONCURRENT = build_connector("mooncake", concurrent=True)
PEER = Peer("::1", engine_id="e_dp1", dp_rank=1, dp_size=2)
FETCH = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_bootstrap_addr": "http://[::1]:8998",
    "remote_engine_id": "e_dp1",
    "transfer_id": "xfer-1",
}
ANSWER = {"choices": [{"index": 0, "finish_reason": "length"}], "usage": {"prompt_tokens": 150}}


def answer(reason: object) -> bytes:
    return json.dumps({**ANSWER, "choices": [{"index": 0, "finish_reason": reason}]}).encode()


def test_a_prefill_leg_names_the_transfer_and_the_rank() -> None:
    leg = MOONCAKE.prefill_leg(json.dumps(CHAT).encode(), pairing(peer=PEER))
    assert json.loads(leg.body)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-1",
    }
    assert leg.headers == ((b"x-data-parallel-rank", b"1"),)


def test_the_clients_own_transfer_is_replaced() -> None:
    assert prefill(MOONCAKE, kv_transfer_params={"transfer_id": "x"})["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-1",
    }


@pytest.mark.parametrize("peer", [None, Peer("10.0.0.1")])
def test_no_prefill_is_sent_whose_kv_nobody_could_ask_for(peer: Peer | None) -> None:
    unnamed = Pairing(Api.CHAT, "m", "xfer-1", 1, peer)
    with pytest.raises(InternalError, match="bootstrap server must be asked"):
        MOONCAKE.prefill_leg(b"{}", unnamed)
    with pytest.raises(InternalError, match="bootstrap server must be asked"):
        CONCURRENT.decode_leg(b"{}", unnamed, None)


def test_a_real_producer_gives_nothing_and_the_handle_is_the_pairings() -> None:
    whole = (WIRE / "vllm_mooncake_prefill.json").read_bytes()
    handle = MOONCAKE.read_prefill(whole, pairing(Api.COMPLETIONS, PEER))
    assert handle is not None
    assert json.loads(handle.params) == FETCH
    assert (handle.prompt_tokens, handle.cached_tokens, handle.finish_reason) == (150, 0, "length")


@pytest.mark.parametrize(
    "whole",
    [answer("stop"), answer("abort"), answer(None), b"", b"[]", b"\xff", b'{"error":{"message":"no"}}'],
)
def test_only_a_prefill_that_ended_in_length_keeps_its_kv(whole: bytes) -> None:
    assert MOONCAKE.read_prefill(whole, pairing(peer=PEER)) is None


@pytest.mark.parametrize(
    ("api", "whole"),
    [
        (Api.MESSAGES, {"type": "message", "stop_reason": "max_tokens"}),
        (Api.RESPONSES, {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}),
    ],
)
def test_length_has_a_word_in_each_api(api: Api, whole: dict[str, Any]) -> None:
    assert MOONCAKE.read_prefill(json.dumps(whole).encode(), pairing(api, PEER)) is not None


@given(OBJECTS)
def test_a_decode_leg_is_the_clients_request_and_the_transfer(fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    handle = MOONCAKE.read_prefill(json.dumps(ANSWER).encode(), pairing(peer=PEER))
    leg = MOONCAKE.decode_leg(body, pairing(peer=PEER), handle)
    assert leg == CONCURRENT.decode_leg(body, pairing(peer=PEER), None)
    sent = json.loads(leg.body)
    assert sent.pop("kv_transfer_params") == FETCH
    fields.pop("kv_transfer_params", None)
    assert sent == fields


def test_one_after_the_other_needs_the_prefills_answer() -> None:
    with pytest.raises(InternalError, match="needs the handle"):
        MOONCAKE.decode_leg(b"{}", pairing(peer=PEER), None)


def test_the_producer_is_asked_at_its_own_port() -> None:
    peer = Peer("p-0", bootstrap_port=9000, engine_id="e")
    sent = json.loads(CONCURRENT.decode_leg(b"{}", pairing(peer=peer), None).body)
    assert sent["kv_transfer_params"]["remote_bootstrap_addr"] == "http://p-0:9000"


def test_a_release_asks_for_the_same_transfer() -> None:
    leg = MOONCAKE.release_leg(pairing(peer=PEER), Handle(json.dumps(FETCH).encode()))
    assert leg is not None
    assert json.loads(leg.body)["kv_transfer_params"] == FETCH


# --- bootstrap server ------------------------------------------------------------------------------------


def test_a_bootstrap_server_names_the_engine_of_each_rank() -> None:
    table = (
        b'{"0":{"engine_id":"e_dp0","worker_addr":{"0":{"0":"10.0.0.1:1234"}}},'
        b'"1":{"engine_id":"e_dp1","worker_addr":{"0":{"0":"10.0.0.1:1235"}},"new":1}}'
    )
    assert read_bootstrap(table) == {0: "e_dp0", 1: "e_dp1"}
    assert read_bootstrap(b"{}") == {}


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"[]",
        b"null",
        b'{"x":{"engine_id":"e"}}',
        b'{"0":{}}',
        b'{"0":{"engine_id":7}}',
        b"<html>",
        b"\xff",
    ],
)
def test_an_answer_that_is_no_table_is_refused(table: bytes) -> None:
    with pytest.raises(ValueError, match="not its table of engines"):
        read_bootstrap(table)
