"""Names that clients choose come back short, and never as the name of a host."""

from __future__ import annotations

import gzip
import json

import pytest

from router.upstream.origin import Origin
from tests.shell.live import ADMIN, CHAT, DATA, Live, play

LONG = "n" * 3_000_000


@pytest.mark.parametrize("field", ["model", "previous_response_id"])
def test_a_name_is_repeated_only_in_part(field: str) -> None:
    async def scene(act: Live) -> None:
        body = {"model": "m", "messages": [], field: LONG}
        packed = gzip.compress(json.dumps(body).encode())
        reply = await act.ask(CHAT, packed, {"content-encoding": "gzip"})
        assert reply.status == 404
        assert len(reply.body) < 1000
        assert "nnn…" in reply.error["message"]

    play(scene)


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/"])
def test_a_path_is_repeated_only_in_part(path: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(path + "n" * 10_000)
        assert (reply.status, len(reply.body) < 1000) == (404, True)

    play(scene)


@pytest.mark.parametrize("origin", [DATA, ADMIN], ids=["data", "admin"])
@pytest.mark.parametrize("path", ["/health/", "/metrics/", "/workers/", "/v1/chat/completions/"])
def test_no_answer_redirects(path: str, origin: Origin) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw(origin)
        client.send(b"GET %b HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n" % path.encode())
        received = await client.until_lost()
        assert received.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
        assert b"location" not in received.lower()
        assert b"evil" not in received

    play(scene)


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_a_base_url_with_a_slip_is_told_what_is_meant(path: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(path, {"model": "m", "messages": []})
        assert reply.status == 404
        assert "Did you mean /v1/chat/completions?" in reply.error["message"]
        assert "Did you mean" not in (await act.ask("/v1/files")).error["message"]

    play(scene)
