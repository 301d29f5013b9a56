"""A mock engine on a virtual network, and a client that sees every byte and its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engines.mock.app import create_app
from engines.mock.front import Front
from engines.mock.settings import MockSettings
from router.upstream.client import Upstream, WireRequest
from router.upstream.exchange import Exchange
from router.upstream.origin import Origin
from router.virtual.asgi import serve_asgi
from router.virtual.network import Listener, Network

HOST, PORT = "mock", 9000
UNIX_ORIGIN_S = 1_795_973_970.0
CHAT = {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 4}
TEXT = {"prompt": "the quick brown fox", "max_tokens": 4}


class NetworkListener:
    """The mock's `Listener` over a virtual network."""

    def __init__(self, network: Network, listener: Listener) -> None:
        self._network = network
        self._listener = listener
        self._place = (listener.host, listener.port)

    @property
    def connections(self) -> int:
        return len(self._listener.connections)

    def close(self) -> None:
        self._network.refuse(*self._place)

    def reopen(self) -> None:
        self._network.accept(*self._place)

    def reset_connections(self) -> None:
        self._network.reset_all(*self._place)

    def end_connections(self) -> None:
        for transport in self._listener.connections:
            protocol = transport.get_protocol()
            assert isinstance(protocol, HttpToolsProtocol)
            protocol.shutdown()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[bytes]:
        """The stream's events, comments too, without their blank lines."""
        return [event for event in self.body.replace(b"\r\n", b"\n").split(b"\n\n") if event]

    def data(self) -> list[Any]:
        """What the data lines hold, `[DONE]` left out."""
        lines = [line for event in self.events() for line in event.split(b"\n")]
        found = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        return [json.loads(line) for line in found if line != b"[DONE]"]

    def text(self) -> str:
        """The text of a chat or completions stream."""
        choices = [choice for event in self.data() for choice in event["choices"]]
        return "".join(choice.get("text", choice.get("delta", {}).get("content")) or "" for choice in choices)


class Stage:
    """One engine and its client."""

    def __init__(self, app: Front, network: Network, host: str = HOST) -> None:
        self.app = app
        self.process = app.process
        self.network = network
        self.upstream = Upstream(network.connect, asyncio.get_running_loop().time)
        self.origin = Origin("http", host, PORT, "")

    async def open(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> Exchange:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"content-type": "application/json"} if raw else {}
        all_headers.update(headers or {})
        request = WireRequest(
            (method or ("POST" if raw else "GET")).encode(),
            path.encode(),
            tuple((name.encode(), value.encode()) for name, value in all_headers.items()),
            raw,
        )
        return await self.upstream.open(self.origin, request)

    async def ask(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> Reply:
        exchange = await self.open(path, body, headers, method)
        reply = Reply(
            exchange.status, {name.decode(): value.decode() for name, value in exchange.headers}, b""
        )
        loop = asyncio.get_running_loop()
        try:
            while chunk := await exchange.read():
                reply.chunks.append((loop.time(), chunk))
                reply.body += chunk
        finally:
            exchange.close()
        return reply

    async def fault(self, kind: str, **fields: object) -> None:
        reply = await self.ask("/mock/faults", {"kind": kind, **fields})
        assert reply.status == 200, reply.body

    async def state(self) -> dict[str, Any]:
        state = (await self.ask("/mock/state")).json()
        assert isinstance(state, dict)
        return state


@asynccontextmanager
async def stage(**settings: Any) -> AsyncIterator[Stage]:
    """An engine that is up, and nothing left behind."""
    network = Network()
    app = create_app(MockSettings(**settings), unix_origin_s=UNIX_ORIGIN_S)
    listener = serve_asgi(network, HOST, PORT, app, timeout_keep_alive=5)
    app.process.listener = NetworkListener(network, listener)
    act = Stage(app, network)
    try:
        yield act
    finally:
        await act.upstream.aclose()
        app.process.close()


async def spoken(app: Front, path: str, body: object) -> list[dict[str, Any]]:
    """What the application says to its server for one request whose client stays."""
    messages: list[dict[str, Any]] = []
    raw = json.dumps(body).encode()
    incoming = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not incoming:
            await asyncio.get_running_loop().create_future()
        return incoming.pop()

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    return messages
