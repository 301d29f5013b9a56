"""Servers and clients over real sockets of the loopback device."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from router.upstream.client import Upstream, WireRequest
from router.upstream.connect import TcpConnect
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from tests.upstream.stage import HELLO

GET = WireRequest(b"GET", b"/")
Run = Callable[[Coroutine[Any, Any, None]], None]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    talks: list[asyncio.Task[object]] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.append(task)
        await talk(reader, writer)

    server = await asyncio.start_server(noted, "127.0.0.1", 0, ssl=tls)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Origin("https" if tls else "http", "127.0.0.1", port, "")
        if talks:
            await asyncio.wait(talks)
    finally:
        server.close()


def upstream(connect: TcpConnect | None = None) -> Upstream:
    return Upstream(connect or TcpConnect(), time.monotonic, UpstreamSettings())


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request until the client leaves."""
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HELLO)
    except asyncio.IncompleteReadError:
        writer.close()


async def get(up: Upstream, origin: Origin) -> bytes:
    return (await up.fetch(origin, GET, total_s=5, max_bytes=100_000)).body
