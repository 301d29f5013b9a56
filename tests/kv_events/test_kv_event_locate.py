"""Where a worker publishes: as it was written down, else as the engine says, else nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.core.errors import ConnectFailed, UpstreamError
from router.fleet import Member
from router.kv_events.locate import Locator, Place
from router.kv_events.source import EventSource
from router.settings.workers import WorkerSettings
from router.upstream.client import Answer, Upstream, WireRequest
from router.upstream.origin import Origin

TOLD = {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "topic": "kv"}
SGLANG = {"kv_events": {"publisher": "zmq", "endpoint_port_base": 6000, "topic": "", "dp_size": 1}}
FOUND = EventSource("tcp://e:5557", "tcp://e:5657", "kv", 0)


class Engine:
    """Answers by path: a status, a body, or an error."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.asked: list[WireRequest] = []

    async def fetch(self, origin: Origin, request: WireRequest, *, total_s: float, max_bytes: int) -> Answer:
        self.asked.append(request)
        answer = self.answers.get(request.target.decode(), 404)
        if isinstance(answer, UpstreamError):
            raise answer
        status, body = (answer, b"") if isinstance(answer, int) else (200, json.dumps(answer).encode())
        return Answer(status, [], body)


def member(rank: int | None = None, key: bytes | None = None, **settings: Any) -> Member:
    made = SimpleNamespace(
        name="w",
        origin=Origin("http", "e", 8000, ""),
        settings=WorkerSettings(url="http://e:8000", **settings),
        dp_rank=rank,
        key=key,
    )
    return cast(Member, made)


class Stage:
    def __init__(self, asks: bool = True, **answers: object) -> None:
        self.engine = Engine({f"/{path}": answer for path, answer in answers.items()})
        self.locator = Locator(cast(Upstream, self.engine), asks=asks)

    def source(self, one: Member | None = None) -> EventSource | None:
        return asyncio.run(self.locator.source_of(one or member()))

    @property
    def place(self) -> Place:
        return self.locator.place("w")

    @property
    def paths(self) -> list[str]:
        return [request.target.decode() for request in self.engine.asked]


def test_vllm_is_asked_first_with_the_workers_key() -> None:
    stage = Stage(kv_event_sources={"0": TOLD})
    assert stage.place is Place.UNKNOWN
    assert stage.source(member(key=b"secret")) == FOUND
    assert (stage.place, stage.paths) == (Place.FOUND, ["/kv_event_sources"])
    assert (b"authorization", b"Bearer secret") in stage.engine.asked[0].headers


def test_sglang_is_asked_where_there_is_no_such_route() -> None:
    stage = Stage(server_info=SGLANG)
    assert stage.source() == EventSource("tcp://e:6000", rank=0)
    assert stage.paths == ["/kv_event_sources", "/server_info"]


def test_each_rank_is_found_at_its_own_place() -> None:
    stage = Stage(kv_event_sources={"0": TOLD, "1": {**TOLD, "endpoint": "tcp://*:5558"}})
    assert stage.source(member(1)) == EventSource("tcp://e:5558", "tcp://e:5657", "kv", 1)
    assert stage.source(member(2)) is None
    assert stage.place is Place.NOWHERE
    assert stage.source() is None
    assert stage.place is Place.RANKS


def test_what_was_written_down_is_not_asked_for() -> None:
    stage = Stage(asks=False)
    written = member(kv_events_endpoint="tcp://other:1", kv_events_topic="t")
    assert stage.source(written) == EventSource("tcp://other:1", None, "t")
    assert stage.source(member(3, kv_events_endpoint="tcp://e:5557")) == EventSource("tcp://e:5560", rank=3)
    assert (stage.place, stage.paths) == (Place.FOUND, [])


def test_nobody_is_asked_where_only_what_is_written_down_counts() -> None:
    stage = Stage(asks=False, kv_event_sources={"0": TOLD})
    assert stage.source() is None
    assert (stage.place, stage.paths) == (Place.NOWHERE, [])


def test_an_engine_without_such_a_route_is_asked_once_in_its_life() -> None:
    stage = Stage()
    assert [stage.source() for _ in range(3)] == [None, None, None]
    assert (stage.place, len(stage.paths)) == (Place.NO_ROUTE, 2)
    stage.locator.forget("w")
    assert stage.place is Place.UNKNOWN
    stage.source()
    assert len(stage.paths) == 4


@pytest.mark.parametrize("answer", [{}, {"0": {**TOLD, "publisher": "null"}}])
def test_one_that_does_not_publish_is_asked_again(answer: object) -> None:
    stage = Stage(kv_event_sources=answer)
    assert [stage.source() for _ in range(2)] == [None, None]
    assert (stage.place, stage.paths) == (Place.NOWHERE, ["/kv_event_sources"] * 2)


@pytest.mark.parametrize("answer", [ConnectFailed("refused", refused=True), 503])
def test_one_that_cannot_answer_now_is_asked_again(answer: object) -> None:
    stage = Stage(kv_event_sources=answer, server_info=SGLANG)
    assert [stage.source() for _ in range(2)] == [None, None]
    assert (stage.place, stage.paths) == (Place.UNKNOWN, ["/kv_event_sources"] * 2)


def test_an_answer_that_is_none_publishes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(kv_event_sources=["x"])
    for _ in range(2):
        assert (stage.source(), stage.place) == (None, Place.NOWHERE)
    assert caplog.text.count("worker w: its list of event sources cannot be read") == 1
    assert repr(stage.locator) == "<Locator [1 workers]>"
