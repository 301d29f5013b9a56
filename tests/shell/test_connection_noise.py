"""What is not plainly HTTP/1.1, or too much of it: refused in words, and never mixed into an answer."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import WHOLE
from tests.shell.visitors import RawClient

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n"


def whole_request(body: object, *headers: bytes) -> bytes:
    data = json.dumps(body).encode()
    return b"".join(
        [HEAD, *(line + b"\r\n" for line in headers), b"content-length: %d\r\n\r\n" % len(data), data]
    )


def statuses(client: RawClient) -> list[bytes]:
    return re.findall(rb"HTTP/1.1 (\d{3}) ", client.received)


def test_http2_with_prior_knowledge_is_closed_without_an_answer() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        assert await client.until_lost() == b""

    play(scene)


@pytest.mark.parametrize("cut", [False, True], ids=["at_once", "in_pieces"])
def test_a_request_that_offers_http2_is_served_as_http1(cut: bool) -> None:
    async def scene(act: Live) -> None:
        upgrade = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQ")
        request = whole_request(ASK, *upgrade)
        client = await act.raw()
        for start in range(0, len(request), 40 if cut else len(request)):
            client.send(request[start : start + (40 if cut else len(request))])
            await asyncio.sleep(0.1)
        await client.until(lambda: WHOLE in client.received)
        assert statuses(client) == [b"200"]
        ask = act.puppets["a"].asks[0]
        assert ask.json() == ASK
        assert (ask.header("upgrade"), ask.header("http2-settings")) == (None, None)
        client.transport.close()

    play(scene)


def test_a_web_socket_is_refused_in_words() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(
            b"GET /v1/realtime HTTP/1.1\r\nhost: r\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: x\r\n\r\n"
        )
        await client.until_lost()
        assert statuses(client) == [b"404"]

    play(scene)


NOISE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"hello\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: r\r\ncontent-length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: r\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
]


@pytest.mark.parametrize("noise", NOISE)
def test_what_is_not_http_gets_one_clear_refusal(noise: bytes) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(noise)
        received = await client.until_lost()
        assert statuses(client) == [b"400"]
        assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"
        assert (await act.ask(CHAT, ASK)).status == 200

    play(scene)


def test_a_broken_chunk_in_a_body_is_refused() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")
        await client.until_lost()
        assert statuses(client) == [b"400"]
        await asyncio.sleep(0.1)
        act.assert_zero()

    play(scene)


def test_noise_during_a_stream_does_not_end_up_in_it() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(STREAM))
        await client.until(lambda: b"word" in client.received)
        client.send(b"\x00\x01garbage\r\n\r\n")
        received = await client.until_lost()
        assert received.count(b"HTTP/1.1") == 1

    play(scene)


def test_a_flood_of_header_bytes_is_refused() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"x-a: " + b"y" * 70_000 + b"\r\n\r\n")
        received = await client.until_lost()
        assert statuses(client) == [b"431"]
        assert b"header_fields_too_large" in received

    play(scene)


def test_a_head_without_end_is_refused_as_it_comes() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"x-a: ")
        sent = 0
        while not client.lost and sent < 10_000_000:
            client.send(b"y" * 10_000)
            sent += 10_000
            await asyncio.sleep(0)
        assert sent < 1_000_000
        assert statuses(client) == [b"431"]

    play(scene)


def test_a_flood_of_headers_is_refused() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"".join(b"x-%d: 1\r\n" % number for number in range(400)) + b"\r\n")
        await client.until_lost()
        assert statuses(client) == [b"431"]

    play(scene)


def test_a_url_without_end_is_refused() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: r\r\n\r\n")
        await client.until_lost()
        assert statuses(client) == [b"431"]

    play(scene)


def test_trailers_of_a_chunked_body_do_no_harm() -> None:
    async def scene(act: Live) -> None:
        data = json.dumps(ASK).encode()
        client = await act.raw()
        client.send(
            HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx-late: 1\r\n\r\n" % (len(data), data)
        )
        await client.until(lambda: WHOLE in client.received)
        assert act.puppets["a"].asks[0].body == data
        client.transport.close()

    play(scene)
