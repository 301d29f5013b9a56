from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.decoder import MAX_HEAD_BYTES, Malformed, ResponseDecoder


def fed(*pieces: bytes) -> ResponseDecoder:
    return fed_from(iter(pieces))


def fed_from(pieces: Iterator[bytes]) -> ResponseDecoder:
    decoder = ResponseDecoder()
    for piece in pieces:
        decoder.feed(piece)
    return decoder


CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A:  b\r\n"
    b"Transfer-Encoding: chunked\r\nTrailer: t\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nT: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\nx-a: b\r\nKeep-Alive: timeout=5\r\n\r\nhello world"


@given(st.sampled_from([CHUNKED, SIZED]), st.lists(st.integers(0, 220), max_size=12))
def test_decoding_does_not_depend_on_how_the_bytes_were_cut(response: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(response)), len(response)]
    decoder = fed(*(response[a:b] for a, b in itertools.pairwise(edges)))
    assert decoder.complete
    assert decoder.reusable
    assert (b"x-a", b"b") in decoder.headers
    assert decoder.take() == b"hello world"


def test_byte_by_byte_is_the_same() -> None:
    decoder = fed(*(CHUNKED[i : i + 1] for i in range(len(CHUNKED))))
    assert (decoder.status, decoder.headers) == (200, [(b"x-a", b"b")])
    assert decoder.take() == b"hello world"
    assert decoder.complete


def test_one_decoder_reads_one_response_after_the_other() -> None:
    decoder = ResponseDecoder()
    for response, status in ((CHUNKED, 200), (SIZED, 201), (CHUNKED, 200)):
        decoder.feed(response)
        assert (decoder.status, decoder.take(), decoder.complete) == (status, b"hello world", True)
        decoder.begin()
        assert not decoder.began
        assert decoder.headers == []


def test_hop_by_hop_fields_are_removed_and_the_true_length_stays() -> None:
    decoder = fed(
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Own\r\nx-own: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Upgrade: h2c\r\nProxy-Authenticate: Basic\r\nProxy-Connection: close\r\n"
        b"Content-Length: 2\r\nContent-Encoding: gzip\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n\x1f\x8b"
    )
    assert decoder.headers == [
        (b"content-length", b"2"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]
    assert decoder.take() == b"\x1f\x8b"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_length_without_a_body_is_not_handed_on(status: bytes) -> None:
    decoder = fed(b"HTTP/1.1 " + status + b"\r\ncontent-length: 5\r\nx: y\r\n\r\n")
    assert decoder.complete
    assert decoder.headers == [(b"x", b"y")]


def test_http_1_0_body_ends_with_the_connection() -> None:
    decoder = fed(b"HTTP/1.0 200 OK\r\nServer: BaseHTTP\r\n\r\n", b"a", b"b")
    before = decoder.complete
    assert decoder.end()
    assert not before
    assert decoder.complete
    assert not decoder.reusable
    assert decoder.take() == b"ab"


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_an_early_end_is_not_a_proper_one(cut: bytes) -> None:
    decoder = ResponseDecoder()
    if cut:
        decoder.feed(cut)
    assert not decoder.end()
    assert not decoder.complete


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n",
    ],
)
def test_a_peer_that_will_close_is_not_reusable(head: bytes) -> None:
    decoder = fed(head + b"x")
    assert decoder.complete
    assert not decoder.reusable


def test_http_1_0_with_keep_alive_is_reusable() -> None:
    assert fed(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx").reusable


@pytest.mark.parametrize("extra", [b"x", b"HTTP/1.1 200 OK\r\n", SIZED, b"\x00\xff"])
@pytest.mark.parametrize("together", [True, False])
def test_bytes_after_the_answer_spoil_the_connection_and_not_the_answer(extra: bytes, together: bool) -> None:
    decoder = fed(SIZED + extra) if together else fed(SIZED, extra)
    assert decoder.complete
    assert not decoder.reusable
    assert decoder.take() == b"hello world"
    assert decoder.status == 201


@pytest.mark.parametrize(
    ("garbage", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"\x00\x01\x02", "not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            "switched protocols",
        ),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\nabc", "switched protocols"),
    ],
)
def test_what_is_not_one_http_answer_is_malformed(garbage: bytes, sentence: str) -> None:
    with pytest.raises(Malformed, match=sentence):
        fed(garbage)


def header_flood() -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\n"] + [b"x-%d: y\r\n" % n for n in range(10_000)]


@pytest.mark.parametrize(
    "flood",
    [
        header_flood(),
        [b"HTTP/1.1 200 OK\r\nx: "] + [b"a" * 1000] * 70,
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 4_000,
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"]
        + [b"t: %d\r\n" % n for n in range(10_000)],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;"] + [b"e" * 1000] * 70,
        [b"".join(header_flood()) + b"Content-Length: 1\r\n\r\nx"],
    ],
    ids=["many", "long", "interim", "trailers", "extension", "at once, with body"],
)
def test_flood_of_anything_but_body_is_cut_off(flood: list[bytes]) -> None:
    taken = 0

    def arriving() -> Iterator[bytes]:
        nonlocal taken
        for piece in flood:
            taken += len(piece)
            yield piece

    with pytest.raises(Malformed, match="KiB of headers"):
        fed_from(arriving())
    assert taken <= MAX_HEAD_BYTES + max(map(len, flood))


def test_a_small_head_with_much_body_in_one_read_is_no_flood() -> None:
    body = b"x" * 200_000
    decoder = fed(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + body)
    assert decoder.take() == body
    assert decoder.complete
