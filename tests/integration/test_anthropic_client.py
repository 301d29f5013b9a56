"""The `anthropic` library talks to `pointsman up`: its events, and errors in its own shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anthropic import (
    Anthropic,
    APIError,
    APIStatusError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)
from anthropic.types import MessageParam

from tests.integration.programs import MODEL, Programs, Router, ask, until

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(demo: Router) -> Iterator[Anthropic]:
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_is_answered(client: Anthropic) -> None:
    message = client.messages.create(model=MODEL, messages=HELLO, max_tokens=6)
    assert message.content[0].type == "text"
    assert message.content[0].text
    assert message.stop_reason in ("max_tokens", "end_turn")
    assert 1 <= message.usage.output_tokens <= 6


def test_a_streamed_message_is_put_together_by_the_library(client: Anthropic) -> None:
    with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert message.content[0].type == "text"
    assert message.content[0].text == text
    assert message.stop_reason in ("max_tokens", "end_turn")
    assert message.usage.output_tokens >= 1


def test_tokens_are_counted(client: Anthropic) -> None:
    short = client.messages.count_tokens(model=MODEL, messages=HELLO)
    long = client.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "Hello, hello, hello"}]
    )
    assert 0 < short.input_tokens < long.input_tokens


def test_the_count_is_what_the_answer_charges(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
    answer = client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_an_unknown_model_has_its_own_error_type(client: Anthropic) -> None:
    with pytest.raises(NotFoundError, match=MODEL) as raised:
        client.messages.create(model="claude-99", messages=HELLO, max_tokens=1)
    assert raised.value.type == "not_found_error"


def test_what_the_engine_refuses_is_a_bad_request(client: Anthropic) -> None:
    with pytest.raises(BadRequestError):
        client.messages.create(model=MODEL, messages=HELLO, max_tokens=1, extra_body={"temperature": -1})


def test_a_body_that_is_no_json_has_the_shape_of_this_api(demo: Router) -> None:
    answer = ask(f"{demo.url}/v1/messages", method="POST", body=[1])
    assert answer.status == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_full_queue_and_a_fleet_that_is_down(programs: Programs) -> None:
    program, engines = programs.engines()
    limits = {"limits": {"max_in_flight": 1, "queue_size": 0}, "health": {"interval_s": 0.2}}
    router = programs.router(engines, limits)
    with Anthropic(base_url=router.url, api_key="none", max_retries=0) as client:
        with client.messages.create(model=MODEL, messages=HELLO, max_tokens=2000, stream=True) as running:
            next(iter(running))
            with pytest.raises(RateLimitError) as limited:
                client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
        program.kill()
        until(lambda: router.readiness() == 503, "the router is not ready")
        with pytest.raises(InternalServerError) as down:
            client.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert limited.value.type == "rate_limit_error"
    assert (down.value.status_code, down.value.type) == (503, "overloaded_error")


def test_a_stream_that_breaks_ends_with_the_error_event(client: Anthropic, demo: Router) -> None:
    for engine in demo.engines:
        engine.fault(kind="close_early", after_events=4, count=1, path="/v1/messages")
    kinds: list[str] = []
    stream = client.messages.create(model=MODEL, messages=HELLO, max_tokens=500, stream=True)
    with stream, pytest.raises(APIError) as raised:
        kinds.extend(event.type for event in stream)
    assert kinds[0] == "message_start"
    assert "message_stop" not in kinds
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["type"] == "api_error"


def test_a_patience_that_is_over_is_a_timeout_in_words(client: Anthropic, demo: Router) -> None:
    for engine in demo.engines:
        engine.fault(kind="hang_headers", path="/v1/messages")
    with pytest.raises(APIStatusError) as raised:
        client.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=1,
            stream=True,
            extra_headers={"x-stainless-read-timeout": "0.3"},
        )
    assert (raised.value.status_code, raised.value.type) == (504, "timeout_error")
