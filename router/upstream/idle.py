"""Connections that wait for their next request.

Separate because reuse is a decision, and all of it is here: synchronous, on a given `now`.
"""

from __future__ import annotations

from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from router.upstream.wire import Wire


class IdleWires:
    """Per origin a stack, the freshest on top: what is not needed grows old at the bottom and is closed."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._stacks: dict[Origin, list[Wire]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, wire: Wire, now: float) -> bool:
        """Keep `wire`. False when there is no room: then it is the caller's to close."""
        stack = self._stacks.setdefault(wire.origin, [])
        if len(stack) >= self._settings.max_idle_per_origin or self._count >= self._settings.max_idle:
            return False
        wire.idle_since = now
        stack.append(wire)
        self._count += 1
        return True

    def take(self, origin: Origin, now: float) -> Wire | None:
        """The freshest connection that may still be used."""
        stack = self._stacks.get(origin)
        while stack:
            wire = stack.pop()
            self._count -= 1
            if now - wire.idle_since >= self._settings.idle_s:
                wire.close()
            elif not wire.closing:
                return wire
        return None

    def remove(self, wire: Wire) -> None:
        """`wire` is gone, if it was here."""
        stack = self._stacks.get(wire.origin)
        if stack and wire in stack:
            stack.remove(wire)
            self._count -= 1

    def drop(self, origin: Origin) -> None:
        """Close all connections to `origin`."""
        for wire in self._stacks.pop(origin, ()):
            self._count -= 1
            wire.close()

    def sweep(self, now: float) -> float | None:
        """Close what is too old. Returns when the next one will be, None when nothing is left."""
        oldest: float | None = None
        for origin, stack in list(self._stacks.items()):
            while stack and now - stack[0].idle_since >= self._settings.idle_s - 0.001:
                stack.pop(0).close()
                self._count -= 1
            if not stack:
                del self._stacks[origin]
            elif oldest is None or stack[0].idle_since < oldest:
                oldest = stack[0].idle_since
        return None if oldest is None else oldest + self._settings.idle_s

    def close(self) -> None:
        for origin in list(self._stacks):
            self.drop(origin)
