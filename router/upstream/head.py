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
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: " + authority]
    for name, value in headers:
        if name.lower() not in _SET_HERE:
            lines.append(b"%b: %b" % (name, value))
        elif name.lower() == b"connection" and (named := named_by_connection(value)):
            named |= {b"connection"}
            rest = [header for header in headers if header[0].lower() not in named]
            return request_head(method, path, authority, rest, length)
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif length or method not in _WITHOUT_BODY:
        lines.append(b"content-length: %d" % length)
    lines.append(b"\r\n")
    head = b"\r\n".join(lines)
    # Cheaper than a look at every part: each line has one break, so one more was smuggled in.
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b" " in path or b"\0" in head:
        raise BadRequest("The path or a header holds a character that HTTP does not allow there.")
    return head
