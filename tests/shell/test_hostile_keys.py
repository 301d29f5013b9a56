"""Strangers without a key: what they may cost, and in which spelling a key is one."""

from __future__ import annotations

import asyncio

import pytest

from router.api.small_bodies import MAX_BYTES
from router.upstream.origin import Origin
from tests.shell.live import ADMIN, ASK, CHAT, DATA, Live, play

AUTH = {"admin_api_key": "right", "client_api_keys": ["kéy"]}


@pytest.mark.parametrize("origin", [DATA, ADMIN], ids=["data", "admin"])
@pytest.mark.parametrize("framing", ["content-length: 400000000", "transfer-encoding: chunked"])
def test_the_body_of_an_operation_is_bounded_before_the_key_is_asked(origin: Origin, framing: str) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw(origin)
        head = f"POST /workers HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
        client.send(head.encode())
        chunk = b"[" * 16_384
        framed = b"4000\r\n%b\r\n" % chunk if "chunked" in framing else chunk
        for _ in range(MAX_BYTES // len(chunk) + 1):
            client.send(framed)
            await asyncio.sleep(0)
        await client.until(lambda: b"body_too_large" in client.received)
        assert client.received.startswith(b"HTTP/1.1 413 ")
        assert str(MAX_BYTES).encode() in client.received
        client.transport.abort()

    play(scene, auth=AUTH)


def test_small_operations_reach_their_guard() -> None:
    async def scene(act: Live) -> None:
        worker = {"url": "http://b:8000"}
        assert (await act.ask("/workers", worker, origin=ADMIN)).status == 401
        reply = await act.ask("/workers", worker, {"authorization": "Bearer right"}, origin=ADMIN)
        assert reply.status == 202
        reply = await act.ask(
            "/workers/b:8000", headers={"authorization": "Bearer right"}, method="DELETE", origin=ADMIN
        )
        assert reply.status == 200

    play(scene, auth=AUTH)


@pytest.mark.parametrize(
    ("sent", "status"), [("kéy".encode(), 200), ("kéy".encode("latin-1"), 200), (b"k\xff\xfe", 401)]
)
@pytest.mark.parametrize("header", [b"authorization: Bearer ", b"x-api-key: "])
def test_a_key_beyond_ascii_is_known_in_both_spellings(sent: bytes, status: int, header: bytes) -> None:
    async def scene(act: Live) -> None:
        body = b'{"model":"m","messages":[]}'
        client = await act.raw()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        client.send(head.encode() + header + sent + b"\r\n\r\n" + body)
        assert (await client.until_lost()).startswith(b"HTTP/1.1 %d " % status)

    play(scene, auth=AUTH)


def test_a_key_that_is_no_text_is_no_administrators_key() -> None:
    async def scene(act: Live) -> None:
        assert (
            await act.ask("/workers", headers={"authorization": "Bearer \xff"}, origin=ADMIN)
        ).status == 401
        assert (await act.ask(CHAT, ASK, {"authorization": "Bearer right"})).status == 401

    play(scene, auth=AUTH)
