"""An engine that does to each request what a test says, byte by byte, on a virtual network."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httptools

from router.virtual.network import Network
from router.virtual.transport import MemoryTransport

PORT = 8000
OPERATIONS = ("/health", "/ready", "/v1/models", "/metrics", "/version", "/kv_event_sources", "/server_info")
"""What a router asks of its own accord."""
MODEL = "m"
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """An event of a chat stream, as vLLM writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def word(number: int = 0) -> bytes:
    return chunk({"content": f" word{number}"})


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
ABORT = chunk({}, "abort")
USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":7,"total_tokens":11,"completion_tokens":4}}\n\n'
)
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    }
).encode()


def failure(status: int, message: str = "The engine failed.") -> bytes:
    """An error body as vLLM writes it."""
    detail = {"message": message, "type": "InternalServerError", "param": None, "code": status}
    return json.dumps({"error": detail}).encode()


def failure_event(status: int) -> bytes:
    return b"data: " + failure(status) + b"\n\n"


@dataclass(eq=False)
class Ask:
    """One request at the engine, and the ways to answer it.

    Attributes:
        number: in the order in which all engines of the process were asked.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    transport: MemoryTransport
    at: float
    body: bytes = b""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    left_at: float | None = None
    ended: bool = False
    number: int = field(default_factory=itertools.count().__next__)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def answer(self, status: int, body: bytes, *headers: bytes, kind: bytes = b"application/json") -> None:
        lines = [b"HTTP/1.1 %d X" % status, b"content-type: " + kind, b"content-length: %d" % len(body)]
        self.send(b"\r\n".join([*lines, *headers, b"", body]))
        self.ended = True

    def begin(self, *headers: bytes, kind: bytes = b"text/event-stream; charset=utf-8") -> None:
        lines = [b"HTTP/1.1 200 OK", b"content-type: " + kind, b"transfer-encoding: chunked", *headers]
        self.send(b"\r\n".join(lines) + b"\r\n\r\n")

    def event(self, *data: bytes) -> None:
        whole = b"".join(data)
        self.send(b"%x\r\n%b\r\n" % (len(whole), whole))

    def end(self) -> None:
        self.send(b"0\r\n\r\n")
        self.ended = True

    def reset(self) -> None:
        self.transport.abort()

    def close(self) -> None:
        self.transport.close()


Serve = Callable[[Ask], Awaitable[None]]


async def talk(ask: Ask) -> None:
    """Serves chat as it should be: four words, one each 10 ms."""
    wanted = ask.json()
    if not wanted.get("stream"):
        await asyncio.sleep(0.04)
        ask.answer(200, WHOLE)
        return
    ask.begin()
    ask.event(ROLE)
    for number in range(4):
        await asyncio.sleep(0.01)
        ask.event(word(number))
    ask.event(STOP)
    options = wanted.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        ask.event(USAGE)
    ask.event(DONE)
    ask.end()


TALK = ROLE + b"".join(word(number) for number in range(4)) + STOP + DONE
"""What `talk` streams to a client that did not ask for usage."""


async def reset(ask: Ask) -> None:
    """The connection is reset without an answer."""
    ask.reset()


async def close(ask: Ask) -> None:
    """The connection is closed without an answer."""
    ask.close()


async def hang(ask: Ask) -> None:
    """Not a byte, until the router goes away."""
    await ask.left.wait()


def answering(status: int, body: bytes, *headers: bytes) -> Serve:
    async def serve(ask: Ask) -> None:
        ask.answer(status, body, *headers)

    return serve


def streaming(*events: bytes, then: str = "end", gap_s: float = 0.0) -> Serve:
    """A stream of these events, and then its end: "end", "close", "reset" or "hang"."""

    async def serve(ask: Ask) -> None:
        ask.begin()
        for event in events:
            if gap_s:
                await asyncio.sleep(gap_s)
            ask.event(event)
        await asyncio.sleep(0)
        if then == "hang":
            await ask.left.wait()
        else:
            {"end": ask.end, "close": ask.close, "reset": ask.reset}[then]()

    return serve


def in_turn(*serves: Serve) -> Serve:
    """The first request gets the first, and so on; the last one serves all that follow."""
    left = list(serves)

    async def serve(ask: Ask) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(ask)

    return serve


class Puppet:
    """One engine. `serve` may be replaced at any time. Probes leave no connection behind, so that a test
    knows which of its requests found one.

    Attributes:
        asks: what came, without probes and scrapes; probes: (path, time) of those.
        metrics: the text of /metrics, None answers 404.
        health: status of /health. models: name to longest context. version, root: of the engine and of its
        model; None says nothing.
        at_head: a request is served when its head is there, its body still coming.
        mute_probes: probes and scrapes get no answer.
    """

    def __init__(self, network: Network, host: str, serve: Serve = talk, port: int = PORT) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.serve = serve
        self.asks: list[Ask] = []
        self.probes: list[tuple[str, float]] = []
        self.metrics: str | None = ""
        self.health = 200
        self.models: dict[str, int | None] = {MODEL: None}
        self.version: str | None = None
        self.root: str | None = None
        self.at_head = False
        self.mute_probes = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.listener = network.serve(host, port, lambda: _Talker(self))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> int:
        """Requests that are being served to somebody who is still there."""
        return sum(not ask.ended and ask.left_at is None for ask in self.asks)

    def refuse(self) -> None:
        self.network.refuse(self.host, self.port)

    def hang(self) -> None:
        self.network.hang(self.host, self.port)

    def accept(self) -> None:
        self.network.accept(self.host, self.port)

    def kill(self) -> None:
        self.refuse()
        self.listener.reset_all()

    async def dispatch(self, ask: Ask) -> None:
        path = ask.path.partition("?")[0]
        if ask.method != "GET" or path not in OPERATIONS:
            await self.serve(ask)
            return
        self.probes.append((path, ask.at))
        if self.mute_probes:
            await ask.left.wait()
        else:
            status, body = self._operate(path)
            ask.answer(status, body, b"connection: close")
            ask.close()

    def _operate(self, path: str) -> tuple[int, bytes]:
        if path == "/health":
            return self.health, b""
        if path == "/metrics" and self.metrics is not None:
            return 200, self.metrics.encode()
        if path == "/v1/models":
            cards = [
                {"id": name, "root": self.root, "max_model_len": length}
                for name, length in self.models.items()
            ]
            return 200, json.dumps({"object": "list", "data": cards}).encode()
        if path == "/version" and self.version is not None:
            return 200, json.dumps({"version": self.version}).encode()
        return 404, b'{"detail":"Not Found"}'

    async def aclose(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Talker(asyncio.Protocol):
    """The engine's end of one connection."""

    def __init__(self, puppet: Puppet) -> None:
        self._puppet = puppet
        self._parser = httptools.HttpRequestParser(self)
        self._asks: list[Ask] = []
        self._url = b""
        self._headers: list[tuple[str, str]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for ask in self._asks:
            if not ask.ended:
                ask.left_at = asyncio.get_running_loop().time()
                ask.left.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        now = asyncio.get_running_loop().time()
        method = self._parser.get_method().decode()
        ask = Ask(method, self._url.decode("latin-1"), self._headers, self._transport, now)
        self._asks.append(ask)
        if self._puppet.at_head:
            self._start(ask)

    def on_body(self, body: bytes) -> None:
        self._asks[-1].body += body

    def on_message_complete(self) -> None:
        if not self._puppet.at_head:
            self._start(self._asks[-1])

    def _start(self, ask: Ask) -> None:
        path = ask.path.partition("?")[0]
        if ask.method != "GET" or path not in OPERATIONS:
            self._puppet.asks.append(ask)
        task = asyncio.get_running_loop().create_task(self._puppet.dispatch(ask), name=f"puppet {path}")
        self._puppet.tasks.add(task)
        task.add_done_callback(self._puppet.tasks.discard)


async def half_a_body(ask: Ask) -> None:
    ask.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    ask.close()


async def flood(ask: Ask) -> None:
    """Sends words as fast as they are taken, until the other side leaves."""
    ask.begin()
    while not ask.left.is_set():
        ask.event(word() * 100)
        await asyncio.sleep(0 if ask.transport.get_write_buffer_size() == 0 else 1)
