from __future__ import annotations

import pytest

from router.core.errors import BadRequest
from router.upstream.head import request_head


def lines(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def test_headers_keep_order_spelling_and_repetition() -> None:
    headers = [(b"X-B", b"2"), (b"x-a", b"1"), (b"X-B", b"3; q=\xe9")]
    head = request_head(b"POST", b"/v1/x?a=b", b"worker:80", headers, 7)
    assert lines(head) == [
        b"POST /v1/x?a=b HTTP/1.1",
        b"host: worker:80",
        b"X-B: 2",
        b"x-a: 1",
        b"X-B: 3; q=\xe9",
        b"content-length: 7",
    ]


@pytest.mark.parametrize(
    ("method", "length", "framing"),
    [
        (b"POST", 0, [b"content-length: 0"]),
        (b"POST", 3, [b"content-length: 3"]),
        (b"POST", None, [b"transfer-encoding: chunked"]),
        (b"GET", 0, []),
        (b"DELETE", 0, []),
        (b"GET", 2, [b"content-length: 2"]),
    ],
)
def test_framing_follows_the_body_alone(method: bytes, length: int | None, framing: list[bytes]) -> None:
    lies = [(b"Content-Length", b"999"), (b"Transfer-Encoding", b"chunked"), (b"Host", b"elsewhere")]
    assert lines(request_head(method, b"/", b"w:1", lies, length))[2:] == framing


def test_hop_by_hop_fields_stay_behind() -> None:
    headers = [
        (name, b"x") for name in (b"TE", b"Upgrade", b"Keep-Alive", b"Trailer", b"Proxy-Authorization")
    ]
    headers += [(b"Expect", b"100-continue"), (b"http2-settings", b"x"), (b"a", b"1")]
    assert lines(request_head(b"GET", b"/", b"w:1", headers, 0))[2:] == [b"a: 1"]


def test_fields_that_connection_names_stay_behind() -> None:
    headers = [(b"X-Secret", b"1"), (b"connection", b"keep-alive, x-secret"), (b"a", b"1")]
    assert lines(request_head(b"GET", b"/", b"w:1", headers, 0))[2:] == [b"a: 1"]


@pytest.mark.parametrize(
    ("path", "header"),
    [
        (b"/a b", (b"a", b"1")),
        (b"/a\r\nx: y", (b"a", b"1")),
        (b"/a", (b"a", b"1\r\ntransfer-encoding: chunked")),
        (b"/a", (b"a", b"1\nb: 2")),
        (b"/a", (b"a", b"1\rb: 2")),
        (b"/a", (b"a\r\nb", b"1")),
        (b"/a", (b"a", b"\x00")),
    ],
)
def test_a_second_request_cannot_be_smuggled_in(path: bytes, header: tuple[bytes, bytes]) -> None:
    with pytest.raises(BadRequest):
        request_head(b"GET", path, b"w:1", [header], 0)
