"""Bytes of one connection in, responses out: sans-IO, on httptools.

Separate from the wire because it can be fed cut in any way without a socket, and because every doubt about
framing ends here: what is not plainly one whole response marks the connection as unfit for another.
"""

from __future__ import annotations

from enum import Enum

import httptools

from router.upstream.hop import HOP_BY_HOP, named_by_connection

MAX_HEAD_BYTES = 65_536
"""Of a head, of trailers, of chunk extensions: of anything that is not body. uvicorn's h11 and nginx allow
16 and 32 KiB; engines with long model ids in headers stay far below."""

_READ_HERE = HOP_BY_HOP | {b"content-length"}
_WITHOUT_BODY = frozenset({204, 304})


class Malformed(Exception):
    """What came is not one HTTP response. The text is fit for a stranger."""


class Framing(Enum):
    """How the end of the body is known."""

    UNTIL_CLOSE = "until close"
    LENGTH = "length"
    CHUNKED = "chunked"


class ResponseDecoder:
    """The responses of one connection, one after the other.

    `begin` before each request; `feed` what arrives; `end` when the peer closes. Bodies are handed on as they
    came, never decompressed.

    Attributes:
        began: a byte of the response has come.
        status: valid once `head_done`.
        headers: names in lower case, without hop-by-hop fields, content-length only where a body follows.
        pieces: body bytes that nobody has taken yet, `buffered` in all.
        complete: the last byte of the response has come.
        reusable: the connection may carry another request, valid once `complete`.
    """

    __slots__ = (
        "_connection",
        "_fault",
        "_framing",
        "_overhead_bytes",
        "_parser",
        "began",
        "buffered",
        "complete",
        "head_done",
        "headers",
        "pieces",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        """Forget the last response; the next bytes belong to a new one."""
        self.began = False
        self.head_done = False
        self.complete = False
        self.reusable = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces.clear()
        self.buffered = 0
        self._framing = Framing.UNTIL_CLOSE
        self._connection: frozenset[bytes] = frozenset()
        self._fault: str | None = None
        self._overhead_bytes = 0

    def feed(self, data: bytes) -> None:
        """Raises Malformed; then nothing more can be read from this connection."""
        self.began = True
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.complete:
                self.reusable = False
                return
            raise Malformed(self._fault or "The worker's answer is not HTTP/1.1.") from error
        if self._fault is not None:
            raise Malformed(self._fault)
        if self._overhead_bytes > MAX_HEAD_BYTES and not self.complete:
            raise Malformed(_FLOOD)

    def end(self) -> bool:
        """The peer closed. True when the response ends properly with that."""
        if self.head_done and self._framing is Framing.UNTIL_CLOSE:
            self.complete = True
            self.reusable = False
        return self.complete

    def take(self) -> bytes:
        """All body bytes that have come since the last call; b"" if there are none."""
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.buffered = 0
        return data

    def close(self) -> None:
        """Nothing will be fed any more. Breaks the cycle between parser and decoder."""
        del self._parser

    # --- called by the parser ------------------------------------------------------------------------
    # What they raise comes out of feed_data as an error of the parser: a fault of our own is noted instead.

    def on_message_begin(self) -> None:
        if self.complete:
            raise Malformed("A second answer came.")  # stops the parser: nothing of it may mix with the first

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # trailers: nobody asked for them
        name = name.lower()
        if name in _READ_HERE:
            self._read_here(name, value)
        else:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._interim(status)
            return
        if self._overhead_bytes > MAX_HEAD_BYTES:
            # A large read may hold a small head and much body: only now it is known which.
            if sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
                self._fault = _FLOOD
            self._overhead_bytes = 0
        if self._connection or status in _WITHOUT_BODY:
            self._drop(self._connection | ({b"content-length"} if status in _WITHOUT_BODY else frozenset()))
        self.status = status
        self.reusable = self._parser.should_keep_alive()
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.buffered += len(body)
        self._overhead_bytes = 0

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True

    # --- seldom --------------------------------------------------------------------------------------

    def _read_here(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._framing = Framing.LENGTH
            self.headers.append((name, value))
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked" or self._framing is Framing.CHUNKED:
                self._fault = "The worker used a transfer coding that nobody asked for."
            self._framing = Framing.CHUNKED
        elif name == b"connection":
            self._connection |= named_by_connection(value)

    def _interim(self, status: int) -> None:
        if status == 101:
            self._fault = "The worker switched protocols, which nobody asked for."
        self.headers = []
        self._framing = Framing.UNTIL_CLOSE
        self._connection = frozenset()

    def _drop(self, names: frozenset[bytes]) -> None:
        self.headers = [header for header in self.headers if header[0] not in names]


_FLOOD = f"The worker's answer has more than {MAX_HEAD_BYTES // 1024} KiB of headers."
