"""Raw HTTP of the probes: bytes as they come, and how they ended. No client library stands in between."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Attributes:
    headers: names in lower case.
    clean: the body came to the end that its framing promises.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    clean: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of all data events; `[DONE]` stays a string."""
        found = []
        for line in self.body.splitlines():
            if line.startswith(b"data: "):
                data = line[6:].decode()
                found.append(data if data == "[DONE]" else json.loads(data))
        return found


class Exchange:
    """One request whose answer is read piece by piece. A context manager: leaving it closes the socket."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        self._connection.request(method, path, data, sent)
        self._response: http.client.HTTPResponse | None = None
        self.pieces: list[bytes] = []
        self.clean: bool | None = None

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def response(self) -> http.client.HTTPResponse:
        """The head of the answer, awaited when it has not come."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def stream(self) -> Iterator[bytes]:
        """Pieces of the body as they come, until its end, clean or not."""
        response = self.response
        try:
            while piece := response.read1(65536):
                self.pieces.append(piece)
                yield piece
            # A cut chunked body raises; of a counted one, the missing rest is what tells.
            self.clean = not response.length
        except (http.client.IncompleteRead, ConnectionError):
            self.clean = False

    def until(self, marks: int, mark: bytes = b"data: {") -> bytes:
        """Reads until `mark` was seen `marks` times."""
        for _ in self.stream():
            if self.received.count(mark) >= marks:
                break
        return self.received

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    def rest(self) -> Answer:
        """Everything to the end."""
        for _ in self.stream():
            continue
        headers = {name.lower(): value for name, value in self.response.getheaders()}
        return Answer(self.response.status, self.received, headers, bool(self.clean))

    def leave(self) -> None:
        """Closes the socket, as a client does that has lost interest."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


def ask(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Answer:
    """One request and its whole answer."""
    with Exchange(port, method, path, body, headers, timeout_s) as exchange:
        return exchange.rest()
