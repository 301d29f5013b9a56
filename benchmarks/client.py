"""A closed-loop load client that costs little: a connection sends its next request when the last is answered.

Raw asyncio protocols with httptools on uvloop, one JSON object on standard output at the end. An answer that
is not a 200 of the expected shape makes the whole run an error, because a router that fails fast looks fast.

Run as `python -m benchmarks.client --port 30000 --concurrency 32 --requests 8000`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import cast

import httptools
import msgspec
import uvloop

from benchmarks.engine_bytes import ASK_HANDLE, HANDLE, MODEL, Leg

_CONNECTS_AT_ONCE = 64
_EXTRA_EVENTS = 2
"""Besides one event per token: the opening one and `[DONE]`."""

_TEXT = "What does it cost to send every token of every answer through one more process? "


class Load(msgspec.Struct, frozen=True):
    """What is asked of a server.

    Attributes:
        events: tokens of each streamed answer; 0 asks for whole answers.
        prompt_bytes: length of the user's message.
        prompts: different messages, asked for in turn; from their first word on nothing is shared.
        announce: print `open` once every connection has its first bytes.
        ignore_eos: ask for exactly that many tokens; for engines that would end on their own.
        leg: send one leg of a split request, as a router would send it to an engine.
    """

    port: int
    concurrency: int
    requests: int
    events: int = 0
    prompt_bytes: int = 60
    prompts: int = 1
    announce: bool = False
    ignore_eos: bool = False
    leg: Leg = Leg.WHOLE


class Outcome(msgspec.Struct, frozen=True):
    """What came back. Times in seconds since a request was sent; `gaps` lie between two reads of a stream."""

    elapsed_s: float
    requests: int
    events: int
    latency: Spread
    first_bytes: Spread
    gaps: Spread


class Spread(msgspec.Struct, frozen=True):
    """Median and 99th percentile (s); 0 of nothing."""

    p50: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        if not samples:
            return cls(0.0, 0.0)
        ordered = sorted(samples)
        return cls(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])


class EventCount:
    """Counts the events of a byte stream whose lines end in LF, however it was cut."""

    __slots__ = ("_ended_line", "events")

    def __init__(self) -> None:
        self.events = 0
        self._ended_line = False

    def feed(self, data: bytes) -> None:
        self.events += data.count(b"\n\n")
        if self._ended_line and data.startswith(b"\n") and not data.startswith(b"\n\n"):
            self.events += 1
        self._ended_line = data.endswith(b"\n") and not data.endswith(b"\n\n")


class Run:
    """What all connections share. State: requests left, samples, and who still waits for its first bytes."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.left = load.requests
        self.wires = [request_bytes(load, number) for number in range(load.prompts)]
        self.latencies: list[float] = []
        self.first_bytes: list[float] = []
        self.gaps: list[float] = []
        self.events = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def began_answer(self, seconds: float) -> None:
        self.first_bytes.append(seconds)
        if self.load.announce and len(self.first_bytes) == self.load.concurrency:
            print("open", flush=True)

    def answered(self, seconds: float) -> None:
        self.latencies.append(seconds)
        if len(self.latencies) == self.load.requests and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(why))

    def outcome(self, elapsed_s: float) -> Outcome:
        return Outcome(
            elapsed_s,
            len(self.latencies),
            self.events,
            Spread.of(self.latencies),
            Spread.of(self.first_bytes),
            Spread.of(self.gaps),
        )


_OF_LEG: dict[Leg, dict[str, object]] = {
    Leg.WHOLE: {},
    Leg.PREFILL: {"max_tokens": 1, "stream": False, "kv_transfer_params": ASK_HANDLE},
    Leg.DECODE: {"kv_transfer_params": HANDLE},
}


def request_bytes(load: Load, number: int = 0) -> bytes:
    """One request, head and body, with one of the load's messages."""
    text = (_TEXT * (load.prompt_bytes // len(_TEXT) + 1))[: load.prompt_bytes]
    if load.prompts > 1:
        text = f"{number:08x} {text}"[: load.prompt_bytes]
    ask: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    ask["max_tokens"] = load.events or 12
    if load.events:
        ask["stream"] = True
    if load.ignore_eos:
        ask["ignore_eos"] = True
    ask.update(_OF_LEG[load.leg])
    body = msgspec.json.encode(ask)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
        b"user-agent: pointsman-benchmark\r\nauthorization: Bearer sk-none\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    ) % (load.port, len(body), body)


class ClientProtocol(asyncio.Protocol):
    """One connection. httptools calls the `on_…` methods while `data_received` feeds it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._streams = run.load.events > 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport  # from connection_made on
        self._sent_at = 0.0
        self._last_at = 0.0
        self._busy = False
        self._count = EventCount()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        """Takes one of the requests that are left, if there is one."""
        run = self._run
        if run.left <= 0:
            return
        wire = run.wires[run.left % len(run.wires)]
        run.left -= 1
        self._busy = True
        self._last_at = 0.0
        self._count = EventCount()
        self._sent_at = time.perf_counter()
        self._transport.write(wire)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._last_at:
            self._run.began_answer(now - self._sent_at)
        elif self._streams:
            self._run.gaps.append(now - self._last_at)
        self._last_at = now
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._run.fail(f"an answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy:
            self._run.fail(f"a connection was closed in the middle of an answer: {exc}")
        del self._parser  # it refers back to this object

    def on_body(self, body: bytes) -> None:
        if self._streams:
            self._count.feed(body)

    def on_message_complete(self) -> None:
        run = self._run
        status = self._parser.get_status_code()
        self._busy = False
        if status != 200:
            run.fail(f"an answer has status {status}")
            return
        if self._streams:
            expected = run.load.events + _EXTRA_EVENTS
            if self._count.events != expected:
                run.fail(f"a stream has {self._count.events} events instead of {expected}")
                return
            run.events += run.load.events
        run.answered(time.perf_counter() - self._sent_at)
        self.send()


async def drive(load: Load) -> Outcome:
    """Connects, then sends until all requests are answered. More connections than one batch join in batches.

    Raises RuntimeError for an answer that is not as expected.
    """
    loop = asyncio.get_running_loop()
    run = Run(load)
    began = time.perf_counter()
    connected = 0
    while connected < load.concurrency:
        batch = min(_CONNECTS_AT_ONCE, load.concurrency - connected)
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: ClientProtocol(run), "127.0.0.1", load.port)
                for _ in range(batch)
            )
        )
        if not connected:
            began = time.perf_counter()
        connected += batch
        for _, connection in made:
            connection.send()
    await run.done
    return run.outcome(time.perf_counter() - began)


def main() -> int:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--port", type=int, required=True)
    command.add_argument("--concurrency", type=int, default=1)
    command.add_argument("--requests", type=int, default=100)
    command.add_argument("--events", type=int, default=0)
    command.add_argument("--prompt-bytes", type=int, default=60)
    command.add_argument("--prompts", type=int, default=1)
    command.add_argument("--announce", action="store_true")
    command.add_argument("--ignore-eos", action="store_true")
    command.add_argument("--leg", type=Leg, choices=list(Leg), default=Leg.WHOLE)
    load = Load(**vars(command.parse_args()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            outcome = runner.run(drive(load))
        except (RuntimeError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    print(msgspec.json.encode(outcome).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
