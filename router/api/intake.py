"""Bodies on their way in: bounded each, bounded in sum, decompressed with a bound.

A body is held from its first byte until the answer is committed, because only then is it certain that no
other worker will need it.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

import zstandard

from router.core.budget import Budget
from router.core.errors import BadRequest, BodyTooLarge, ClientGone, Overloaded

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_DECODED_STEP = 1 << 20


class HeldBody:
    """Bytes of one request that are counted against the process's limit until released.

    A context manager; `release` is idempotent, so the body can be let go early (at commit) and the block can
    still end in any way.
    """

    __slots__ = ("_budget", "_held", "data")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self.data = b""

    def hold(self, size: int) -> None:
        """Counts `size` more bytes. Raises Overloaded when the process holds too many already."""
        if not self._budget.take(size):
            raise Overloaded("The router holds too many request bodies; try again shortly.", retry_after_s=1)
        self._held += size

    def keep(self, data: bytes) -> None:
        """These are the bytes that stay; what was counted beyond them is given back."""
        self.data = data
        if self._held > len(data):
            self._budget.give(self._held - len(data))
            self._held = len(data)

    def release(self) -> None:
        self.data = b""
        self._budget.give(self._held)
        self._held = 0

    def __enter__(self) -> HeldBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


async def read_body(
    receive: Receive, body: HeldBody, *, encoding: bytes, length: bytes | None, max_bytes: int
) -> None:
    """Reads a whole JSON body into `body`, decoding gzip and zstd.

    Raises:
        BodyTooLarge: over `max_bytes`, as sent or as decoded; as soon as that is known.
        BadRequest: an encoding that is not known, or data that it does not decode.
        ClientGone: the client left before it was complete.
    """
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        _hold_whole(message.get("body", b""), body, encoding, max_bytes)
        return
    pieces: list[bytes] = []
    size = 0
    async for piece in pieces_of(receive, message):
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        body.hold(len(piece))
        pieces.append(piece)
    _keep(b"".join(pieces), body, encoding, max_bytes)


def _hold_whole(data: bytes, body: HeldBody, encoding: bytes, max_bytes: int) -> None:
    """Most requests are small and come in one message."""
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    body.hold(len(data))
    _keep(data, body, encoding, max_bytes)


def _keep(data: bytes, body: HeldBody, encoding: bytes, max_bytes: int) -> None:
    if encoding and encoding != b"identity":
        data = _decode(data, encoding, body, max_bytes)
    body.keep(data)


async def pieces_of(receive: Receive, first: MutableMapping[str, Any] | None = None) -> AsyncIterator[bytes]:
    """The pieces of a request body as they come, beginning with the message `first` when one was received.

    Raises ClientGone when the client leaves in between.
    """
    more = True
    while more:
        message, first = first or await receive(), None
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while sending its request")
        more = message.get("more_body", False)
        piece = message.get("body", b"")
        if piece:
            yield piece


def _decode(data: bytes, encoding: bytes, body: HeldBody, max_bytes: int) -> bytes:
    steps = {b"gzip": _gunzip, b"x-gzip": _gunzip, b"zstd": _unzstd}
    step = steps.get(encoding.strip().lower())
    if step is None:
        name = encoding.decode("latin-1")[:50]
        raise BadRequest(f"Content-Encoding {name!r} is not supported; send gzip, zstd or no encoding.")
    try:
        decoded = step(data, max_bytes + 1)
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadRequest(f"The body is not valid {encoding.decode('latin-1')}.") from error
    if len(decoded) > max_bytes:
        raise _too_large(max_bytes)
    body.hold(len(decoded))
    return decoded


def _gunzip(data: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    decoded = decoder.decompress(data, limit)
    if not decoder.eof and len(decoded) < limit:
        raise zlib.error("the data ends too early")
    return decoded


def _unzstd(data: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
        pieces = []
        left = limit
        while left and (piece := reader.read(min(left, _DECODED_STEP))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than this router accepts ({max_bytes} bytes).")
