"""Laws of the event decoder: what it yields depends on the bytes, never on how they were cut."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import httpx
import httpx_sse
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import UpstreamBroken
from router.core.sse import BlockSplitter, Event, EventDecoder, EventTooLong

WIRE = Path(__file__).parents[1] / "wire"
STREAMS = sorted(WIRE.glob("*.sse"))

PIECES = st.sampled_from(
    [
        b"\n", b"\r", b"\r\n", b"\n\n", b"data: a", b"data:b", b"data:  two spaces", b"data",
        b"data: [DONE]", b": comment", b":", b"event: ping", b"event", b"id: 1", b"retry: 5", b"unknown: x",
        b" data: no field", "data: žluť 漢字 🚂".encode(), b"data: a:b", b"\x00",
    ]
)  # fmt: skip
STREAM_BYTES = st.lists(PIECES, max_size=24).map(b"".join)


def cut(data: bytes, at: Sequence[int]) -> Iterator[bytes]:
    """`data` in pieces, cut at the given places (taken modulo its length)."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    for start, end in pairwise(places):
        yield data[start:end]


def decode(data: bytes, at: Sequence[int] = ()) -> list[Event]:
    decoder = EventDecoder()
    return [event for piece in cut(data, at) for event in decoder.feed(piece)]


def standard(data: bytes) -> list[tuple[bytes, str | None]]:
    """The standard's algorithm, written for one whole body and for nothing but clearness."""
    text = data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[tuple[bytes, str | None]] = []
    lines: list[bytes] = []
    name: str | None = None
    for line in text.split(b"\n")[:-1]:
        if not line:
            if lines:
                events.append((b"\n".join(lines), name))
            lines, name = [], None
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode() or None
    return events


@given(STREAM_BYTES, st.lists(st.integers(0, 400)))
def test_decoding_is_independent_of_the_cutting(data: bytes, at: list[int]) -> None:
    assert decode(data, at) == decode(data)


@given(STREAM_BYTES)
def test_decoding_byte_by_byte_equals_decoding_at_once(data: bytes) -> None:
    assert decode(data, range(len(data))) == decode(data)


@given(STREAM_BYTES, st.lists(st.integers(0, 400)), st.booleans())
def test_events_are_those_of_the_standard(data: bytes, at: list[int], bom: bool) -> None:
    # One CR may still be half of a CRLF: what the standard says of it is known once another byte is there.
    data = codecs.BOM_UTF8 * bom + data + b": end\n"
    assert [(event.data, event.event) for event in decode(data, at)] == standard(data)


@given(
    st.lists(PIECES.filter(lambda piece: not piece.startswith((b"id", b"retry"))), max_size=24).map(b"".join)
)
def test_events_with_data_are_those_of_httpx_sse(data: bytes) -> None:
    data += b"\n: end\n\n"
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    theirs = [one for one in httpx_sse.EventSource(response).iter_sse() if one.data]
    ours = [event for event in decode(data) if event.data]
    assert [(event.data.decode(), event.event or "message") for event in ours] == [
        (one.data, one.event) for one in theirs
    ]


@given(STREAM_BYTES, st.lists(st.integers(0, 400)))
def test_blocks_and_what_is_pending_are_the_bytes_fed(data: bytes, at: list[int]) -> None:
    splitter = BlockSplitter()
    blocks = [block for piece in cut(data, at) for block in splitter.feed(piece)]
    assert b"".join(blocks) + splitter.pending == data


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_decode_to_the_events_of_httpx_sse(path: Path) -> None:
    data = path.read_bytes()
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    theirs = [one.data for one in httpx_sse.EventSource(response).iter_sse()]
    assert [event.data.decode() for event in decode(data, range(0, len(data), 7))] == theirs
    assert b"".join(event.raw for event in decode(data)) == data


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    data = end.join(
        [b": hi", b"event: greeting", b"data: a", b"data: b", b"", b"data:c", b"", b"", b": end", b""]
    )
    assert [(event.data, event.event) for event in decode(data)] == [(b"a\nb", "greeting"), (b"c", None)]


def test_a_stream_that_ends_its_lines_in_cr_is_not_held_back() -> None:
    decoder = EventDecoder()
    assert [event.data for event in decoder.feed(b"data: a\r\r")] == [b"a"]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    decoder = EventDecoder()
    events = decoder.feed(b"data: a\r") + decoder.feed(b"\ndata: b\r\n\r") + decoder.feed(b"\n")
    assert [event.data for event in events] == [b"a\nb"]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert [event.data for event in decode(b"data:  x\n\ndata:y\n\n")] == [b" x", b"y"]


def test_a_byte_order_mark_opens_the_stream_and_is_no_part_of_a_field() -> None:
    assert [event.data for event in decode(codecs.BOM_UTF8 + b"data: a\n\n", [1, 2])] == [b"a"]


def test_a_comment_is_no_event_and_stays_in_the_raw_bytes() -> None:
    [event] = decode(b": keep-alive\n\n: again\ndata: a\n\n")
    assert event.raw == b": again\ndata: a\n\n"


def test_done_is_an_event_of_its_own_and_no_part_of_a_text() -> None:
    events = decode(
        b'data: {"text":"data: [DONE]"}\n\ndata: [DONE]x\n\ndata: a\ndata: [DONE]\n\ndata: [DONE]\n\n'
    )
    assert [event.is_done for event in events] == [False, False, False, True]


def test_an_event_without_its_blank_line_is_only_pending() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.pending == b"data: a\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_long_event_is_refused_after_the_events_before_it(size: int) -> None:
    decoder = EventDecoder(max_event_bytes=64)
    data = b"data: ok\n\n" + b"data: " + b"x" * 100 + b"\n\n"
    seen: list[bytes] = []

    def read_on() -> None:
        for piece in [*cut(data, range(0, len(data), size)), b""]:
            seen.extend([event.data for event in decoder.feed(piece)])

    with pytest.raises(EventTooLong, match="64 bytes") as refusal:
        read_on()
    assert seen == [b"ok"]
    assert isinstance(refusal.value, UpstreamBroken)
    assert decoder.pending == b""


def test_an_event_as_long_as_the_bound_passes() -> None:
    decoder = EventDecoder(max_event_bytes=64)
    data = b"data: " + b"x" * 56 + b"\n\n"
    assert [len(event.raw) for event in decoder.feed(data)] == [64]


def test_the_state_is_visible() -> None:
    decoder = EventDecoder()
    decoder.feed(b"data: a")
    assert repr(decoder) == "<EventDecoder [7 bytes pending]>"
