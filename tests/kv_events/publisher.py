"""An engine's publisher in memory: what it publishes, keeps and replays, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from router.kv_events.framing import END
from router.kv_events.source import EventSource
from router.kv_events.wire import Arrival, Link, WireFailed

TOPIC = b"kv@one@model"


def stored(
    tokens: Sequence[int], block: int = 16, *, skip: int = 0, array: bool = False, **more: Any
) -> dict[str, Any] | list[Any]:
    """`BlockStored` of a prompt's whole blocks but the first `skip`; a block is named by all to its end."""
    names = [name(tokens[:end]) for end in range(block, len(tokens) + 1, block)]
    event = {
        "block_hashes": names[skip:],
        "parent_block_hash": names[skip - 1] if skip else None,
        "token_ids": list(tokens[skip * block : len(names) * block]),
        "block_size": block,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }
    return ["BlockStored", *event.values()] if array else {"type": "BlockStored", **event}


def removed(*prompts: Sequence[int], **more: Any) -> dict[str, Any]:
    """`BlockRemoved` of the last block of each prompt."""
    return {"type": "BlockRemoved", "block_hashes": [name(one) for one in prompts], "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def name(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens)) % 2**64


class MemoryLine:
    """What a socket is to its reader."""

    def __init__(self) -> None:
        self.queue: deque[Arrival] = deque()
        self.closed = False
        self._more = asyncio.Event()

    def put(self, arrival: Arrival) -> None:
        self.queue.append(arrival)
        self._more.set()

    async def receive(self, until: float) -> Sequence[Arrival]:
        assert not self.closed
        try:
            async with asyncio.timeout_at(until):
                while not self.queue:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            return []
        arrivals = list(self.queue)
        self.queue.clear()
        return arrivals

    def close(self) -> None:
        self.closed = True


class Publisher:
    """One engine, seen from its event sockets; also the wire that leads to it.

    Attributes:
        reachable: whether lines are connected.
        deaf: replays are not answered.
        answers_dropped: numbers that a replay leaves out, once.
        end_dropped: the end of that many replays does not arrive.
        refused: nothing can be subscribed to.
        asked: the start of every replay asked for.
    """

    def __init__(self, *, buffer_steps: int = 10_000, replays_topic: bool = True) -> None:
        self._buffer_steps = buffer_steps
        self._replays_topic = replays_topic
        self.clock = asyncio.get_running_loop().time
        self.sequence = 0
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self.lines: list[MemoryLine] = []
        self.reachable = True
        self.refused = False
        self.deaf = False
        self.answers_dropped: set[int] = set()
        self.end_dropped = 0
        self.asked: list[int] = []

    # --- what the engine does -------------------------------------------------------------------------

    def publish(self, *events: Any, lost: bool = False, rank: int | None = 0) -> int:
        """One step's events; returns their number. `lost`: they do not arrive live."""
        return self.publish_payload(msgspec.msgpack.encode([self.clock(), events, rank]), lost=lost)

    def publish_payload(self, payload: bytes, *, lost: bool = False) -> int:
        number, self.sequence = self.sequence, self.sequence + 1
        self.buffer.append((number, payload))
        if self.reachable and not lost:
            self.send((TOPIC, number.to_bytes(8, "big"), payload))
        return number

    def send(self, frames: Sequence[bytes]) -> None:
        """Frames as they are, to all who listen."""
        for line in self.lines:
            line.put(frames)

    def restart(self) -> None:
        """Another process takes its place, and its connections are new."""
        self.disconnect()
        self.sequence = 0
        self.buffer.clear()
        self.connect()

    def restart_unnoticed(self) -> None:
        """The same with the news of it lost."""
        self.sequence = 0
        self.buffer.clear()

    def disconnect(self) -> None:
        self.reachable = False
        for line in self.lines:
            line.put(Link.DOWN)

    def connect(self) -> None:
        self.reachable = True
        for line in self.lines:
            line.put(Link.UP)

    # --- the wire -------------------------------------------------------------------------------------

    def close(self) -> None:
        for line in self.lines:
            line.close()

    def subscribe(self, source: EventSource) -> MemoryLine:
        if self.refused:
            raise WireFailed(f"{source.endpoint}: taken")
        line = MemoryLine()
        self.lines = [one for one in self.lines if not one.closed] + [line]
        if self.reachable:
            line.put(Link.UP)
        return line

    def replay(self, source: EventSource, start: int) -> MemoryLine:
        assert source.replay_endpoint is not None
        self.asked.append(start)
        line = MemoryLine()
        if self.deaf or not self.reachable:
            return line
        topic = (TOPIC,) if self._replays_topic else ()
        for number, payload in self.buffer:
            if number in self.answers_dropped:
                self.answers_dropped.remove(number)
            elif number >= start:
                line.put((b"", *topic, number.to_bytes(8, "big"), payload))
        if self.end_dropped:
            self.end_dropped -= 1
        else:
            line.put((b"", *((b"",) if topic else ()), END, b""))
        return line
