"""Laws of reading one answer: each shape that an engine was seen to send, and how it must be counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from router.core.sse import EventDecoder
from router.studies.replay.stream import StreamMeter, error_message

WIRE = Path(__file__).resolve().parents[1] / "wire"
"""Streams as recorded from vLLM."""

Event = dict[str, object]


def chat(delta: Event, finish: str | None = None) -> Event:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def plain(text: str, finish: str | None = None) -> Event:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}


ROLE = chat({"role": "assistant", "content": ""})
USAGE: Event = {
    "choices": [],
    "usage": {"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 32}},
}


def read(*events: Event | bytes, step_s: float = 1.0) -> StreamMeter:
    """Feeds the events one per step, the first at 1."""
    meter = StreamMeter()
    for place, event in enumerate(events, 1):
        data = event if isinstance(event, bytes) else msgspec.json.encode(event)
        meter.event(data, place * step_s)
    return meter


def test_vllm_chat_counts_from_the_first_content_and_not_from_the_role() -> None:
    meter = read(
        ROLE, chat({"content": "a"}), chat({"content": "b"}), chat({"content": "c"}, "length"), USAGE
    )
    assert (meter.first, meter.last) == (2.0, 4.0)
    assert meter.itl_us.tolist() == [1_000_000, 1_000_000]
    assert meter.finish_reason == "length"
    assert meter.usage is not None
    assert (meter.usage.prompt_tokens, meter.usage.completion_tokens, meter.usage.cached_tokens) == (
        50,
        5,
        32,
    )
    assert meter.end() is None


def test_a_role_that_comes_with_text_is_a_token() -> None:
    assert read(chat({"role": "assistant", "content": "a"})).first == 1.0


def test_an_empty_text_in_the_middle_is_a_token() -> None:
    """vLLM's first completion token, and characters that are not finished."""
    meter = read(plain(""), plain("is"), plain("", "length"))
    assert (meter.first, meter.last, meter.itl_us.tolist()) == (1.0, 3.0, [1_000_000])


def test_a_separate_finish_event_ends_the_generation_and_is_no_token() -> None:
    meter = read(ROLE, chat({"content": "a"}), chat({"content": None}, "stop"))
    assert (meter.first, meter.last, meter.itl_us.tolist()) == (2.0, 3.0, [])
    assert meter.end() is None


def test_an_answer_of_one_unseen_token_begins_with_its_finish() -> None:
    meter = read(ROLE, chat({}, "length"))
    assert (meter.first, meter.last) == (2.0, 2.0)


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_thoughts_and_tool_calls_are_tokens(delta: Event) -> None:
    assert read(ROLE, chat(delta)).first == 2.0


def test_usage_in_every_event_leaves_the_last_one() -> None:
    first = {**chat({"content": "a"}), "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    last = {**chat({"content": "b"}, "stop"), "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    usage = read(first, last).usage
    assert usage is not None
    assert usage.completion_tokens == 2


def test_done_is_noticed_and_proves_nothing() -> None:
    meter = read(ROLE, chat({"content": "a"}), b"[DONE]")
    assert meter.done
    failure = meter.end()
    assert failure is not None
    assert failure.kind == "cut"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"error": {"message": "engine died", "code": 500}}, "engine died"),
        ({"error": "engine died"}, "engine died"),
        ({"object": "error", "message": "engine died", "code": 500}, "engine died"),
    ],
)
def test_an_error_event_is_a_failure_even_when_done_follows(event: Event, said: str) -> None:
    meter = read(ROLE, chat({"content": "a"}), event, b"[DONE]")
    failure = meter.end()
    assert failure is not None
    assert (failure.kind, failure.message) == ("error_event", said)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_finish_that_nobody_asked_for_is_a_failure(reason: str) -> None:
    failure = read(chat({"content": "a"}, reason), b"[DONE]").end()
    assert failure is not None
    assert failure.kind == "aborted"


@pytest.mark.parametrize("data", [b"{", b"null", b'{"choices": 5}', b"\xff"])
def test_an_event_that_cannot_be_read_is_a_failure(data: bytes) -> None:
    failure = read(data, plain("a", "stop")).end()
    assert failure is not None
    assert failure.kind == "bad_event"


def test_the_first_failure_stays() -> None:
    meter = read({"error": "first"}, {"error": "second"}, chat({"content": "a"}, "stop"))
    failure = meter.end()
    assert failure is not None
    assert failure.message == "first"
    assert meter.first is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no", "code": 404}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": "no"}', "no"),
        (b"plain text", "plain text"),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_the_sentence_is_found_in_every_shape_of_error_body(body: bytes, said: str) -> None:
    assert error_message(body) == said


def recorded(name: str) -> StreamMeter:
    events = EventDecoder().feed((WIRE / name).read_bytes())
    return read(*(event.data for event in events))


@pytest.mark.parametrize(
    ("name", "prompt_tokens", "output_tokens"),
    [("vllm_chat_usage.sse", 19, 3), ("vllm_completions_usage.sse", 3, 3)],
)
def test_recorded_answers_of_vllm_are_successes(name: str, prompt_tokens: int, output_tokens: int) -> None:
    meter = recorded(name)
    assert meter.end() is None
    assert meter.usage is not None
    assert (meter.usage.prompt_tokens, meter.usage.completion_tokens) == (prompt_tokens, output_tokens)
    assert meter.done


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vllm_completions_engine_killed.sse", "error_event"),
        ("vllm_completions_sigterm.sse", "aborted"),
    ],
)
def test_recorded_deaths_of_vllm_are_failures_though_done_follows(name: str, kind: str) -> None:
    meter = recorded(name)
    failure = meter.end()
    assert failure is not None
    assert failure.kind == kind
    assert meter.done
