"""What the mock's server publishes of its KV cache, when, and where it says that it does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
import zmq

from engines.mock.__main__ import main, parser, settings_of
from engines.mock.kv_events_config import KvEventsConfig
from engines.mock.settings import MockSettings, SettingsError
from router.virtual.clock import run
from tests.engines.mock_processes import engines
from tests.engines.mock_stage import UNIX_ORIGIN_S, Stage, stage

ANYWHERE = KvEventsConfig(endpoint="tcp://*:0", replay_endpoint="tcp://*:0", topic="kv@mock")
TOKENS = list(range(100, 200))
PROMPT: dict[str, Any] = {"prompt": TOKENS, "max_tokens": 1}
"""A hundred tokens: six blocks of 16, the seventh not full."""


class Ear:
    """Hears one rank."""

    def __init__(self, act: Stage, rank: int = 0) -> None:
        self.heard: list[Any] = []
        assert act.process.kv_events is not None
        act.process.kv_events.publishers[rank].outlet = self

    def send(self, frames: Sequence[bytes]) -> None:
        topic, number, payload = frames
        ts, events, rank = msgspec.msgpack.decode(payload)
        self.heard.append((topic, int.from_bytes(number, "big"), ts, events, rank))

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.heard for event in batch[3]]


def test_a_prompt_is_published_when_its_step_ends() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE) as act:
            ear = Ear(act)
            await act.ask("/v1/completions", PROMPT)
            ((topic, number, ts, (event,), rank),) = ear.heard
            assert (topic, number, rank) == (b"kv@mock", 0, 0)
            assert UNIX_ORIGIN_S <= ts < UNIX_ORIGIN_S + 1
            assert (event["type"], event["token_ids"]) == ("BlockStored", TOKENS[:96])
            await act.ask("/v1/completions", PROMPT)
            # All of it is cached: nothing but the last block, which is computed anew to sample from.
            assert [len(event["block_hashes"]) for event in ear.events[1:]] in ([], [1])

    run(act_())


def test_blocks_that_fill_up_while_answering_are_published_as_they_do() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE) as act:
            ear = Ear(act)
            await act.ask("/v1/completions", {**PROMPT, "max_tokens": 40, "ignore_eos": True})
            sizes = [len(event["token_ids"]) for event in ear.events]
            assert sizes == [96, 16, 16]
            assert [batch[1] for batch in ear.heard] == [0, 1, 2]
            parents = [event["parent_block_hash"] for event in ear.events]
            assert parents == [None, ear.events[0]["block_hashes"][-1], ear.events[1]["block_hashes"][0]]

    run(act_())


def test_a_reset_is_published_with_the_next_step() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE) as act:
            ear = Ear(act)
            await act.ask("/v1/completions", PROMPT)
            assert (await act.ask("/reset_prefix_cache", method="POST")).json() == {"success": True}
            assert len(ear.events) == 1
            await act.ask("/v1/completions", {"prompt": [7] * 20, "max_tokens": 1})
            assert [event["type"] for event in ear.events[1:]] == ["AllBlocksCleared", "BlockStored"]

    run(act_())


def test_what_is_evicted_is_published() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE, kv_tokens=256, max_model_len=256) as act:
            ear = Ear(act)
            for first in (0, 1000, 2000):
                await act.ask("/v1/completions", {"prompt": list(range(first, first + 150)), "max_tokens": 1})
            removed = [event for event in ear.events if event["type"] == "BlockRemoved"]
            stored = {
                one for event in ear.events if event["type"] == "BlockStored" for one in event["block_hashes"]
            }
            assert removed
            assert {one for event in removed for one in event["block_hashes"]} <= stored

    run(act_())


def test_ranks_publish_apart_and_say_which_they_are() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE, dp_size=2) as act:
            ears = [Ear(act, rank) for rank in range(2)]
            await act.ask("/v1/completions", PROMPT, {"x-data-parallel-rank": "1"})
            assert ears[0].heard == []
            assert [batch[4] for batch in ears[1].heard] == [1]

    run(act_())


def test_older_encodings_are_arrays() -> None:
    async def act_() -> None:
        async with stage(kv_events=replace(ANYWHERE, encoding="arrays")) as act:
            ear = Ear(act)
            await act.ask("/v1/completions", PROMPT)
            assert [event[0] for event in ear.events] == ["BlockStored"]

    run(act_())


def test_sglang_publishes_page_by_page() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE, dialect="sglang") as act:
            ear = Ear(act)
            await act.ask("/generate", {"input_ids": TOKENS, "sampling_params": {"max_new_tokens": 1}})
            assert [len(event["token_ids"]) for event in ear.events] == [16] * 6

    run(act_())


def test_a_new_incarnation_counts_from_zero() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE, restart_delay_s=1.0) as act:
            await act.ask("/v1/completions", PROMPT)
            await act.fault("engine_death")
            await asyncio.sleep(2.0)
            ear = Ear(act)
            await act.ask("/v1/completions", PROMPT)
            assert [batch[1] for batch in ear.heard] == [0]

    run(act_())


def test_batches_can_be_lost_on_the_way_and_healed() -> None:
    async def act_() -> None:
        async with stage(kv_events=ANYWHERE) as act:
            ear = Ear(act)
            await act.fault("drop_events", count=2)
            for first in range(0, 4000, 1000):
                await act.ask("/v1/completions", {"prompt": list(range(first, first + 40)), "max_tokens": 1})
            assert [batch[1] for batch in ear.heard] == [2, 3]
            await act.fault("drop_events", count=9)
            await act.ask("/mock/faults", method="DELETE")
            await act.ask("/v1/completions", PROMPT)
            assert [batch[1] for batch in ear.heard] == [2, 3, 4]
            (rank,) = (await act.state())["kv_events"]["ranks"]
            assert rank == {"endpoint": "tcp://*:0", "batches": 5, "to_drop": 0}

    run(act_())


def test_an_engine_that_publishes_nothing_records_nothing_and_can_lose_nothing() -> None:
    async def act_() -> None:
        async with stage() as act:
            await act.ask("/v1/completions", PROMPT)
            assert act.process.engine.drain_kv_events() == []
            assert (await act.ask("/kv_event_sources")).json() == {}
            reply = await act.ask("/mock/faults", {"kind": "drop_events"})
            assert (reply.status, "publishes none" in reply.body.decode()) == (400, True)

    run(act_())


def test_vllm_tells_where_each_rank_publishes() -> None:
    async def act_() -> None:
        config = KvEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://*:6557", topic="kv@one@m")
        async with stage(kv_events=config, dp_size=2) as act:
            told = (await act.ask("/kv_event_sources")).json()
            assert {rank: (one["endpoint"], one["replay_endpoint"]) for rank, one in told.items()} == {
                "0": ("tcp://*:5557", "tcp://*:6557"),
                "1": ("tcp://*:5558", "tcp://*:6558"),
            }
            assert told["0"]["publisher"] == "zmq"
            assert told["0"]["topic"] == "kv@one@m"
            assert told["0"]["enable_kv_cache_events"]

    run(act_())


def test_sglang_tells_the_port_of_its_first_rank() -> None:
    async def act_() -> None:
        config = KvEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://*:6557")
        async with stage(kv_events=config, dp_size=2, dialect="sglang") as act:
            assert (await act.ask("/server_info")).json()["kv_events"] == {
                "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "",
                "block_size": 16, "dp_size": 2, "replay_endpoint_port_base": 6557,
            }  # fmt: skip

    run(act_())


# --- over sockets -----------------------------------------------------------------------------------------


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def post(url: str, path: str, body: object) -> Any:
    request = Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def get(url: str, path: str) -> Any:
    with urlopen(url + path, timeout=30) as answer:
        return json.loads(answer.read())


def test_a_subscriber_hears_what_was_published_and_can_ask_for_the_rest(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    flags = ("--kv-events-endpoint", "tcp://*:0", "--kv-events-replay-endpoint", "tcp://*:0")
    with (
        engines("--time-scale", "0.1", "--restart-delay", "0.1", "--kv-events-topic", "kv@", *flags) as (
            _,
            urls,
        ),
        context.socket(zmq.SUB) as subscriber,
        context.socket(zmq.DEALER) as dealer,
    ):
        source = get(urls[0], "/kv_event_sources")["0"]
        for socket, place in ((subscriber, source["endpoint"]), (dealer, source["replay_endpoint"])):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 20_000)
            socket.connect(place.replace("*", "127.0.0.1"))
        subscriber.subscribe(b"kv@")
        first: list[bytes] = []
        turn = 0
        while not first:  # the subscription takes its time to arrive
            turn += 1000
            post(urls[0], "/v1/completions", {"prompt": list(range(turn, turn + 40)), "max_tokens": 1})
            if subscriber.poll(100):
                first = subscriber.recv_multipart()
        assert first[0] == b"kv@"
        number = int.from_bytes(first[1], "big")
        dealer.send_multipart([b"", number.to_bytes(8, "big")])
        assert dealer.recv_multipart() == [b"", *first]
        assert dealer.recv_multipart() == [b"", b"", b"\xff" * 8, b""]
        with suppress(OSError):  # the crash takes this connection along
            post(urls[0], "/mock/faults", {"kind": "crash"})
        again = False
        while not again:  # a new process: its numbers begin anew, at the same places
            with suppress(OSError):
                post(urls[0], "/v1/completions", PROMPT)
                dealer.send_multipart([b"", (0).to_bytes(8, "big")])
                while dealer.poll(1_000) and not again:
                    answer = dealer.recv_multipart()
                    again = answer[2] == (0).to_bytes(8, "big") and bytes([TOKENS[0], TOKENS[1]]) in answer[3]
        assert msgspec.msgpack.decode(answer[3])[1][0]["token_ids"] == TOKENS[:96]


def test_engines_of_a_fleet_and_their_ranks_have_ports_one_after_the_other() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=30_000)
    place = ("--kv-events-endpoint", f"tcp://*:{port}")
    with engines("--count", "2", "--dp-size", "2", *place) as (_, urls):
        told = [get(url, "/kv_event_sources") for url in urls]
        assert [[one[rank]["endpoint"] for rank in ("0", "1")] for one in told] == [
            [f"tcp://*:{port}", f"tcp://*:{port + 1}"],
            [f"tcp://*:{port + 2}", f"tcp://*:{port + 3}"],
        ]


def test_an_address_that_is_taken_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://*")
        assert main(["--port", "0", "--kv-events-endpoint", f"tcp://*:{port}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"pointsman mock: cannot publish KV events at tcp://*:{port}: Address already in use"
    )


def test_without_pyzmq_a_sentence_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "engines.mock.kv_sockets", raising=False)
    assert main(["--port", "0", "--kv-events-endpoint", "tcp://*:0"]) == 2
    assert "need pyzmq, which is not installed" in capsys.readouterr().err


# --- flags ------------------------------------------------------------------------------------------------


def settings(*flags: str) -> MockSettings:
    return settings_of(parser().parse_args(list(flags)))


def test_flags_say_where_and_how() -> None:
    events = settings(
        "--kv-events-endpoint", "tcp://*:5557", "--kv-events-replay-endpoint", "tcp://*:6557",
        "--kv-events-topic", "t", "--kv-events-encoding", "arrays",
    ).kv_events  # fmt: skip
    assert events == KvEventsConfig(
        endpoint="tcp://*:5557", replay_endpoint="tcp://*:6557", topic="t", encoding="arrays"
    )


def test_vllms_json_says_the_same() -> None:
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:7000", "buffer_steps": 5}
    events = settings("--kv-events-config", json.dumps(told)).kv_events
    assert events == KvEventsConfig(endpoint="tcp://*:7000", buffer_steps=5)
    for off in ({}, {**told, "publisher": "null"}, {**told, "enable_kv_cache_events": False}):
        assert settings("--kv-events-config", json.dumps(off)).kv_events is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-events-endpoint", "5557"), "is no address"),
        (("--kv-events-endpoint", "tcp://*:70000"), "is no address"),
        (("--kv-events-endpoint", "ipc://"), "is no address"),
        (("--kv-events-endpoint", "tcp://*:1", "--kv-events-encoding", "xml"), "known are maps, arrays"),
        (("--kv-events-replay-endpoint", "tcp://*:1"), "nothing is published without"),
        (("--kv-events-config", "{"), "--kv-events-config: it cannot be read"),
        (("--kv-events-config", '{"endpoit": "x"}'), "--kv-events-config: it cannot be read"),
        (("--kv-events-config", "{}", "--kv-events-endpoint", "tcp://*:1"), "leave the other flags out"),
        (("--kv-events-config", '{"enable_kv_cache_events": true, "hwm": 0}'), "hwm is 0"),
        (("--kv-events-endpoint", "ipc:///run/x", "--count", "2"), "a file serves one publisher"),
        (("--kv-events-endpoint", "ipc:///run/x", "--dp-size", "2"), "a file serves one publisher"),
        (
            (
                *("--kv-events-endpoint", "tcp://*:1", "--kv-events-replay-endpoint", "tcp://*:2"),
                *("--dp-size", "2"),
            ),
            "put the two further apart",
        ),
        (("--kv-events-endpoint", "tcp://*:65535", "--count", "2"), "end above 65535"),
        (
            ("--dialect", "sglang", "--kv-events-endpoint", "tcp://*:1", "--kv-events-encoding", "arrays"),
            "the sglang dialect has only maps",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(*flags)
