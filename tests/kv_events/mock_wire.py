"""The event sockets of mock engines, in memory: what they publish arrives at once, or is lost with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.mock.kv_broadcast import KvBroadcast
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
    """Leads to the ranks of mock engines: by the host of an address, and how far its port is from the first.

    Attributes:
        subscribed: sources in the order in which they were subscribed to.
    """

    def __init__(self, process_at: Callable[[str], EngineProcess]) -> None:
        self._process_at = process_at
        self._outlets: dict[tuple[str, int], _Outlet] = {}
        self._tied: set[str] = set()
        self.subscribed: list[EventSource] = []

    def subscribe(self, source: EventSource) -> MemoryLine:
        host, port = _place(source.endpoint)
        broadcast = self._broadcast(host)
        rank = port - _place(broadcast.places[0].endpoint)[1]
        self._tie(host, broadcast)
        line = MemoryLine()
        self.subscribed.append(source)
        self._outlets[host, rank].lines.append(line)
        if broadcast.publishers[rank].outlet is not None:
            line.put(Link.UP)
        return line

    def replay(self, source: EventSource, start: int) -> MemoryLine:
        assert source.replay_endpoint is not None
        host, port = _place(source.replay_endpoint)
        broadcast = self._broadcast(host)
        rank = port - _place(broadcast.places[0].replay_endpoint or "")[1]
        line = MemoryLine()
        for frames in broadcast.publishers[rank].replay(start):
            line.put((b"", *frames))
        return line

    def close(self) -> None:
        for outlet in self._outlets.values():
            for line in outlet.lines:
                line.close()

    @property
    def open_lines(self) -> int:
        return sum(not line.closed for outlet in self._outlets.values() for line in outlet.lines)

    def _broadcast(self, host: str) -> KvBroadcast:
        broadcast = self._process_at(host).kv_events
        if broadcast is None:
            raise WireFailed(f"{host}: nobody is there")
        return broadcast

    def _tie(self, host: str, broadcast: KvBroadcast) -> None:
        """In place of the sockets, which follow one incarnation after the other."""

        def reopen() -> None:
            for rank, publisher in enumerate(broadcast.publishers):
                outlet = self._outlets.setdefault((host, rank), _Outlet())
                publisher.outlet = outlet
                outlet.put(Link.UP)

        def close() -> None:
            for rank, publisher in enumerate(broadcast.publishers):
                publisher.outlet = None
                self._outlets[host, rank].put(Link.DOWN)

        if host not in self._tied:
            self._tied.add(host)
            reopen()
            broadcast.reopen = reopen  # type: ignore[method-assign]  # as sockets would
            broadcast.close = close  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"<MockWire [{self.open_lines} lines]>"


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)
