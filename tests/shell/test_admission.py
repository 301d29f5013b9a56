"""What is refused at the door, in which words, and that a refusal loses nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import TALK, WHOLE, hang, talk

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "blank": (b"  \n", "empty"),
    "not_json": (b"{hello", "not valid JSON"),
    "cut": (b'{"model": "m", "mess', "not valid JSON"),
    "a_list": (b"[1, 2]", "must be a JSON object"),
    "a_number": (b"7", "must be a JSON object"),
    "null": (b"null", "must be a JSON object"),
    "no_model": (b'{"messages": []}', "`model` is missing"),
    "null_model": (b'{"model": null}', "`model` is missing"),
    "empty_model": (b'{"model": ""}', "`model` is empty"),
    "number_as_model": (b'{"model": 7}', "`model` must be a string"),
    "list_as_model": (b'{"model": ["m"]}', "`model` must be a string"),
    "deep": (b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "not_utf8": (b'{"model": "m\xff"}', "UTF-8"),
    "half_a_pair": (b'{"model": "\\ud83d"}', "surrogate"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_body_that_cannot_be_routed_is_refused_in_a_clear_sentence(name: str) -> None:
    body, words = BAD[name]

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, body, method="POST")
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert words in reply.error["message"]
        assert act.puppets["a"].asks == []

    play(scene)


ODD_TYPES: list[dict[str, Any]] = [
    {"messages": "text"},
    {"messages": 7},
    {"stream": "maybe"},
    {"stream": [True]},
    {"max_tokens": "many"},
    {"max_tokens": -5},
    {"n": 0},
    {"n": "three"},
    {"n": 10**30},
    {"stream": True, "stream_options": "yes"},
    {"stream_options": 7},
    {"priority": "high"},
    {"tools": {}},
    {"logprobs": {}},
    {"user": 3},
    {"prompt_cache_key": {}},
]


@pytest.mark.parametrize("fields", ODD_TYPES, ids=str)
def test_what_only_the_engine_can_judge_reaches_it_as_it_came(fields: dict[str, Any]) -> None:
    async def scene(act: Live) -> None:
        body = json.dumps({**ASK, **fields}).encode()
        reply = await act.ask(CHAT, body)
        assert reply.status == 200
        assert act.puppets["a"].asks[0].body == body

    play(scene)


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "messages",
    "prompt",
    "input",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "max_tokens",
    "priority",
    "tools",
    "user",
    "conversation",
    "cache_salt",
    "kv_transfer_params",
    "vllm_xargs",
    "documents",
    "previous_response_id",
]
FIELD = st.sampled_from(FIELDS)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(st.dictionaries(FIELD, JSON_VALUE, max_size=6), min_size=20, max_size=40))
def test_no_body_is_a_bug(bodies: list[dict[str, Any]]) -> None:
    async def scene(act: Live) -> None:
        for number, body in enumerate(bodies):
            path = [
                "/v1/chat/completions",
                "/v1/completions",
                "/v1/messages",
                "/v1/responses",
                "/v1/embeddings",
            ]
            reply = await act.ask(path[number % 5], {"model": "m", **body})
            assert reply.status in (200, 400, 404), reply.body

    play(scene, {"a": _whole})


async def _whole(ask: Any) -> None:
    ask.answer(200, WHOLE)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies=st.lists(st.binary(max_size=60), min_size=20, max_size=40))
def test_no_bytes_are_a_bug(bodies: list[bytes]) -> None:
    async def scene(act: Live) -> None:
        for body in bodies:
            assert (await act.ask(CHAT, body, method="POST")).status == 400

    play(scene)


def test_a_declared_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 314572800\r\n\r\n" % CHAT.encode())
        await client.until(lambda: b"body_too_large" in client.received)
        assert client.received.startswith(b"HTTP/1.1 413 ")
        assert b"67108864" in client.received
        assert act.router.bodies.used == 0
        client.transport.close()

    play(scene)


def test_a_chunked_body_over_the_limit_is_refused_as_soon_as_it_is() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"POST %b HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode())
        sent = 0
        while not client.received and sent < 10_000_000:
            client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            sent += 10_000
            await asyncio.sleep(0)
        assert client.received.startswith(b"HTTP/1.1 413 ")
        assert sent < 1_000_000
        client.transport.close()

    play(scene, limits={"body_bytes": 100_000})


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_reaches_the_engine_plain(encoding: str) -> None:
    raw = json.dumps(ASK).encode()
    packed = gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, packed, {"content-encoding": encoding})
        assert (reply.status, reply.body) == (200, WHOLE)
        ask = act.puppets["a"].asks[0]
        assert ask.body == raw
        assert ask.header("content-encoding") is None
        assert ask.header("content-length") == str(len(raw))

    play(scene)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_bomb_is_refused(encoding: str) -> None:
    raw = b'{"model": "m", "x": "' + b"a" * 50_000_000 + b'"}'
    packed = gzip.compress(raw, 1) if encoding == "gzip" else zstandard.compress(raw)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, packed, {"content-encoding": encoding})
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")
        assert act.puppets["a"].asks == []

    play(scene, limits={"body_bytes": 1_000_000})


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", b"\x1f\x8bno"), ("zstd", b"no"), ("br", b"x"), ("gzip, gzip", b"x")]
)
def test_a_body_in_an_encoding_that_does_not_hold_is_refused(encoding: str, body: bytes) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, body, {"content-encoding": encoding})
        assert reply.status == 400
        assert encoding in reply.error["message"] or "not supported" in reply.error["message"]

    play(scene)


def test_a_compressed_body_that_ends_too_early_is_refused() -> None:
    async def scene(act: Live) -> None:
        for packed in (gzip.compress(json.dumps(ASK).encode()), zstandard.compress(json.dumps(ASK).encode())):
            encoding = "gzip" if packed[:2] == b"\x1f\x8b" else "zstd"
            reply = await act.ask(CHAT, packed[:-9], {"content-encoding": encoding})
            assert reply.status == 400

    play(scene)


def test_an_unknown_model_is_told_the_known_ones() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**ASK, "model": "gpt-5"})
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
        assert "`gpt-5`" in reply.error["message"]
        assert "`m`" in reply.error["message"]

    play(scene)


def test_without_a_worker_the_router_serves_and_says_so() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert reply.header("retry-after") is not None
        assert (await act.ask("/liveness")).status == 200
        assert (await act.ask("/readiness")).status == 503
        models = await act.ask("/v1/models")
        assert (models.status, models.json()["data"]) == (200, [])

    play(scene, {})


def test_while_all_workers_are_out_a_known_model_is_503_and_not_404() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected")
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")

    play(scene)


def test_requests_that_come_before_the_first_probe_wait_for_it() -> None:
    async def scene(act: Live) -> None:
        assert act.state("a") == "starting"
        assert (await act.ask(CHAT, STREAM)).body == TALK

    play(scene, ready=False)


def test_a_full_queue_answers_429_with_a_time_to_come_back() -> None:
    async def scene(act: Live) -> None:
        held = [act.asking(CHAT, STREAM) for _ in range(4)]
        await act.until(lambda: act.pool.queued == 3)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"], reply.error["type"]) == (
            429,
            "queue_full",
            "rate_limit_error",
        )
        assert 1 <= int(reply.header("retry-after") or 0) <= 60
        assert reply.header("x-should-retry") is None
        for task in held:
            task.cancel()

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"}, limits={"queue_size": 3})


def test_who_waits_too_long_in_the_queue_gets_429() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 429
        assert act.now - before == pytest.approx(30, abs=0.3)
        first.cancel()

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"})


def test_the_queue_is_served_in_order() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, ASK, {"x-request-id": str(number)}) for number in range(5)]
        await asyncio.gather(*tasks)
        assert [ask.header("x-request-id") for ask in act.puppets["a"].asks] == ["0", "1", "2", "3", "4"]
        starts = [ask.at for ask in act.puppets["a"].asks]
        assert [round(at - starts[0], 3) for at in starts] == [0, 0.04, 0.08, 0.12, 0.16]

    play(scene, pool={"slots": 1, "binding": "late"})


def test_beyond_the_requests_in_flight_allowed_the_rest_waits() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, ASK) for _ in range(6)]
        await act.until(lambda: act.pool.queued == 4)
        assert act.router.fleet.in_flight.used == 2
        assert {(await task).status for task in tasks} == {200}
        assert act.now == pytest.approx(0.12, abs=0.01)

    play(scene, limits={"max_in_flight": 2})


def test_a_queue_of_length_0_takes_what_starts_at_once() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, ASK) for _ in range(3)]
        assert sorted([(await task).status for task in tasks]) == [200, 200, 429]

    play(scene, limits={"queue_size": 0, "max_in_flight": 2})


def test_a_queue_too_large_in_bytes_answers_429() -> None:
    big = {**STREAM, "x": "y" * 5_000}

    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, big) for _ in range(2)]
        await act.until(lambda: act.pool.queued == 1)
        assert (await act.ask(CHAT, big)).status == 429
        for task in tasks:
            task.cancel()

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"}, limits={"queue_bytes": 8_000})


def test_more_bodies_than_the_router_may_hold_are_refused_with_503() -> None:
    async def scene(act: Live) -> None:
        big = {**STREAM, "x": "y" * 60_000}
        task = act.asking(CHAT, big)
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        assert act.router.bodies.used > 60_000
        reply = await act.ask(CHAT, big)
        assert (reply.status, reply.error["code"], reply.header("retry-after")) == (503, "overloaded", "1")
        task.cancel()
        await act.turns()
        assert act.router.bodies.used == 0

    play(scene, {"a": hang}, limits={"buffered_bytes": 100_000, "body_bytes": 100_000})


def test_a_body_is_let_go_when_the_answer_is_committed() -> None:
    async def scene(act: Live) -> None:
        visit = await act.open(CHAT, STREAM)
        await visit.read()
        assert act.router.bodies.used == 0
        visit.leave()

    play(scene)


def test_a_request_that_http_cannot_carry_is_refused_and_no_worker_blamed() -> None:
    async def scene(act: Live) -> None:
        for _ in range(5):
            client = await act.raw()
            data = json.dumps(ASK).encode()
            client.send(
                b"POST %b HTTP/1.1\r\nx-a: a\x00b\r\ncontent-length: %d\r\n\r\n%b"
                % (CHAT.encode(), len(data), data)
            )
            await client.until(lambda client=client: b"\r\n\r\n" in client.received)  # type: ignore[misc]
            assert client.received.startswith(b"HTTP/1.1 400")
            client.transport.close()
        assert {act.state(name) for name in "ab"} == {"ready"}

    play(scene, {"a": talk, "b": talk}, **QUIET)


def test_a_refusal_loses_nothing_else() -> None:
    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await asyncio.sleep(0.005)
        for body, _ in BAD.values():
            await act.ask(CHAT, body, method="POST")
        assert (await stream).body == TALK

    play(scene)
