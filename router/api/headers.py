"""Which headers cross the router, and which end here.

End-to-end headers are passed on as they came. Hop-by-hop ones, the ones that frame the body, keys that belong
to another trust domain, and fields that steer the fleet are not the client's to send further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import product

from router.core.errors import BadRequest

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_FRAMING = frozenset({b"host", b"content-length", b"content-encoding", b"expect"})
_ENDS_HERE = _HOP_BY_HOP | _FRAMING | {b"x-request-id"}
_STEERING = (b"x-pointsman-", b"x-override-", b"x-smg-")
_RANKS = frozenset(
    {b"x-data-parallel-rank", b"x-data-parallel-host-port", b"x-prefiller-host-port", b"routing-strategy"}
)
_RANK = b"x-data-parallel-rank"
_KEYS = frozenset({b"authorization", b"x-api-key"})
_DROPPED = {
    (keys, trusted, plain): _ENDS_HERE
    | (_KEYS if keys else frozenset())
    | (frozenset() if trusted else _RANKS)
    | ({b"accept-encoding"} if plain else frozenset())
    for keys, trusted, plain in product((True, False), repeat=3)
}
"""By whether the client's keys end here, whether it may steer, and whether its answer is to be plain."""
_ONCE = _KEYS | {b"content-type", b"content-encoding"}
_REPLACED_IN_ANSWERS = frozenset({b"date", b"server", b"x-request-id"})
_REPLACED_IN_WHOLE = _REPLACED_IN_ANSWERS | {b"content-length"}
_REPLACED_IN_STREAMS = _REPLACED_IN_WHOLE | {b"cache-control", b"x-accel-buffering"}
_FOR_PROXIES = ((b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no"))

_UNSAFE_ID = re.compile(rb"[^A-Za-z0-9._:-]")
MAX_REQUEST_ID = 128


def for_worker(
    headers: Iterable[Header],
    *,
    request_id: bytes,
    key: bytes | None,
    pass_key: bool,
    trusted: bool,
    plain: bool,
) -> list[Header]:
    """The headers of a request, as a worker gets them.

    Args:
        key: the worker's key; when set it replaces whatever the client sent.
        pass_key: whether the client's own key goes through when there is no worker key.
        trusted: whether steering headers may pass.
        plain: ask for an answer without compression, since its events will be read.
    """
    dropped = _DROPPED[key is not None or not pass_key, trusted, plain]
    passed: list[Header] = []
    for header in headers:
        name = header[0]
        if name not in dropped:
            if trusted or not name.startswith(_STEERING):
                passed.append(header)
        elif name == b"connection" and (named := _connection_tokens(headers)):
            passed = [one for one in passed if one[0] not in named]
            dropped |= named
    passed.append((b"x-request-id", request_id))
    if key is not None:
        passed.append((b"authorization", b"Bearer " + key))
    return passed


def for_rank(headers: Iterable[Header], rank: int) -> list[Header]:
    """The headers of a request to one data-parallel rank, in the words of vLLM (since 0.11) and of SGLang. It
    was charged to that rank, so even a trusted client's wish for another one ends here."""
    return [header for header in headers if header[0] != _RANK] + [(_RANK, b"%d" % rank)]


def for_client(headers: Iterable[Header], *, streamed: bool = False, whole: bool = False) -> list[Header]:
    """The headers of a worker's answer, as the client gets them; the caller adds its own.

    Args:
        streamed: tell proxies in front of us not to collect the events of a stream.
        whole: the answer leaves with a length that the caller states.
    """
    dropped = _REPLACED_IN_STREAMS if streamed else _REPLACED_IN_WHOLE if whole else _REPLACED_IN_ANSWERS
    passed = [header for header in headers if header[0] not in dropped]
    if streamed:
        passed += _FOR_PROXIES
    return passed


def _connection_tokens(headers: Iterable[Header]) -> frozenset[bytes]:
    """Names that `Connection` declares hop-by-hop. Usually none, so nothing is built."""
    dropped: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return dropped


def refuse_contradictions(headers: Iterable[Header]) -> None:
    """Raises BadRequest when a header that decides something comes twice with different values: engines read
    the first where the router reads the last, so what the router judged would not be what they get."""
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _ONCE and seen.setdefault(name, value) != value:
            raise BadRequest(f"The header {name.decode()} came twice, with different values.")


def request_id(headers: Mapping[bytes, bytes], names: Iterable[bytes], fallback: str) -> str:
    """The client's id of the call, safe for logs and for the engine's own ids; ours when it gave none."""
    for name in names:
        given = headers.get(name)
        if given:
            return _UNSAFE_ID.sub(b"_", given[:MAX_REQUEST_ID]).decode()
    return fallback
