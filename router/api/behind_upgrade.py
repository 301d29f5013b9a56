"""The body of a request whose head made the parser stop.

Separate because it is a trick of its own: the parser ends at an offer to upgrade, and the body behind that
offer is read by a second parser, to which only the framing of the head is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httptools

from router.api.headers import Header

_FRAMING = (b"content-length", b"transfer-encoding")


class BehindUpgrade:
    """Reads the body of a request at whose head the parser stopped, by the framing that the head declared."""

    def __init__(
        self,
        headers: Sequence[Header],
        on_body: Callable[[bytes], None],
        on_message_complete: Callable[[], None],
    ) -> None:
        self.on_body = on_body
        self.on_message_complete = on_message_complete
        self._parser = httptools.HttpRequestParser(self)
        framing = [b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING]
        self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError."""
        if data:
            self._parser.feed_data(data)
