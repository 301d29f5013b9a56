"""A small OpenAI engine for the tests of the load client: it does what it is told, on the virtual clock.

Not the mock engine on purpose: the client must read what other engines send as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Seen:
    """One generation request as it came in."""

    at: float
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def fields(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])

    @property
    def prompt(self) -> str:
        fields = self.fields
        return str(fields["messages"][0]["content"] if "messages" in fields else fields["prompt"])


@dataclass
class FakeEngine:
    """An ASGI application.

    Attributes:
        prefill_s, token_s: time to the first token, and between tokens.
        overhead_tokens, bytes_per_token: how it counts.
        behave: names the fault of each streamed request, "" for none.
    """

    prefill_s: float = 0.5
    token_s: float = 0.1
    overhead_tokens: int = 6
    bytes_per_token: float = 4.0
    max_model_len: int | None = None
    model: str = "fake"
    worker: str | None = None
    usage: bool = True
    cached_tokens: int | None = None
    models_path: str | None = "/v1/models"
    reset_path: str | None = "/reset_prefix_cache"
    behave: Callable[[Seen], str] = lambda seen: ""
    asides: list[Seen] = field(default_factory=list)
    streams: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    resets: int = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        seen = await self._read(scope, receive)
        if seen.path == self.models_path:
            card = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
            await _json(send, 200, {"object": "list", "data": [card]})
        elif seen.path in ("/reset_prefix_cache", "/flush_cache"):
            await self._reset(seen.path, send)
        elif seen.path == "/v1/models":
            await _json(send, 404, {"detail": "Not Found"})
        elif not seen.fields.get("stream"):
            self.asides.append(seen)
            await _json(send, 200, {"choices": [], "usage": self._usage(seen)})
        else:
            self.streams.append(seen)
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            try:
                await self._stream(seen, send)
            finally:
                self.in_flight -= 1

    async def _read(self, scope: dict[str, Any], receive: Receive) -> Seen:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        return Seen(asyncio.get_running_loop().time(), scope["path"], body, headers)

    async def _reset(self, path: str, send: Send) -> None:
        if path != self.reset_path:
            await _json(send, 404, {"detail": "Not Found"})
            return
        self.resets += 1
        await _json(send, 200, {"success": True})

    def _usage(self, seen: Seen) -> dict[str, Any]:
        prompt_tokens = self.overhead_tokens + -int(-len(seen.prompt.encode()) // self.bytes_per_token)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": seen.fields["max_tokens"],
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    async def _stream(self, seen: Seen, send: Send) -> None:
        fault = self.behave(seen)
        if fault.isdigit():
            await _json(send, int(fault), {"error": {"message": f"fault {fault}", "code": int(fault)}})
            return
        if fault == "hang":
            await asyncio.sleep(1e9)
        await asyncio.sleep(self.prefill_s)
        await self._start(send)
        if fault == "error_event":
            await _event(send, {"error": {"message": "engine died", "code": 500}})
        elif fault == "garbage":
            await _raw(send, b"data: {nonsense\n\n")
        else:
            await self._tokens(seen, send, fault)
        await _raw(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-request-id", b"r-1")]
        if self.worker is not None:
            headers.append((b"x-pointsman-worker", self.worker.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _tokens(self, seen: Seen, send: Send, fault: str) -> None:
        count = seen.fields["max_tokens"]
        chat = "messages" in seen.fields
        if chat:
            await _event(send, _choice({"delta": {"role": "assistant", "content": ""}}))
        for place in range(1, count + 1):
            if place > 1:
                await asyncio.sleep(self.token_s)
            finish = ("abort" if fault == "abort" else "length") if place == count else None
            if fault == "cut" and place == count:
                return
            if fault == "break" and place == count:
                raise ConnectionResetError("the engine was killed")
            if fault == "silence" and place == count:
                await asyncio.sleep(1e9)
            text = {"delta": {"content": "x"}} if chat else {"text": "x"}
            await _event(send, _choice({**text, "finish_reason": finish}))
        if self.usage:
            await _event(send, {"choices": [], "usage": self._usage(seen)})


def _choice(fields: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **fields}]}


async def _event(send: Send, fields: dict[str, Any]) -> None:
    await _raw(send, b"data: " + msgspec.json.encode(fields) + b"\n\n")


async def _raw(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _json(send: Send, status: int, fields: dict[str, Any]) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": msgspec.json.encode(fields), "more_body": False})
