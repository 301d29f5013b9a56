"""What engines say in a stream, or in a whole answer, whatever their dialect and however they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answer import Usage, read_answer
from router.core.errors import InternalError
from router.core.request import Api
from router.core.sse import EventDecoder, EventTooLong
from router.core.stream import StreamScanner
from tests.core.stream_examples import (
    DONE,
    STREAMS,
    WIRE,
    api_of,
    by,
    chunk,
    role,
    scan,
    sse,
    usage_chunk,
)


def recorded(name: str) -> bytes:
    return (WIRE / f"{name}.sse").read_bytes()


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
