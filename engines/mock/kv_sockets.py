"""The two sockets of an engine's KV events: PUB for what happens, ROUTER for what was missed.

Separate because pyzmq is an optional dependency, and because sockets outlive incarnations: a restarted engine
publishes at the same place.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence

import zmq

from engines.mock.kv_events import KvPublisher

log = logging.getLogger("pointsman.mock")

_REBIND_S = 0.05
_REBINDS = 100


class KvSockets:
    """Publishes for one incarnation after another.

    Args:
        endpoint: binds when it has `*`, `::` or is `ipc://`, connects otherwise, as vLLM does.
        replay_endpoint: binds; None: nothing is replayed.
        hwm: messages that wait for a slow reader; vLLM's default.

    Attributes:
        endpoint, replay_endpoint: where they really are, once open; port 0 took a free one.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None, hwm: int = 100_000) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self._hwm = hwm
        self._context = zmq.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._publisher: KvPublisher | None = None
        self._opening: asyncio.TimerHandle | None = None

    def open(self, publisher: KvPublisher) -> None:
        """Publishes for it from now on.

        Raises:
            OSError: an address cannot be had.
        """
        self.close()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(self._hwm)
        binds = any(sign in self.endpoint for sign in ("*", "::")) or self.endpoint.startswith("ipc://")
        self.endpoint = self._place(self._pub, self.endpoint, binds=binds)
        if self.replay_endpoint is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = self._place(self._router, self.replay_endpoint, binds=True)
            asyncio.get_running_loop().add_reader(self._router.FD, self._answer)
        self._publisher = publisher
        publisher.outlet = self

    def reopen(self, publisher: KvPublisher, tries: int = _REBINDS) -> None:
        """The same for a new incarnation; an address that is not free yet is tried again for some seconds."""
        try:
            self.open(publisher)
        except OSError as refused:
            failure = refused
        else:
            return
        if failure.errno == errno.EADDRINUSE and tries:
            loop = asyncio.get_running_loop()
            self._opening = loop.call_later(_REBIND_S, self.reopen, publisher, tries - 1)
        else:
            log.error("KV events cannot be published again: %s", failure)

    def close(self) -> None:
        """Nobody is heard any more; harmless when closed."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._publisher is not None:
            self._publisher.outlet = None
            self._publisher = None
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.FD)
            self._router.close(linger=0)
            self._router = None
        if self._pub is not None:
            self._pub.close(linger=0)
            self._pub = None

    def destroy(self) -> None:
        """Closes for good."""
        self.close()
        self._context.destroy(linger=0)

    def send(self, frames: Sequence[bytes]) -> None:
        """To all who listen now; a reader that is too slow misses it."""
        if self._pub is not None:
            self._pub.send_multipart(frames, zmq.NOBLOCK)

    def _place(self, socket: zmq.Socket[bytes], endpoint: str, *, binds: bool) -> str:
        socket.setsockopt(zmq.LINGER, 0)
        try:
            if not binds:
                socket.connect(endpoint)
                return endpoint
            socket.bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"{endpoint}: {error.strerror}") from None
        last = socket.getsockopt(zmq.LAST_ENDPOINT)
        port = bytes(last).rstrip(b"\0").decode().rpartition(":")[2] if isinstance(last, bytes) else ""
        return endpoint[: -len("0")] + port if endpoint.endswith(":0") else endpoint

    def _answer(self) -> None:
        """Answers all requests that are there; the descriptor tells of them only once."""
        while self._router is not None and self._publisher is not None:
            try:
                request = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(request) != 3:
                log.warning("a replay request of %d frames is ignored", len(request))
                continue
            client, empty, start = request
            for answer in self._publisher.replay(int.from_bytes(start, "big")):
                self._router.send_multipart((client, empty, *answer), zmq.NOBLOCK)

    def __repr__(self) -> str:
        return f"<KvSockets {self.endpoint} {'closed' if self._pub is None else 'open'}>"
