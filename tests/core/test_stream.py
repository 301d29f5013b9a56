"""Laws of the stream scanner: it forwards bytes as they came and reads what real engines were seen to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answer import Usage
from router.core.errors import NoWorker, QueueFull, RouterError, UpstreamBroken
from router.core.request import Api
from router.core.sse import EventDecoder
from router.core.stream import StreamScanner
from router.core.stream_error import error_event, keep_alive
from tests.core.stream_examples import (
    APIS,
    DONE,
    STREAMS,
    api_of,
    by,
    chunk,
    role,
    scan,
    sse,
    usage_chunk,
)

# --- forwarding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 64, 300, 100_000])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_leave_byte_for_byte_however_they_are_cut(path: Path, size: int) -> None:
    data = path.read_bytes()
    _, forwarded = scan(api_of(path), by(size, data))
    assert forwarded == data


@pytest.mark.parametrize("size", [1, 3, 64, 300, 100_000])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_facts_do_not_depend_on_the_cutting(path: Path, size: int) -> None:
    data = path.read_bytes()
    for hide in (False, True):
        pieces, _ = scan(api_of(path), by(size, data), hide_usage=hide)
        whole, _ = scan(api_of(path), [data], hide_usage=hide)
        events, _ = scan(api_of(path), data.splitlines(keepends=True), hide_usage=hide)
        assert pieces.facts == whole.facts == events.facts


@pytest.mark.parametrize("size", [1, 3, 64, 300, 100_000])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_hiding_usage_drops_the_usage_only_event_and_nothing_else(path: Path, size: int) -> None:
    data = path.read_bytes()
    _, forwarded = scan(api_of(path), by(size, data), hide_usage=True)
    kept = [event.raw for event in EventDecoder().feed(data) if b'"choices":[],"usage":{' not in event.data]
    assert forwarded == b"".join(kept)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("spaced", [False, True])
def test_the_usage_event_is_dropped_in_any_spelling(end: bytes, spaced: bool) -> None:
    before = role() + chunk(spaced=spaced) + chunk(finish="stop", spaced=spaced)
    parts = [part.replace(b"\n", end) for part in (before, usage_chunk(spaced=spaced), DONE)]
    for size in (1, 5, 10_000):
        scanner, forwarded = scan(Api.CHAT, by(size, b"".join(parts)), hide_usage=True)
        assert forwarded == parts[0] + parts[2]
        assert scanner.facts.usage == Usage(7, 3, None)
        assert scanner.complete


def test_a_partial_event_is_forwarded_at_once_when_nothing_is_hidden() -> None:
    scanner = StreamScanner(Api.CHAT)
    assert scanner.feed(b'data: {"id"') == b'data: {"id"'
    assert not scanner.at_boundary


def test_a_partial_event_is_held_only_until_it_has_begun_a_choice() -> None:
    scanner = StreamScanner(Api.CHAT, hide_usage=True)
    data = chunk()
    begun = data.index(b'"choices":[{') + len(b'"choices":[{')
    pieces = [data[: begun - 1], data[begun - 1 : begun], data[begun:]]
    forwarded = [(scanner.feed(piece), scanner.at_boundary) for piece in pieces]
    assert forwarded == [(b"", True), (data[:begun], False), (data[begun:], True)]


def test_a_whole_read_is_forwarded_without_a_copy() -> None:
    for hide in (False, True):
        scanner = StreamScanner(Api.CHAT, hide_usage=hide)
        for data in (role(), chunk("a"), chunk("b"), chunk("c") + chunk("d"), DONE):
            assert scanner.feed(data) is data


def test_what_is_held_when_the_stream_breaks_is_not_lost() -> None:
    scanner = StreamScanner(Api.CHAT, hide_usage=True)
    torn = usage_chunk()[:-20]
    assert scanner.feed(torn) == b""
    assert scanner.flush() == torn
    assert scanner.flush() == b""


def test_usage_beside_a_choice_is_never_dropped() -> None:
    data = role() + chunk(finish="stop", usage={"prompt_tokens": 1, "completion_tokens": 1})
    scanner, forwarded = scan(Api.CHAT, [data], hide_usage=True)
    assert forwarded == data
    assert scanner.facts.usage == Usage(1, 1, None)


def test_an_empty_choices_chunk_without_usage_is_kept_and_holds_no_token() -> None:
    filters = sse({"id": "1", "choices": [], "prompt_filter_results": [{"x": 1}]})
    null_usage = sse({"id": "1", "choices": [], "usage": None}, spaced=True)
    data = filters + role() + chunk() + null_usage + filters + chunk()
    scanner, forwarded = scan(Api.CHAT, [data], hide_usage=True)
    assert forwarded == data
    assert scanner.facts.content_events == 2


TEXT = st.text(
    alphabet=st.sampled_from('ab "\\\n\r\u2028é漢{}:,[]') | st.characters(exclude_categories=["Cs"])
)

EVENTS = st.lists(
    st.one_of(
        st.builds(
            chunk,
            TEXT,
            index=st.integers(0, 2),
            finish=st.sampled_from([None, None, None, "stop", "abort"]),
            ids=st.none() | st.lists(st.integers(0, 9), max_size=3),
            spaced=st.booleans(),
            usage=st.sampled_from([None, {"prompt_tokens": 2, "completion_tokens": 5}]),
        ),
        st.builds(chunk, TEXT),
        st.builds(usage_chunk, st.integers(0, 99), spaced=st.booleans()),
        st.just(b": keep-alive\n\n"),
        st.just(b"data: garbage\n\n"),
        st.just(DONE),
    ),
    max_size=12,
)


@given(EVENTS, st.lists(st.integers(1, 700), max_size=20), st.booleans())
def test_scanning_by_any_cut_equals_scanning_event_by_event_in_full(
    events: list[bytes], sizes: list[int], hide: bool
) -> None:
    """The fast paths (no JSON, repeated shapes) and the slow one must agree on everything."""
    data = b"".join(events)
    pieces: list[bytes] = []
    rest = data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    fast, forwarded = scan(Api.CHAT, [*pieces, rest], hide_usage=hide)
    # CRLF keeps every event off the fast paths, and means the same
    slow, slow_forwarded = scan(Api.CHAT, [data.replace(b"\n", b"\r\n")], hide_usage=hide)
    assert fast.facts == slow.facts
    assert forwarded == slow_forwarded.replace(b"\r\n", b"\n")
    assert fast.complete == slow.complete


@given(st.lists(TEXT, min_size=1, max_size=8))
def test_no_text_of_a_model_is_taken_for_a_fact(texts: list[str]) -> None:
    marks = ['"usage":{"completion_tokens":9}', '"finish_reason":"abort"', '{"error":{}}', "data: [DONE]\n\n"]
    events = [chunk(text + mark) for text in texts for mark in marks]
    scanner, forwarded = scan(Api.CHAT, [role(), *events], hide_usage=True)
    assert forwarded == role() + b"".join(events)
    assert scanner.facts.content_events == len(events)
    assert not scanner.facts.failed
    assert not scanner.facts.done
    assert scanner.facts.usage is None
    assert scanner.facts.finish_reasons == {}


# --- the router's own events -----------------------------------------------------------------------------


@pytest.mark.parametrize("api", list(APIS.values()))
@pytest.mark.parametrize("error", [UpstreamBroken("The worker broke off."), NoWorker("None left.")])
def test_our_error_event_is_read_as_an_error_by_our_own_scanner(api: Api, error: RouterError) -> None:
    data = error_event(api, error, answer_id="x", model="m", sequence_number=3)
    scanner, _ = scan(api, [data])
    assert scanner.facts.error is not None
    assert scanner.facts.error.message == error.message
    assert scanner.at_boundary
    assert not scanner.complete
    assert b"[DONE]" not in data


def test_the_openai_error_event_has_the_four_fields() -> None:
    data = error_event(Api.CHAT, QueueFull("Too many wait."))
    assert json.loads(data.removeprefix(b"data: ")) == {
        "error": {
            "message": "Too many wait.",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
    }


def test_the_messages_error_event_has_anthropics_type() -> None:
    data = error_event(Api.MESSAGES, NoWorker("None left."))
    assert data == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"None left."}}\n\n'
    )


@pytest.mark.parametrize("api", list(APIS.values()))
def test_a_keep_alive_is_no_data(api: Api) -> None:
    scanner, _ = scan(api, [keep_alive(api)])
    assert scanner.facts.data_events == 0
    assert scanner.facts.malformed == 0
    assert scanner.at_boundary
