"""An engine that costs next to nothing, so that what is measured is the router in front of it.

Fixed answers, one write each, straight from an asyncio protocol. Separate from the mock engines, which
imitate an engine's time and state and cost accordingly. `PUT /pace?ms=10` sets the time between the events of
every stream that begins later; 0 writes them as fast as the reader takes them.

It is either half of a NIXL pair as well, as far as a router can tell: a request that is to be decoded
elsewhere is answered whole with a handle, one that brings a complete handle is answered like any other.
`GET /legs` says how many came of each kind, so that a benchmark of splitting can prove that all were split.

Run as `python -m benchmarks.engine`; it prints the port that it listens on.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from typing import cast

import httptools
import msgspec
import uvloop

from benchmarks import engine_bytes as says


class _Options(msgspec.Struct):
    include_usage: bool | None = None


class _Transfer(msgspec.Struct):
    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_block_ids: list[list[int]] | None = None
    remote_host: str | None = None
    remote_port: int | None = None

    @property
    def reads(self) -> bool:
        """Whether vLLM would fetch KV for it: without one of these it computes the prompt itself."""
        where = (self.remote_engine_id, self.remote_request_id, self.remote_host, self.remote_port)
        return bool(self.do_remote_prefill and self.remote_block_ids and all(where))


class _Ask(msgspec.Struct):
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: _Options | None = None
    kv_transfer_params: _Transfer | None = None

    @property
    def leg(self) -> says.Leg:
        transfer = self.kv_transfer_params
        if transfer is None:
            return says.Leg.WHOLE
        if transfer.do_remote_decode and not self.stream:  # a stream would bring no handle
            return says.Leg.PREFILL
        return says.Leg.DECODE if transfer.reads else says.Leg.WHOLE

    @property
    def events(self) -> int:
        return self.max_tokens or self.max_completion_tokens or 16

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_ASK = msgspec.json.Decoder(_Ask)


def leg_of(body: bytes) -> says.Leg:
    """What a chat request with this body is counted as."""
    return _ASK.decode(body).leg


class Phrases:
    """All bytes that are ever sent. State: `pace_s`, read by streams that begin, and `legs` so far."""

    def __init__(self) -> None:
        self.pace_s = 0.0
        self.legs = dict.fromkeys(says.Leg, 0)
        json = b"application/json"
        self.chat = says.whole_chat()
        self.prefilled = says.prefilled_chat()
        self.empty = says.answer(b"200 OK", json, b"")
        self.refusal = says.answer(b"404 Not Found", json, b'{"detail":"Not Found"}')
        self.pages = {
            b"/health": self.empty,
            b"/v1/models": says.models(),
            b"/metrics": says.metrics(),
            b"/version": says.answer(b"200 OK", json, b'{"version":"0.32.0"}'),
        }
        self.opening = says.stream_head() + says.chunked(says.opening_event())
        self.tokens = tuple(says.chunked(event) for event in says.token_events())
        self.last = says.chunked(says.last_event())
        self.done = says.chunked(says.DONE) + b"0\r\n\r\n"


class Stream:
    """One event stream: the opening at once, then one write for each token, on an absolute schedule."""

    def __init__(self, transport: asyncio.Transport, phrases: Phrases, ask: _Ask) -> None:
        self._transport = transport
        self._phrases = phrases
        self._events = ask.events
        self._usage = says.chunked(says.usage_event(ask.events)) if ask.wants_usage else b""
        self._sent = 0
        self._pace_s = phrases.pace_s
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._began = self._loop.time()
        transport.write(phrases.opening)
        self._go_on()

    def _go_on(self) -> None:
        if self._pace_s:
            due = self._began + (self._sent + 1) * self._pace_s
            self._timer = self._loop.call_at(due, self._step)
        else:
            # One event a turn: uvloop joins the writes of one turn, and engines do not write in batches.
            self._timer = self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._timer = None
        if not self._paused and self._write_next():
            self._go_on()

    def _write_next(self) -> bool:
        phrases = self._phrases
        self._sent += 1
        if self._sent < self._events:
            self._transport.write(phrases.tokens[self._sent % len(phrases.tokens)])
            return True
        self._transport.write(phrases.last)
        if self._usage:
            self._transport.write(self._usage)
        self._transport.write(phrases.done)
        return False

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._timer is None and self._sent < self._events:
            self._go_on()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._paused = True


class EngineProtocol(asyncio.Protocol):
    """One connection. httptools calls the `on_…` methods while `data_received` feeds it."""

    def __init__(self, phrases: Phrases) -> None:
        self._phrases = phrases
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport  # from connection_made on
        self._target = b""
        self._body: list[bytes] = []
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.stop()
        del self._parser  # it refers back to this object

    def pause_writing(self) -> None:
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        if self._stream is not None:
            self._stream.resume()

    def on_message_begin(self) -> None:
        self._target = b""
        self._body.clear()
        self._stream = None

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        phrases = self._phrases
        if self._target.startswith(b"/v1/chat/completions"):
            ask = _ASK.decode(b"".join(self._body))
            leg = ask.leg
            phrases.legs[leg] += 1
            if leg is says.Leg.PREFILL:
                self._transport.write(phrases.prefilled)
            elif ask.stream:
                self._stream = Stream(self._transport, phrases, ask)
            else:
                self._transport.write(phrases.chat)
        elif self._target.startswith(b"/pace?ms="):
            phrases.pace_s = float(self._target.partition(b"=")[2]) / 1000
            self._transport.write(phrases.empty)
        elif self._target == b"/legs":
            self._transport.write(says.legs(phrases.legs))
        else:
            path = self._target.partition(b"?")[0]
            self._transport.write(phrases.pages.get(path, phrases.refusal))


async def serve(port: int, announce: Callable[[int], None]) -> None:
    """Serves until SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    phrases = Phrases()
    server = await loop.create_server(lambda: EngineProtocol(phrases), "127.0.0.1", port, backlog=4096)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    announce(server.sockets[0].getsockname()[1])
    await ended.wait()
    server.close()


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--port", type=int, default=0)
    args = command.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args.port, lambda port: print(port, flush=True)))


if __name__ == "__main__":
    main()
