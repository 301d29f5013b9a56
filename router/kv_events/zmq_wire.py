"""Lines over ZMQ sockets.

Separate because pyzmq is an optional dependency: nothing else imports it. Messages are read without waiting
for as long as there are any, and the loop watches the socket only while somebody waits: pyzmq's own asyncio
socket makes a future and a callback for every message, and a fleet publishes thousands a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.kv_events.framing import replay_request
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Arrival, Link, WireFailed

_MOST_AT_ONCE = 64
_BYTES_BEYOND_BOUND = 4
"""Times the bound on batches. ZMQ does not pass over a message that is too large: it hangs up, and would at
each replay. Up to here a batch is received, so that it can be dropped alone."""
_REPLAY_QUEUE = 20_000
_HEARTBEAT_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 15_000
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 5_000
_LINKS: dict[int, Link] = {zmq.EVENT_HANDSHAKE_SUCCEEDED: Link.UP, zmq.EVENT_DISCONNECTED: Link.DOWN}


class ZmqWire:
    """The wire of a process; owns the ZMQ context.

    Raises:
        WireFailed: an address is malformed, or is taken already.
    """

    def __init__(self, settings: KvEventsSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._context = zmq.Context()

    def subscribe(self, source: EventSource) -> ZmqLine:
        """The publisher's messages whose topic begins as the source says."""
        line = self._line(zmq.SUB, self._settings.queue_messages)
        try:
            line.socket.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
            line.watch_link()
            if source.listens:
                line.socket.bind(source.endpoint)
            else:
                line.socket.connect(source.endpoint)
        except zmq.ZMQError as error:
            line.close()
            raise WireFailed(f"{source.endpoint}: {error}") from None
        return line

    def replay(self, source: EventSource, start: int) -> ZmqLine:
        """Answers of the engine's replay socket."""
        if source.replay_endpoint is None:
            raise WireFailed(f"{source.endpoint} names no replay endpoint")
        line = self._line(zmq.DEALER, _REPLAY_QUEUE)
        try:
            line.socket.connect(source.replay_endpoint)
            line.socket.send_multipart(replay_request(start), flags=zmq.NOBLOCK)
        except zmq.ZMQError as error:
            line.close()
            raise WireFailed(f"{source.replay_endpoint}: {error}") from None
        return line

    def close(self) -> None:
        """Closes what is still open."""
        self._context.destroy(linger=0)

    def _line(self, kind: int, queue: int) -> ZmqLine:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, queue)
        socket.setsockopt(zmq.MAXMSGSIZE, _BYTES_BEYOND_BOUND * self._settings.max_message_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        return ZmqLine(socket, self._now)

    def __repr__(self) -> str:
        return f"<ZmqWire {'closed' if self._context.closed else 'open'}>"


class ZmqLine:
    """One socket, and beside it the one that reports on its connection."""

    def __init__(self, socket: zmq.Socket[bytes], now: Callable[[], float]) -> None:
        self.socket = socket
        self._now = now
        self._monitor: zmq.Socket[bytes] | None = None

    def watch_link(self) -> None:
        """From now on news of the connection arrives as well."""
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self.socket.get_monitor_socket(events)

    async def receive(self, until: float) -> Sequence[Arrival]:
        """At most some dozen messages at once; news of the connection comes first."""
        while True:
            arrived = self._arrived()
            if arrived or not await self._readable(until):
                return arrived

    def close(self) -> None:
        if self._monitor is not None:
            if not self.socket.closed:
                self.socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        self.socket.close(linger=0)

    def _arrived(self) -> list[Arrival]:
        arrived: list[Arrival] = []
        while self._monitor is not None and (report := _received(self._monitor)) is not None:
            link = _LINKS.get(parse_monitor_message(report)["event"])
            if link is not None:
                arrived.append(link)
        while len(arrived) < _MOST_AT_ONCE and (message := _received(self.socket)) is not None:
            arrived.append(message)
        return arrived

    async def _readable(self, until: float) -> bool:
        """Waits until something may have come; False when it is time instead.

        A ZMQ descriptor wakes for anything that happens to its socket, so it is asked again after each wake.
        """
        remaining_s = until - self._now()
        if remaining_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        descriptors = [socket.FD for socket in (self.socket, self._monitor) if socket is not None]
        for descriptor in descriptors:
            loop.add_reader(descriptor, _settle, woken, True)
        timer = loop.call_later(remaining_s, _settle, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def __repr__(self) -> str:
        return f"<ZmqLine {'closed' if self.socket.closed else 'open'}>"


def _received(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """A message that is there already."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _settle(woken: asyncio.Future[Any], value: bool) -> None:
    if not woken.done():
        woken.set_result(value)
