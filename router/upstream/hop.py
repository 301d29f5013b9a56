"""Which header fields belong to one connection and must not travel further.

Separate because both directions follow the same list (RFC 9110 §7.6.1), each with its own additions.
"""

from __future__ import annotations

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_ABOUT_THE_CONNECTION = frozenset({b"close", b"keep-alive", b""})


def named_by_connection(value: bytes) -> frozenset[bytes]:
    """Fields that a Connection header declares hop-by-hop, lower-case."""
    return frozenset(token.strip().lower() for token in value.split(b",")) - _ABOUT_THE_CONNECTION
