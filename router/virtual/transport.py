"""A TCP connection in memory: two transports, a link each way.

Separate from the network because it knows nothing of names and servers: only bytes, order, delay and limits.
Memory is bounded as with sockets: a link holds at most its window, the rest stays with the writer, who is
told to pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Of one direction.

    Attributes:
        latency_s: from write to arrival, in virtual seconds.
        window_bytes: sent and not yet taken by the reader, at most.
        piece_bytes: the most that one `data_received` gets; 1 cuts a stream everywhere.
    """

    latency_s: float = 0.0
    window_bytes: int = 262_144
    piece_bytes: int = 65_536


class _Sign(Enum):
    """What travels on a link besides bytes, in order with them."""

    EOF = "eof"
    RESET = "reset"


class _Link:
    """One direction: what is written waits in the queue, then travels in flight, then arrives.

    Attributes:
        queued_bytes: written and not yet sent: the write buffer of a socket transport.
        on_sent: the queue has changed.
        on_arrival: gets each piece and each sign, in order, one per turn of the loop.
        on_reset: a reset has come, even if what is before it waits for a reader that has paused.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: LinkSettings) -> None:
        self.queued_bytes = 0
        self.on_arrival: Callable[[bytes | _Sign], None] = _nowhere
        self.on_sent: Callable[[], None] = _nothing
        self.on_reset: Callable[[], None] = _nothing
        self._loop = loop
        self._settings = settings
        self._queue: deque[memoryview | _Sign] = deque()
        self._flight: deque[tuple[float, bytes | _Sign]] = deque()
        self._flight_bytes = 0
        self._delivery: asyncio.Handle | None = None
        self._blocked = False

    @property
    def all_sent(self) -> bool:
        return not self._queue

    @property
    def reset_came(self) -> bool:
        """A reset is here, delivered or behind bytes that nobody reads."""
        return any(item is _Sign.RESET and due <= self._loop.time() for due, item in self._flight)

    def write(self, data: bytes) -> None:
        self._queue.append(memoryview(data))
        self.queued_bytes += len(data)
        self._send()

    def write_eof(self) -> None:
        self._queue.append(_Sign.EOF)
        self._send()

    def reset(self) -> None:
        """What has not been sent never will be."""
        self._queue.clear()
        self.queued_bytes = 0
        self._fly(_Sign.RESET)
        self._loop.call_later(self._settings.latency_s, self.on_reset)

    def block(self) -> None:
        """The reader takes nothing for now."""
        self._blocked = True
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    def unblock(self) -> None:
        self._blocked = False
        self._schedule()

    def _send(self) -> None:
        settings = self._settings
        while self._queue and self._flight_bytes < settings.window_bytes:
            item = self._queue.popleft()
            if isinstance(item, _Sign):
                self._fly(item)
                continue
            room = min(settings.piece_bytes, settings.window_bytes - self._flight_bytes)
            if len(item) > room:
                self._queue.appendleft(item[room:])
            piece = bytes(item[:room])
            self.queued_bytes -= len(piece)
            self._flight_bytes += len(piece)
            self._fly(piece)
        self.on_sent()

    def _fly(self, item: bytes | _Sign) -> None:
        self._flight.append((self._loop.time() + self._settings.latency_s, item))
        self._schedule()

    def _schedule(self) -> None:
        if self._blocked or self._delivery is not None or not self._flight:
            return
        due = self._flight[0][0]
        if due <= self._loop.time():
            self._delivery = self._loop.call_soon(self._arrive)
        else:
            self._delivery = self._loop.call_at(due, self._arrive)

    def _arrive(self) -> None:
        self._delivery = None
        _, item = self._flight.popleft()
        if isinstance(item, bytes):
            self._flight_bytes -= len(item)
        self.on_arrival(item)
        self._send()
        self._schedule()


def _nowhere(item: bytes | _Sign) -> None:
    """Until the ends are joined."""


def _nothing() -> None:
    """As above."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection. Behaves as asyncio's socket transports do, except that nothing is real."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outgoing: _Link,
        incoming: _Link,
        addresses: tuple[Address, Address],
    ) -> None:
        super().__init__(extra=dict(zip(("sockname", "peername"), addresses, strict=True)))
        self._loop = loop
        self._out = outgoing
        self._in = incoming
        self._protocol = asyncio.Protocol()
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._reading = True
        self._high_bytes = 65_536
        self._low_bytes = 16_384
        self._paused = False
        outgoing.on_sent = self._sent
        incoming.on_arrival = self._arrived
        incoming.on_reset = self._reset_came

    # --- reading -------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        if not self._closing and self._reading:
            self._reading = False
            self._in.block()

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self._in.unblock()

    # --- writing -------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if self._in.reset_came:
            self._fatal(BrokenPipeError("the peer reset this connection"))
            return
        self._out.write(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._eof_sent and not self._closing:
            self._eof_sent = True
            self._out.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._out.queued_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 65_536 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._sent()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    # --- the end -------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written still leaves, then comes the end of file."""
        if self._closing:
            return
        self._closing = True
        self._in.unblock()
        if self._eof_sent:
            self._sent()
        else:
            self._out.write_eof()

    def abort(self) -> None:
        """What was not sent is lost; the peer is reset."""
        self._force(None)

    # --- the rest of asyncio.Transport ---------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Only streaming protocols: a BufferedProtocol is refused."""
        if not isinstance(protocol, asyncio.Protocol):
            raise TypeError(f"{protocol!r} is not an asyncio.Protocol")
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "open"
        peer, size = self.get_extra_info("peername"), self._out.queued_bytes
        return f"<MemoryTransport to {peer} [{state} | {size} bytes queued]>"

    # --- inside --------------------------------------------------------------------------------------

    def _arrived(self, item: bytes | _Sign) -> None:
        if self._lost:
            if isinstance(item, bytes):
                self._out.reset()  # bytes for a closed socket
        elif item is _Sign.RESET:
            self._fatal(ConnectionResetError("the peer reset this connection"))
        elif self._closing:
            return
        elif isinstance(item, bytes):
            self._call(self._protocol.data_received, item)
        elif not self._call(self._protocol.eof_received):
            self.close()

    def _reset_came(self) -> None:
        """Who waits to write finds out without reading."""
        if not self._out.all_sent:
            self._fatal(BrokenPipeError("the peer reset this connection"))

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        """A protocol that raises loses its connection, as with sockets."""
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001 - handed to the loop, which keeps it
            self._loop.call_exception_handler(
                {"message": "A protocol failed.", "exception": error, "transport": self}
            )
            self._fatal(error)
            return True

    def _sent(self) -> None:
        """Some of the queue has left, or was added to it."""
        size = self._out.queued_bytes
        if size > self._high_bytes and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        elif size <= self._low_bytes and self._paused:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and self._out.all_sent and not self._lost:
            self._lose(None)

    def _fatal(self, error: Exception) -> None:
        if not self._lost:
            self._force(error)

    def _force(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._closing = True
        self._out.reset()
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._lost = True
        self._in.unblock()  # what still arrives is answered by a reset
        self._loop.call_soon(self._protocol.connection_lost, error)


def connected_pair(
    loop: asyncio.AbstractEventLoop,
    here: Address,
    there: Address,
    settings: LinkSettings | None = None,
) -> tuple[MemoryTransport, MemoryTransport]:
    """Two ends of one connection, at the addresses `here` and `there`. Give each its protocol."""
    settings = settings or LinkSettings()
    outgoing, incoming = _Link(loop, settings), _Link(loop, settings)
    return (
        MemoryTransport(loop, outgoing, incoming, (here, there)),
        MemoryTransport(loop, incoming, outgoing, (there, here)),
    )
