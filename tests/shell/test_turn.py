"""Requests for engines past ASGI: what they share with those that go through it, on one connection."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from router.upstream.origin import Origin
from router.virtual.asgi import serve_asgi
from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import WHOLE, Ask, hang, word
from tests.shell.visitors import RawClient

PLAIN = Origin("http", "plain", 30000, "")
"""The same application on a server that is not ours."""


def request(body: object, target: bytes = CHAT.encode()) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n%b" % (target, len(data), data)


def statuses(client: RawClient) -> list[bytes]:
    return re.findall(rb"HTTP/1.1 (\d{3}) ", client.received)


@pytest.mark.parametrize("origin", [Origin("http", "router", 30000, ""), PLAIN], ids=["ours", "any"])
@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        (b"/v1/chat/completions", b"/v1/chat/completions"),
        (b"/v1/chat/completions?a=1&b=", b"/v1/chat/completions?a=1&b="),
        (b"/v1/chat%2Fcompletions", b"/v1/chat%2Fcompletions"),
        (b"http://r/v1/chat/completions?a=1", b"/v1/chat/completions?a=1"),
    ],
)
def test_a_target_is_found_and_forwarded_alike_on_every_server(
    origin: Origin, target: bytes, forwarded: bytes
) -> None:
    async def scene(act: Live) -> None:
        serve_asgi(act.network, PLAIN.host, PLAIN.port, act.router.data)
        client = await act.raw(origin)
        client.send(request(ASK, target))
        await client.until(lambda: WHOLE in client.received)
        assert act.puppets["a"].asks[0].path.encode() == forwarded
        client.transport.close()

    play(scene)


def test_a_client_that_leaves_any_server_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        serve_asgi(act.network, PLAIN.host, PLAIN.port, act.router.data)
        client = await act.raw(PLAIN)
        client.send(request(STREAM))
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        client.transport.abort()
        await asyncio.sleep(0.1)
        act.assert_zero()

    play(scene, {"a": hang})


def test_requests_of_both_kinds_are_answered_in_order() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        health = b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n"
        nowhere = b"GET /nowhere HTTP/1.1\r\nhost: r\r\n\r\n"
        client.send(health + request(ASK) + nowhere + request(ASK) + health)
        await client.until(lambda: len(statuses(client)) == 5)
        assert statuses(client) == [b"200", b"200", b"404", b"200", b"200"]
        client.transport.abort()

    play(scene)


def test_a_bug_at_the_door_is_answered_and_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(act: Live) -> None:
        def broken(headers: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(act.router.keys, "client", broken)
        client = await act.raw()
        client.send(request(ASK))
        await client.until_lost()
        assert statuses(client) == [b"500"]
        assert b"connection: close" in client.received
        assert len(act.bugs.records) == 1
        act.bugs.records.clear()

    play(scene)


def test_a_client_that_leaves_before_anybody_looked_is_counted() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        end = act.server_end(client)
        end.data_received(request(ASK))
        end.connection_lost(ConnectionResetError())
        assert act.process.data.busy == 1
        await asyncio.sleep(0.1)
        act.assert_zero()
        assert await act.metric("pointsman_client_disconnects_total") == 1
        client.transport.abort()

    play(scene, {"a": hang})


def test_the_pause_between_requests_is_counted_from_the_last_one() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        for number in range(1, 4):
            client.send(request(ASK))
            await client.until(lambda wanted=number: len(statuses(client)) == wanted)  # type: ignore[misc]
            await asyncio.sleep(400)
        assert not client.lost
        before = act.now
        await client.until_lost()
        assert act.now - before == pytest.approx(220, abs=1)

    play(scene, **QUIET)


def test_a_stream_that_outlasts_the_pause_before_it_is_not_cut() -> None:
    async def slow(ask: Ask) -> None:
        ask.begin()
        for _ in range(40):
            ask.event(word())
            await asyncio.sleep(20)
        ask.end()

    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n")
        await client.until(lambda: len(statuses(client)) == 1)
        await asyncio.sleep(600)
        client.send(request(STREAM))
        while client.received.count(b"word") < 40 and not client.lost:
            await asyncio.sleep(20)
        assert not client.lost
        client.transport.abort()

    play(scene, {"a": slow}, **QUIET)


def test_a_large_body_waits_outside_until_it_is_asked_for() -> None:
    async def late(ask: Ask) -> None:
        await asyncio.sleep(2)
        ask.answer(200, WHOLE)

    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(request(ASK))
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        client.send(request({**ASK, "x": "y" * 1_000_000}))
        end = act.server_end(client)
        await act.until(lambda: end.flow.read_paused)
        await asyncio.sleep(1)
        assert sum(len(turn._body) for turn, _ in end.pipeline) < 400_000
        await client.until(lambda: client.received.count(WHOLE) == 2)
        client.transport.abort()

    play(scene, {"a": late})
