"""A wire between router and engine that keeps what it carries.

vLLM puts several tokens into one event when its own HTTP side is busy, so two answers to one request need not
be cut alike. Whether the router changes a byte shows only in what it was given for that very answer.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


class _Kept:
    """Bytes that can be read as http.client reads a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


@dataclass(slots=True)
class Carried:
    """One connection: what went to the engine and what came from it."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    @property
    def head(self) -> bytes:
        """Request line and headers."""
        return bytes(self.sent.partition(b"\r\n\r\n")[0])

    def ask(self) -> Any:
        """The JSON that the engine was asked."""
        return json.loads(self.sent.partition(b"\r\n\r\n")[2])

    def answer(self) -> bytes:
        """The body of the answer, its chunks joined."""
        response = http.client.HTTPResponse(_Kept(bytes(self.received)))  # type: ignore[arg-type] # reads only
        response.begin()
        return response.read()


class Tap:
    """Listens on a port of its own and passes everything on to the engine. A context manager.

    State: the connections of POST requests, one for each request, since it lets no connection be used twice.
    """

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.carried: list[Carried] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Tap:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._carry, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket) -> None:
        kept = Carried()
        with client, socket.create_connection(("127.0.0.1", self._engine_port)) as engine:
            first = client.recv(65536)
            if not first:
                return
            # One request a connection: then what follows the head is its answer, up to the end.
            kept.sent += first.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            if first.startswith(b"POST"):
                self.carried.append(kept)
            engine.sendall(kept.sent)
            back = threading.Thread(target=_pump, args=(engine, client, kept.received), daemon=True)
            back.start()
            _pump(client, engine, kept.sent)
            back.join(60.0)


def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    """Copies until the source ends, then ends the target's side."""
    try:
        while data := source.recv(65536):
            kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side left


def without_usage(body: bytes) -> bytes:
    """A stream without its usage-only event."""
    events = [event for event in body.split(b"\n\n") if b'"choices":[],' not in event]
    return b"\n\n".join(events)
