"""Sends calls at their own times over real sockets, and tells what a client saw of each.

Separate from `benchmarks.client`, whose connections send as soon as they are answered. Raw asyncio protocols
with httptools: a client that spends a core on reading tokens would measure itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httptools
import msgspec

from benchmarks.engine_bytes import MODEL
from router.studies.replay.stream import Usage
from router.studies.simulation.call import Call, Texts

_LEAD_S = 0.3
_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one call (s, tokens).

    Attributes:
        late_s: how long after its time it was sent.
    """

    worker: str
    ttft_s: float
    e2e_s: float
    hit_tokens: int
    late_s: float = 0.0


async def play(port: int, calls: Sequence[Call]) -> list[Seen]:
    """Sends each call to a router on this machine, on a connection of its own.

    Raises:
        RuntimeError: an answer is not a whole stream with status 200.
        TimeoutError: one takes two minutes.
    """
    texts = Texts()
    wires = [request_bytes(call, texts) for call in calls]
    begin = time.monotonic() + _LEAD_S
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_one(port, begin + call.at, wire))
            for call, wire in zip(calls, wires, strict=True)
        ]
    return [task.result() for task in tasks]


def request_bytes(call: Call, texts: Texts) -> bytes:
    """One request for exactly as many tokens as the call has, head and body."""
    ask = {
        "model": MODEL,
        "prompt": texts.of(call.parts).decode(),
        "max_tokens": call.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = msgspec.json.encode(ask)
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b"
    ) % (len(body), body)


async def _one(port: int, due: float, wire: bytes) -> Seen:
    await asyncio.sleep(max(due - time.monotonic(), 0.0))
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_ANSWER_S):
        transport, answer = await loop.create_connection(StreamedAnswer, "127.0.0.1", port)
        try:
            transport.write(wire)
            await answer.whole
        finally:
            transport.close()
    return answer.seen(began, began - due)


class StreamedAnswer(asyncio.Protocol):
    """One answer as it comes. httptools calls the `on_…` methods while `data_received` feeds it."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._first: float | None = None
        self._last = 0.0

    def data_received(self, data: bytes) -> None:
        self._last = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"an answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"a connection was closed in the middle of an answer: {exc}")
        del self._parser  # it refers back to this object

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        if self._first is None:
            self._first = self._last
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"an answer has status {status}: {self._body[:200]!r}")
        elif not self.whole.done():
            self.whole.set_result(None)

    def seen(self, began: float, late_s: float) -> Seen:
        """What it was, once it is whole; it was asked for at `began`. Raises RuntimeError for one without
        tokens, usage or the name of its worker."""
        worker = self._headers.get(b"x-pointsman-worker")
        events = [line[6:] for line in self._body.split(b"\n") if line.startswith(b"data: {")]
        usage = msgspec.json.decode(events[-1], type=_LastEvent).usage if events else None
        if self._first is None or usage is None or worker is None:
            raise RuntimeError(f"an answer without tokens, usage or worker: {bytes(self._body[-200:])!r}")
        return Seen(
            worker.decode(), self._first - began, self._last - began, usage.cached_tokens or 0, late_s
        )

    def _fail(self, why: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(RuntimeError(why))


class _LastEvent(msgspec.Struct):
    usage: Usage | None = None
