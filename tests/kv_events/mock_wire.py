"""The event sockets of mock engines, in memory: what they publish arrives at once, or is lost with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.mock.kv_broadcast import KvBroadcast
from engines.mock.kv_events import KvPublisher
from engines.mock.process import EngineProcess
from router.kv_events.source import EventSource
from router.kv_events.wire import Link, WireFailed
from tests.kv_events.publisher import MemoryLine


class _Outlet:
    """The publisher's end: to all lines that are open now."""

    def __init__(self) -> None:
        self.lines: list[MemoryLine] = []

    def send(self, frames: Sequence[bytes]) -> None:
        self.put(tuple(frames))

    def put(self, arrival: Link | Sequence[bytes]) -> None:
        self.lines = [line for line in self.lines if not line.closed]
        for line in self.lines:
            line.put(arrival)


class MockWire:
    """Leads to the first rank of each mock engine, by the host of its address.

    Attributes:
        subscribed: sources in the order in which they were subscribed to.
    """

    def __init__(self, process_at: Callable[[str], EngineProcess]) -> None:
        self._process_at = process_at
        self._outlets: dict[str, _Outlet] = {}
        self.subscribed: list[EventSource] = []

    def subscribe(self, source: EventSource) -> MemoryLine:
        broadcast = self._broadcast(source.endpoint)
        host = _host(source.endpoint)
        if host not in self._outlets:
            self._outlets[host] = _Outlet()
            self._tie(broadcast, self._outlets[host])
        line = MemoryLine()
        self.subscribed.append(source)
        self._outlets[host].lines.append(line)
        if broadcast.publishers[0].outlet is not None:
            line.put(Link.UP)
        return line

    def replay(self, source: EventSource, start: int) -> MemoryLine:
        assert source.replay_endpoint is not None
        line = MemoryLine()
        for frames in self._broadcast(source.replay_endpoint).publishers[0].replay(start):
            line.put((b"", *frames))
        return line

    def close(self) -> None:
        for outlet in self._outlets.values():
            for line in outlet.lines:
                line.close()

    @property
    def open_lines(self) -> int:
        return sum(not line.closed for outlet in self._outlets.values() for line in outlet.lines)

    def _broadcast(self, endpoint: str) -> KvBroadcast:
        broadcast = self._process_at(_host(endpoint)).kv_events
        if broadcast is None:
            raise WireFailed(f"{endpoint}: nobody is there")
        return broadcast

    def _tie(self, broadcast: KvBroadcast, outlet: _Outlet) -> None:
        """In place of the sockets, which follow one incarnation after the other."""

        def reopen() -> None:
            self._publisher(broadcast).outlet = outlet
            outlet.put(Link.UP)

        def close() -> None:
            self._publisher(broadcast).outlet = None
            outlet.put(Link.DOWN)

        self._publisher(broadcast).outlet = outlet
        broadcast.reopen = reopen  # type: ignore[method-assign]  # as sockets would
        broadcast.close = close  # type: ignore[method-assign]

    @staticmethod
    def _publisher(broadcast: KvBroadcast) -> KvPublisher:
        return broadcast.publishers[0]

    def __repr__(self) -> str:
        return f"<MockWire [{self.open_lines} lines]>"


def _host(endpoint: str) -> str:
    return endpoint.removeprefix("tcp://").rpartition(":")[0]
