"""Laws of the stream scanner: it forwards bytes as they came and reads what real engines were seen to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answer import Usage, read_answer
from router.core.errors import InternalError, NoWorker, QueueFull, RouterError, UpstreamBroken
from router.core.request import Api
from router.core.sse import EventDecoder, EventTooLong
from router.core.stream import StreamScanner
from router.core.stream_error import error_event, keep_alive

WIRE = Path(__file__).parents[1] / "wire"
STREAMS = sorted(WIRE.glob("*.sse"))
APIS = {
    "chat": Api.CHAT,
    "completions": Api.COMPLETIONS,
    "messages": Api.MESSAGES,
    "responses": Api.RESPONSES,
}
DONE = b"data: [DONE]\n\n"


def api_of(path: Path) -> Api:
    return APIS[path.stem.split("_")[1]]


def recorded(name: str) -> bytes:
    return (WIRE / f"{name}.sse").read_bytes()


def scan(api: Api, pieces: Iterable[bytes], **options: Any) -> tuple[StreamScanner, bytes]:
    scanner = StreamScanner(api, **options)
    forwarded = b"".join([scanner.feed(piece) for piece in pieces])
    return scanner, forwarded + scanner.flush()


def by(size: int, data: bytes) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def sse(value: object, *, spaced: bool = False) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def chunk(
    text: str | None = "a",
    *,
    index: int = 0,
    finish: str | None = None,
    ids: list[int] | None = None,
    spaced: bool = False,
    **extra: object,
) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    event = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        **extra,
    }
    return sse(event, spaced=spaced)


def role(index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def usage_chunk(completion: int = 3, *, spaced: bool = False) -> bytes:
    usage = {"prompt_tokens": 7, "total_tokens": 7 + completion, "completion_tokens": completion}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    return sse(event, spaced=spaced)


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


# --- what engines say ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "usage", "reasons", "content_events"),
    [
        ("vllm_chat_plain", None, {0: "length"}, 3),
        ("vllm_chat_usage", Usage(19, 3, 0), {0: "length"}, 3),
        ("vllm_chat_continuous", Usage(19, 3, 0), {0: "length"}, 3),
        ("vllm_chat_spec_decode", Usage(21, 24, 0), {0: "length"}, 8),
        ("vllm_completions_usage", Usage(3, 3, 0), {0: "length"}, 3),
        ("vllm_completions_n2", Usage(2, 6, 0), {0: "length", 1: "length"}, 6),
        ("vllm_messages", Usage(19, 2, 0), {0: "max_tokens"}, 2),
        ("vllm_responses", Usage(19, 2, 0), {0: "max_output_tokens"}, 2),
    ],
)
def test_a_healthy_recorded_stream_is_complete(
    name: str, usage: Usage | None, reasons: dict[int, str], content_events: int
) -> None:
    scanner, _ = scan(api_of(WIRE / name), by(200, recorded(name)), choices=len(reasons))
    assert scanner.complete
    facts = scanner.facts
    assert not facts.failed
    assert facts.done
    assert facts.usage == usage
    assert facts.finish_reasons == reasons
    assert facts.content_events == content_events


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_stream_cut_before_its_end_is_not_complete(path: Path) -> None:
    events = [event.raw for event in EventDecoder().feed(path.read_bytes())]
    for kept in range(max(len(events) - 3, 0)):
        scanner, _ = scan(api_of(path), events[:kept], choices=2)
        assert not scanner.complete


def test_an_error_event_followed_by_done_is_a_failure() -> None:
    scanner, _ = scan(Api.COMPLETIONS, [recorded("vllm_completions_engine_killed")])
    facts = scanner.facts
    assert facts.done
    assert facts.failed
    assert not scanner.complete
    assert facts.error is not None
    assert (facts.error.status, facts.error.type, facts.error.first) == (500, "InternalServerError", False)
    assert facts.error.message.startswith("EngineCore encountered an issue")


def test_an_abort_that_nobody_asked_for_is_a_failure() -> None:
    scanner, _ = scan(Api.COMPLETIONS, [recorded("vllm_completions_sigterm")])
    assert scanner.facts.aborted
    assert scanner.facts.failed
    assert not scanner.complete


def test_an_error_as_the_first_event_is_known_to_be_the_first() -> None:
    error = {"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}}
    scanner, _ = scan(Api.CHAT, [b": keep-alive\n\n", sse(error, spaced=True) + DONE])
    assert scanner.facts.error is not None
    assert scanner.facts.error.first
    assert scanner.facts.error.status == 503
    assert scanner.facts.data_events == 0


@pytest.mark.parametrize(
    ("event", "status", "message"),
    [
        (
            {"error": {"object": "error", "message": "out", "type": "BadRequestError", "code": 400}},
            400,
            "out",
        ),
        (
            {"object": "error", "message": "flat", "type": "abort_error", "param": None, "code": 500},
            500,
            "flat",
        ),
        ({"error": {"message": "text code", "type": "server_error", "code": "502"}}, 502, "text code"),
        ({"error": {"message": "named", "code": "context_length_exceeded"}}, None, "named"),
        ({"error": "a plain string"}, None, "a plain string"),
        ({"detail": "from FastAPI"}, None, "from FastAPI"),
        ({"error": {"message": None, "code": True}}, None, "null"),
    ],
)
def test_errors_of_every_dialect_are_errors(
    event: dict[str, object], status: int | None, message: str
) -> None:
    for before in (b"", role() + chunk("a") + chunk("b")):
        scanner, _ = scan(Api.CHAT, [before, sse(event)])
        assert scanner.facts.error is not None
        assert (scanner.facts.error.status, scanner.facts.error.message) == (status, message)
        assert scanner.facts.error.first == (not before)


def test_comments_before_the_first_event_are_no_data() -> None:
    scanner, _ = scan(Api.CHAT, [b": keep-alive\n\n", b": keepalive 1/1\r\n\r\n"])
    assert (scanner.facts.comments, scanner.facts.data_events) == (2, 0)
    assert not scanner.complete


def test_null_usage_in_every_chunk_is_no_usage() -> None:
    scanner, _ = scan(Api.CHAT, [chunk(text, usage=None) for text in "abcd"])
    assert scanner.facts.usage is None
    assert scanner.facts.generated_tokens is None
    assert scanner.facts.content_events == 4


def test_running_usage_is_counted_by_choice() -> None:
    scanner = StreamScanner(Api.CHAT, choices=2)
    for index, tokens in [(0, 1), (1, 1), (0, 3), (1, 2)]:
        scanner.feed(chunk(index=index, usage={"prompt_tokens": 5, "completion_tokens": tokens}))
    assert scanner.facts.generated_tokens == 5
    scanner.feed(usage_chunk(6))
    assert scanner.facts.generated_tokens == 6


def test_token_ids_are_counted_when_no_usage_is_there() -> None:
    scanner, _ = scan(Api.CHAT, [role(), chunk(ids=[1]), chunk(ids=[2, 3]), chunk(ids=[]), chunk(ids=None)])
    assert scanner.facts.generated_tokens == 3


def test_the_opening_chunk_with_the_role_holds_no_token() -> None:
    scanner, _ = scan(Api.CHAT, [role(0), role(1), chunk("a"), chunk("")])
    assert scanner.facts.content_events == 2


def test_a_role_in_every_chunk_does_not_hide_the_tokens() -> None:
    event = {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}}]}
    scanner, _ = scan(Api.CHAT, [sse(event)] * 3)
    assert scanner.facts.content_events == 3


def test_without_done_every_choice_must_have_finished() -> None:
    scanner = StreamScanner(Api.CHAT, choices=2)
    scanner.feed(role(0) + role(1) + chunk(index=0, finish="stop"))
    assert not scanner.complete
    scanner.feed(chunk(index=1, finish="length"))
    assert scanner.complete


def test_several_choices_in_one_chunk_are_all_read() -> None:
    choices = [
        {"index": 0, "delta": {"content": "a"}, "finish_reason": None},
        {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
    ]
    scanner, _ = scan(Api.CHAT, [role(), chunk(), sse({"id": "1", "choices": choices})], choices=2)
    assert scanner.facts.finish_reasons == {1: "stop"}


def test_garbage_is_counted_as_garbage_and_is_no_answer() -> None:
    scanner, forwarded = scan(Api.CHAT, [b"data: <html>\n\n", b"data: [1]\n\n", b"data: \xff\xfe\n\n"])
    assert (scanner.facts.malformed, scanner.facts.data_events) == (3, 0)
    assert forwarded == b"data: <html>\n\ndata: [1]\n\ndata: \xff\xfe\n\n"


def test_odd_types_in_an_event_break_nothing() -> None:
    odd = [
        {"choices": None}, {"choices": {}}, {"choices": [None, 3]}, {"choices": [{"index": "x"}]},
        {"choices": [], "usage": {"completion_tokens": "many", "prompt_tokens": -1}},
        {"usage": [], "choices": []},
        {"choices": [{"finish_reason": {"type": "abort", "message": "x"}}]}, {"choices": [{"delta": []}]},
        {"id": 5, "error": None},
    ]  # fmt: skip
    scanner, _ = scan(Api.CHAT, [sse(event) for event in odd])
    assert scanner.facts.data_events == len(odd)
    assert scanner.facts.aborted
    for api in (Api.MESSAGES, Api.RESPONSES):
        events: list[object] = [
            {"type": "message_start", "message": 3}, {"type": "message_delta", "delta": 3, "usage": 4},
            {"type": "response.completed", "response": []}, {"type": 4},
            {"type": "response.created", "response": {}},
        ]  # fmt: skip
        scanner, _ = scan(api, [sse(event) for event in events])
        assert scanner.facts.malformed == 0


def test_done_within_messages_promises_nothing() -> None:
    scanner, _ = scan(Api.MESSAGES, [DONE])
    assert not scanner.complete


def test_an_anthropic_error_event_is_an_error() -> None:
    event = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    scanner, _ = scan(Api.MESSAGES, [b'event: ping\ndata: {"type":"ping"}\n\n', event])
    assert scanner.facts.error is not None
    assert (scanner.facts.error.type, scanner.facts.error.first) == ("overloaded_error", True)
    assert scanner.facts.data_events == 0


def test_cached_tokens_of_messages_are_a_part_of_the_prompt() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2}
    start = {"type": "message_start", "message": {"id": "msg_1", "usage": usage}}
    scanner, _ = scan(Api.MESSAGES, [sse(start)])
    assert scanner.facts.usage == Usage(42, None, 30)
    assert scanner.facts.answer_id == "msg_1"


def test_the_id_of_a_response_is_known_from_its_first_event() -> None:
    events = [event.raw for event in EventDecoder().feed(recorded("vllm_responses"))]
    scanner, _ = scan(Api.RESPONSES, events[:1])
    assert scanner.facts.answer_id == "resp_80cafd6bdc4aadc0"


def test_a_failed_response_is_an_error_and_an_end() -> None:
    response = {"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "broke"}}
    event = {"type": "response.failed", "response": response}
    scanner, _ = scan(Api.RESPONSES, [b"event: response.failed\n" + sse(event)])
    assert scanner.facts.done
    assert scanner.facts.error is not None
    assert scanner.facts.error.message == "broke"
    assert not scanner.complete


def test_spare_blank_lines_are_still_a_boundary() -> None:
    scanner = StreamScanner(Api.CHAT)
    scanner.feed(role() + b"\n")
    assert scanner.at_boundary


def test_an_endless_event_is_refused() -> None:
    scanner = StreamScanner(Api.CHAT, max_event_bytes=100)
    with pytest.raises(EventTooLong):
        scanner.feed(b"data: " + b"x" * 200)


def test_an_api_without_streams_has_no_scanner() -> None:
    with pytest.raises(InternalError):
        StreamScanner(Api.OTHER)


def test_the_state_of_a_stream_is_visible() -> None:
    scanner, _ = scan(Api.CHAT, [role(), chunk()])
    assert repr(scanner) == "<StreamScanner chat [2 events | open]>"
    scanner.feed(DONE)
    assert repr(scanner) == "<StreamScanner chat [3 events | complete]>"


# --- whole answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "usage", "reason", "answer_id"),
    [
        (Api.CHAT, Usage(19, 3, 0), "length", "chatcmpl-a8c56ba752f0d734"),
        (Api.COMPLETIONS, Usage(2, 3, 0), "length", "cmpl-8f1e4640a339d128"),
        (Api.MESSAGES, Usage(17, 4, 0), "max_tokens", "chatcmpl-b5e6479d0c945f8f"),
        (Api.RESPONSES, Usage(19, 2, 0), "max_output_tokens", "resp_80cafd6bdc4aadc0"),
    ],
)
def test_recorded_whole_answers_are_read(api: Api, usage: Usage, reason: str, answer_id: str) -> None:
    answer = read_answer(api, (WIRE / f"vllm_{api.value}.json").read_bytes())
    assert answer.usage == usage
    assert answer.finish_reasons == {0: reason}
    assert answer.id == answer_id
    assert answer.error is None
    assert not answer.aborted


def test_an_aborted_whole_answer_is_seen() -> None:
    choices = [{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "abort"}]
    assert read_answer(Api.CHAT, json.dumps({"id": "1", "choices": choices}).encode()).aborted


def test_an_error_body_is_no_answer() -> None:
    answer = read_answer(Api.CHAT, b'{"object":"error","message":"no","type":"NotFound","code":404}')
    assert answer.error is not None
    assert answer.error.status == 404


@given(st.binary(max_size=60))
def test_any_bytes_make_some_answer(data: bytes) -> None:
    for api in (Api.CHAT, Api.MESSAGES, Api.RESPONSES):
        assert read_answer(api, data).usage is None


def test_an_embedding_answer_has_prompt_usage_only() -> None:
    data = b'{"id":"embd-1","object":"list","data":[],"usage":{"prompt_tokens":4,"total_tokens":4}}'
    assert read_answer(Api.OTHER, data).usage == Usage(4, None, None)


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
