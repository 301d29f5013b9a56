"""Laws of no connector: fill the store, then send the client's own request."""

from __future__ import annotations

import json

import pytest

from router.connectors import Handle, Peer, build_connector
from tests.connectors.connector_examples import pairing, prefill

NONE = build_connector("none")


def test_a_warm_up_carries_no_transfer() -> None:
    assert "kv_transfer_params" not in prefill(NONE)


def test_a_warm_up_goes_to_the_rank_that_was_chosen() -> None:
    leg = NONE.prefill_leg(b"{}", pairing(peer=Peer("p", dp_rank=1, dp_size=2)))
    assert leg.headers == ((b"x-data-parallel-rank", b"1"),)


@pytest.mark.parametrize("handle", [None, Handle(b"")])
def test_a_decode_leg_is_the_clients_request_itself(handle: Handle | None) -> None:
    body = b' {"model" : "m", "stream":true}'
    leg = NONE.decode_leg(body, pairing(), handle)
    assert leg.body is body
    assert leg.headers == ()


def test_a_warm_up_tells_how_long_the_prompt_is() -> None:
    answer = {
        "choices": [{"index": 0, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert NONE.read_prefill(json.dumps(answer).encode(), pairing()) == Handle(b"", 9, 4, "stop")


def test_an_answer_without_usage_is_still_a_warm_up() -> None:
    assert NONE.read_prefill(b"{}", pairing()) == Handle(b"")


def test_an_error_is_no_warm_up() -> None:
    assert NONE.read_prefill(b'{"error":{"message":"no"}}', pairing()) is None


def test_there_is_nothing_to_release() -> None:
    assert NONE.release_leg(pairing(), Handle(b"")) is None
