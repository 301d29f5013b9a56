"""Laws of SGLang's connector: one body, one room, and the rank that the room means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.connectors import Handle, Pairing, Peer, build_connector, room_for
from router.core.errors import BadRequest, InternalError
from router.core.request import Api
from tests.connectors.connector_examples import CHAT, OBJECTS, pairing, prefill

SGLANG = build_connector("sglang")
INJECTED = {"bootstrap_host", "bootstrap_port", "bootstrap_room"}
STEERING = {*INJECTED, "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"}


@given(OBJECTS, st.sampled_from([Api.CHAT, Api.COMPLETIONS]))
def test_both_legs_are_one_body_which_is_the_clients_and_the_room(fields: dict[str, Any], api: Api) -> None:
    body = json.dumps(fields).encode()
    sent = SGLANG.prefill_leg(body, pairing(api)).body
    assert SGLANG.decode_leg(body, pairing(api), None).body == sent
    read = json.loads(sent)
    assert read.keys() >= INJECTED
    assert {key: value for key, value in read.items() if key not in STEERING} == {
        key: value for key, value in fields.items() if key not in STEERING
    }


def test_one_sequence_has_one_room() -> None:
    sent = prefill(SGLANG, n=1, stream=True, stream_options={"include_usage": True}, min_tokens=3)
    assert {key: sent[key] for key in INJECTED} == {
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": None,
        "bootstrap_room": 12_345,
    }
    assert (sent["stream"], sent["min_tokens"]) == (True, 3)


@pytest.mark.parametrize(
    ("api", "fields", "sequences"),
    [
        (Api.CHAT, {"n": 3}, 3),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, 2),
        (Api.COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (Api.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Api.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (Api.COMPLETIONS, {"prompt": ["a"]}, 1),
        (Api.COMPLETIONS, {"prompt": "a", "n": None}, 1),
        (Api.CHAT, {"n": 0}, 1),
    ],
)
def test_a_batch_has_a_room_for_each_sequence(api: Api, fields: dict[str, Any], sequences: int) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    peer = Peer("::1", bootstrap_port=9000)
    sent = json.loads(SGLANG.prefill_leg(body, pairing(api, peer)).body)
    if sequences == 1:
        assert (sent["bootstrap_host"], sent["bootstrap_room"]) == ("[::1]", 12_345)
        return
    assert sent["bootstrap_host"] == ["[::1]"] * sequences
    assert sent["bootstrap_port"] == [9000] * sequences
    assert sent["bootstrap_room"] == [12_345 + i for i in range(sequences)]


def test_the_rooms_of_a_batch_stay_on_one_rank() -> None:
    peer = Peer("p", dp_rank=2, dp_size=4)
    room = room_for(2**62 - 1, 2, 4)
    sent = json.loads(SGLANG.prefill_leg(b'{"n":16384}', pairing(peer=peer, room=room)).body)
    rooms = sent["bootstrap_room"]
    assert len(set(rooms)) == 16_384
    assert {one % 4 for one in rooms} == {2}
    assert max(rooms) < 2**63


def test_a_chosen_rank_is_told_to_each_engine_in_its_own_way() -> None:
    one = pairing(peer=Peer("p", dp_rank=1, dp_size=2), room=7)
    first, second = SGLANG.prefill_leg(b"{}", one), SGLANG.decode_leg(b"{}", one, None)
    assert first.headers == ((b"x-data-parallel-rank", b"1"),)
    assert second.headers == ()
    assert json.loads(second.body)["disagg_prefill_dp_rank"] == 1


def test_a_clients_rank_cannot_contradict_the_pair() -> None:
    sent = prefill(SGLANG, routed_dp_rank=3, data_parallel_rank=3, disagg_prefill_dp_rank=3, bootstrap_room=9)
    assert not sent.keys() & {"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"}
    assert sent["bootstrap_room"] == 12_345


@given(st.integers(0, 2**70), st.integers(1, 512), st.data())
def test_a_room_is_given_to_the_wanted_rank(bits: int, dp_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.none() | st.integers(0, dp_size - 1))
    room = room_for(bits, rank, dp_size)
    assert 0 < room < 2**62 + dp_size
    assert rank is None or room % dp_size == rank
    assert abs(room - bits % 2**62) <= dp_size


def test_no_leg_goes_without_its_prefill_worker() -> None:
    alone = Pairing(Api.CHAT, "m", "xfer-1", 7, None)
    for leg in (SGLANG.prefill_leg, lambda body, one: SGLANG.decode_leg(body, one, None)):
        with pytest.raises(InternalError, match="has no prefill worker"):
            leg(b"{}", alone)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_object_is_the_clients_fault(data: bytes) -> None:
    with pytest.raises(BadRequest):
        SGLANG.prefill_leg(data, pairing())


@pytest.mark.parametrize(
    "answer",
    [
        b'{"object":"error","message":"room","type":"BadRequest","code":400}',
        b'data: {"error": {"object":"error","message":"room","code":500}}\n\ndata: [DONE]\n\n',
        b'data: {"choices":[]}\n\ndata:{"error": {"message":"late"}}\n\n',
    ],
)
def test_a_prefill_that_failed_gives_no_handle(answer: bytes) -> None:
    assert SGLANG.read_prefill(answer, pairing()) is None


def test_a_prefill_that_went_well_has_nothing_to_hand_on() -> None:
    whole = json.dumps({**CHAT, "choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 5}})
    assert SGLANG.read_prefill(whole.encode(), pairing()) == Handle(b"", 5, None, "length")
    text = b'data: {"choices":[{"delta":{"content":"an \\"error\\""}}]}\n\ndata: [DONE]\n\n'
    assert SGLANG.read_prefill(text, pairing()) == Handle(b"")


def test_there_is_nothing_to_release() -> None:
    assert SGLANG.release_leg(pairing(), Handle(b"")) is None
