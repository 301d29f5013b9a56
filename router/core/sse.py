"""A sans-IO decoder of server-sent events: bytes in, events out, however they were cut.

Separate because event framing knows nothing of OpenAI's shapes, and because the relay must know where events
end without changing a byte. The rules are those of the HTML standard, section 9.2.6: lines end in LF, CRLF or
CR, a blank line ends an event, `:` begins a comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from router.core.errors import UpstreamBroken

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_CR = 0x0D

# Where a block ends: a line end, then an empty line. A CRLF is one line end, hence the guards around it.
# After a CRLF a lone CR counts only once the byte behind it is known; after LF or CR it counts at once, and
# an LF behind it opens the next block. So the cut depends on the bytes alone, never on their arrival, and a
# stream that ends its lines in CR is not held back by one event.
_BLOCK_END = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?:(?<!\r)\n|\r(?!\n))[\n\r]")
_LOOK_BACK = 3  # bytes of a cut terminator that the next feed must see again


class EventTooLong(UpstreamBroken):
    """An event grew past the bound, or the stream is no event stream at all."""

    code = "event_too_long"


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event.

    Attributes:
        data: its data lines joined by LF.
        event: value of the last `event` field, None when there was none.
        raw: all its bytes as they came, comments and blank line included.
    """

    data: bytes
    event: str | None = None
    raw: bytes = b""

    @property
    def is_done(self) -> bool:
        """Whether this is OpenAI's end of stream: `[DONE]` as an event of its own."""
        return self.data == b"[DONE]" or (len(self.data) < 16 and self.data.strip() == b"[DONE]")


class BlockSplitter:
    """Cuts a byte stream into blocks, each up to and including its blank line.

    The blocks and `pending`, joined, are the bytes fed.

    Args:
        max_event_bytes: bound of one block and so of what is kept between feeds.
    """

    __slots__ = ("_after_cr", "_failure", "_max_event_bytes", "_pending")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._after_cr = False
        self._failure: EventTooLong | None = None

    @property
    def pending(self) -> bytes:
        """Bytes of the block that has not ended."""
        return bytes(self._pending)

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a block whatever it is."""
        return not self._pending and not self._after_cr

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks that `data` completes.

        Raises:
            EventTooLong: at once, or at the next call when whole blocks stand before the long one.
        """
        if self._failure is not None:
            raise self._failure
        if not self._pending and not self._after_cr and b"\r" not in data:
            blocks = self._split_plain(data)
        else:
            blocks = self._split_any(data)
        return self._bounded(blocks)

    def _split_plain(self, data: bytes) -> list[bytes]:
        """The common case: LF only and nothing left over, so two LF are an end."""
        parts = data.split(b"\n\n")
        self._pending += parts.pop()
        return [part + b"\n\n" for part in parts]

    def _split_any(self, data: bytes) -> list[bytes]:
        buffer = self._pending
        search_from = max(len(buffer) - _LOOK_BACK, 0)
        buffer += data
        blocks: list[bytes] = []
        start = 0
        if self._after_cr and buffer:  # the LF of a CRLF whose CR ended the block before
            search_from = max(search_from, 1 if buffer[0] == _LF else 0)
        while (end := _BLOCK_END.search(buffer, search_from)) is not None:
            stop = end.end()
            blocks.append(bytes(buffer[start:stop]))
            start = search_from = stop
            self._after_cr = buffer[stop - 1] == _CR
            if self._after_cr and stop < len(buffer) and buffer[stop] == _LF:
                search_from += 1
        if start:
            del buffer[:start]
        return blocks

    def _bounded(self, blocks: list[bytes]) -> list[bytes]:
        limit = self._max_event_bytes
        good = blocks
        for position, block in enumerate(blocks):
            if len(block) > limit:
                good = blocks[:position]
                break
        else:
            if len(self._pending) <= limit:
                return blocks
        self._failure = EventTooLong(f"An event of the worker's stream is longer than {limit} bytes.")
        self._pending.clear()
        if not good:
            raise self._failure
        return good

    def __repr__(self) -> str:
        return f"<BlockSplitter [{len(self._pending)} bytes pending]>"


def parse_block(raw: bytes) -> Event | None:
    """The event of one block; None for a block without a data line, such as a comment."""
    lines = raw.splitlines()  # for bytes: LF, CRLF and CR only, exactly the ends that the standard knows
    data: list[bytes] = []
    name: str | None = None
    for line in lines:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            name = (value[1:] if value.startswith(b" ") else value).decode("utf-8", "replace") or None
    if not data:
        return None
    return Event(data[0] if len(data) == 1 else b"\n".join(data), name, raw)


class EventDecoder:
    """Decodes a whole event stream.

    Args:
        max_event_bytes: bound of one event, terminator included.
    """

    __slots__ = ("_blocks", "_started")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._blocks = BlockSplitter(max_event_bytes)
        self._started = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes.

        Raises:
            EventTooLong: an event is over the bound; events before it are given first.
        """
        events: list[Event] = []
        for block in self._blocks.feed(data):
            event = parse_block(block if self._started else block.removeprefix(_BOM))
            self._started = True
            if event is not None:
                events.append(event)
        return events

    @property
    def pending(self) -> bytes:
        """Bytes of an event that has not ended; by the standard they are no event if the stream ends here."""
        return self._blocks.pending

    def __repr__(self) -> str:
        return f"<EventDecoder [{self._blocks.pending_bytes} bytes pending]>"
