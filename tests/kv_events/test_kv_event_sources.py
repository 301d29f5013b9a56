"""Where events are published: as operators write it, and as engines say it of themselves."""

from __future__ import annotations

import json

import pytest

from router.kv_events.source import EventSource, sglang_sources, vllm_sources

CONFIG = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558",
    "buffer_steps": 10000,
    "hwm": 100000,
    "max_queue_size": 100000,
    "topic": "kv@one@model",
}


def vllm(body: object, host: str = "10.0.0.7") -> dict[int, EventSource]:
    return vllm_sources(json.dumps(body).encode(), host)


def test_an_operator_names_an_address_of_the_engine() -> None:
    source = EventSource.parse("tcp://engine:5557", "tcp://engine:5558", topic="kv@")
    assert source == EventSource("tcp://engine:5557", "tcp://engine:5558", "kv@")
    assert not source.listens
    assert not EventSource.parse("ipc:///run/events").listens
    assert EventSource.parse("tcp://[::1]:5557").of_rank(2).endpoint == "tcp://[::1]:5559"


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"])
def test_with_any_host_the_router_listens(endpoint: str) -> None:
    assert EventSource.parse(endpoint).listens
    with pytest.raises(ValueError, match="name its host"):
        EventSource.parse("tcp://engine:1", endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["", "engine:5557", "http://engine:5557", "tcp://engine", "tcp://:5557", "tcp://engine:0", "tcp://engine:99999",
     "tcp://engine:5557/path", "ipc://", "inproc://x", "tcp://[::1:5557"],
)  # fmt: skip
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        EventSource.parse(endpoint)


def test_ranks_listen_on_ports_of_their_own() -> None:
    source = EventSource("tcp://engine:5557", "tcp://engine:6557").of_rank(3)
    assert source == EventSource("tcp://engine:5560", "tcp://engine:6560", rank=3)
    assert EventSource("ipc:///run/events").of_rank(1) == EventSource("ipc:///run/events", rank=1)


def test_vllm_names_its_publishers_by_rank() -> None:
    told = {"0": CONFIG, "1": CONFIG | {"endpoint": "tcp://*:5600", "replay_endpoint": None}}
    assert vllm(told) == {
        0: EventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv@one@model", 0),
        1: EventSource("tcp://10.0.0.7:5600", None, "kv@one@model", 1),
    }


def test_vllm_may_also_list_them() -> None:
    told = [
        {"data_parallel_rank": 4, "endpoint": "tcp://10.9.9.9:5557", "replay_endpoint": None, "topic": ""}
    ]
    assert vllm(told) == {4: EventSource("tcp://10.0.0.7:5557", None, "", 4)}


def test_no_engine_sends_the_router_to_another_host() -> None:
    assert vllm(
        {"0": CONFIG | {"endpoint": "tcp://[::]:5557", "replay_endpoint": "tcp://victim:22"}}, "fd00::1"
    ) == {0: EventSource("tcp://[fd00::1]:5557", "tcp://[fd00::1]:22", "kv@one@model", 0)}


@pytest.mark.parametrize(
    "change",
    [
        {"enable_kv_cache_events": False},
        {"publisher": "null"},
        {"endpoint": None},
        {"endpoint": "tcp://collector:5557"},
        {"endpoint": "ipc:///run/events"},
        {"endpoint": "inproc://events"},
        {"endpoint": "tcp://*:0"},
    ],
)
def test_publishers_that_cannot_be_reached_are_left_out(change: dict[str, object]) -> None:
    assert vllm({"0": CONFIG | change}) == {}


def test_a_file_is_believed_of_an_engine_on_this_machine() -> None:
    told = {"0": CONFIG | {"endpoint": "ipc:///run/events", "replay_endpoint": "ipc:///run/replay"}}
    assert vllm(told, "127.0.0.1") == {
        0: EventSource("ipc:///run/events", "ipc:///run/replay", "kv@one@model", 0)
    }


def test_sglang_names_a_port_for_its_first_rank() -> None:
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "dp_size": 2,
              "block_size": 1, "replay_endpoint_port_base": 6557}  # fmt: skip
    body = json.dumps({"version": "0.5.23", "kv_events": events}).encode()
    assert sglang_sources(body, "10.0.0.7") == {
        0: EventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557", "", 0),
        1: EventSource("tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", "", 1),
    }
    assert sglang_sources(b'{"version":"0.5.23"}', "10.0.0.7") == {}
    assert sglang_sources(b'{"kv_events":{"endpoint_port_base":70000}}', "10.0.0.7") == {}


@pytest.mark.parametrize("body", [b"", b"{", b"5", b"null", b'{"x":{}}', b'{"0":5}', b'[{"endpoint":5}]'])
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        vllm_sources(body, "10.0.0.7")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"kv_events":5}', b'{"kv_events":{}}'])
def test_server_info_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        sglang_sources(body, "10.0.0.7")
