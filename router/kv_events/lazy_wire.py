"""A wire that is opened when it is first used.

Separate because pyzmq is optional: most routers follow nobody's events and never load it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.kv_events.wire import Line, Wire


def zmq_is_installed() -> bool:
    """Whether ZMQ sockets can be had."""
    return find_spec("zmq") is not None


def open_zmq(settings: KvEventsSettings, now: Callable[[], float]) -> Wire:
    """A wire over ZMQ sockets. Raises ImportError without pyzmq."""
    from router.kv_events.zmq_wire import ZmqWire  # noqa: PLC0415 - pyzmq is optional

    return ZmqWire(settings, now)


class LazyWire:
    """Opens `make()` at its first line, and not before."""

    def __init__(self, make: Callable[[], Wire]) -> None:
        self._make = make
        self._wire: Wire | None = None

    def subscribe(self, source: EventSource) -> Line:
        return self._opened().subscribe(source)

    def replay(self, source: EventSource, start: int) -> Line:
        return self._opened().replay(source, start)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _opened(self) -> Wire:
        if self._wire is None:
            self._wire = self._make()
        return self._wire

    def __repr__(self) -> str:
        return f"<LazyWire {self._wire!r}>"
