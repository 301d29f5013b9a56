"""The head of a request as bytes.

Separate because framing is decided here and nowhere else: what the caller says about length, transfer coding
or the connection never reaches the wire, so two of them can never disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.errors import BadRequest
from router.upstream.hop import HOP_BY_HOP, named_by_connection

_SET_HERE = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"http2-settings"}
_WITHOUT_BODY = frozenset({b"GET", b"DELETE", b"OPTIONS"})


def request_head(
    method: bytes, path: bytes, authority: bytes, headers: Sequence[tuple[bytes, bytes]], length: int | None
) -> bytes:
    """The request line and all header lines, with the empty line after them.

    Args:
        path: path and query as they go on the wire.
        length: of the body in bytes; None when it is not known, then the body goes in chunks.

    Raises:
        BadRequest: a part holds a line break, or the path a space: sent, it would be read as another request.
    """
    parts = [method, b" ", path, b" HTTP/1.1\r\nhost: ", authority]
    breaks = 3  # after the request line, and two at the end
    for name, value in headers:
        if name.lower() not in _SET_HERE:
            parts += (b"\r\n", name, b": ", value)
            breaks += 1
        elif name.lower() == b"connection" and (named := named_by_connection(value)):
            named |= {b"connection"}
            rest = [header for header in headers if header[0].lower() not in named]
            return request_head(method, path, authority, rest, length)
    if length is None:
        parts.append(b"\r\ntransfer-encoding: chunked\r\n\r\n")
        breaks += 1
    elif length or method not in _WITHOUT_BODY:
        parts.append(b"\r\ncontent-length: %d\r\n\r\n" % length)
        breaks += 1
    else:
        parts.append(b"\r\n\r\n")
    head = b"".join(parts)
    # Cheaper than a look at every part: one line break more than we wrote was smuggled in.
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b" " in path or b"\0" in head:
        raise BadRequest("The path or a header holds a character that HTTP does not allow there.")
    return head
