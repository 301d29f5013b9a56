"""The `openai` library talks to `pointsman up` and notices nothing but the answers, and the right errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.integration.programs import MODEL, Programs, Router, until

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
ARGUMENTS = '{"city":"text","days":1}'
"""What the mock's model calls WEATHER with."""


@pytest.fixture
def client(demo: Router) -> Iterator[OpenAI]:
    with OpenAI(base_url=demo.base_url, api_key="none", max_retries=0) as client:
        yield client


def exactly(tokens: int) -> dict[str, object]:
    """Makes the engine generate so many tokens and no fewer."""
    return {"ignore_eos": True, "max_tokens": tokens}


def test_chat_answers_with_text_and_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=exactly(7))
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


def test_a_streamed_chat_is_the_same_text_in_pieces(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, seed=3, extra_body=exactly(9))
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, seed=3, extra_body=exactly(9), stream=True
    )
    with stream:
        events = list(stream)
    assert (
        "".join(event.choices[0].delta.content or "" for event in events) == whole.choices[0].message.content
    )
    assert events[-1].choices[0].finish_reason == "length"
    assert all(event.usage is None for event in events)


def test_usage_comes_in_the_stream_when_it_was_asked_for(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=exactly(5),
    )
    with stream:
        *_, last = stream
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


def test_completions_answer_for_each_prompt(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], extra_body=exactly(4))
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_completions_stream(client: OpenAI) -> None:
    with client.completions.create(model=MODEL, prompt="one", stream=True, extra_body=exactly(4)) as stream:
        *_, last = stream
    assert last.choices[0].finish_reason == "length"


def test_embeddings_are_vectors_in_order(client: OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [entry.index for entry in answer.data] == [0, 1]
    assert answer.data[0].embedding
    assert answer.data[0].embedding != answer.data[1].embedding


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("nobody")


def test_a_response_is_stored_continued_and_found_where_it_was_made(client: OpenAI) -> None:
    """Four engines: only the owner knows the response."""
    first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=5)
    assert first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model=MODEL, input="More", previous_response_id=first.id, max_output_tokens=5
    )
    assert second.previous_response_id == first.id


def test_a_response_streams_up_to_its_completion(client: OpenAI) -> None:
    with client.responses.create(model=MODEL, input="Hello", stream=True, max_output_tokens=5) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_a_response_that_nobody_holds_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        client.responses.retrieve("resp_1234567890")


def test_tools_are_called(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required"
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", ARGUMENTS)


def test_tool_calls_stream_in_pieces(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stream=True,
    )
    with stream:
        calls = [call for event in stream for call in event.choices[0].delta.tool_calls or []]
    assert calls[0].function is not None
    assert calls[0].function.name == "weather"
    assert "".join((call.function and call.function.arguments) or "" for call in calls) == ARGUMENTS


def test_two_choices_stream_side_by_side(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, n=2, stream=True, extra_body=exactly(6)
    )
    with stream:
        choices = [choice for event in stream for choice in event.choices]
    assert sorted(choice.index for choice in choices if choice.finish_reason) == [0, 1]
    texts = ["".join(c.delta.content or "" for c in choices if c.index == index) for index in (0, 1)]
    assert all(texts)


def test_logprobs_come_through(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2, extra_body=exactly(3)
    )
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content or []
    assert len(tokens) == 3
    assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_the_answer_says_which_worker_gave_it(client: OpenAI, demo: Router) -> None:
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert answer.headers["x-pointsman-worker"] in {engine.name for engine in demo.engines}
    assert answer.headers["x-request-id"]


# --- errors ------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match=MODEL) as raised:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"


def test_a_prompt_that_no_engine_can_hold_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="context length"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 40_000}])


@pytest.mark.parametrize("stream", [False, True])
def test_a_value_that_the_engine_refuses_is_a_bad_request(client: OpenAI, *, stream: bool) -> None:
    with pytest.raises(BadRequestError):
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1, stream=stream)


def test_a_full_queue_is_a_rate_limit_and_a_fleet_that_is_down_is_unavailable(programs: Programs) -> None:
    program, engines = programs.engines()
    limits = {"limits": {"max_in_flight": 1, "queue_size": 0}, "health": {"interval_s": 0.2}}
    router = programs.router(engines, limits)
    with OpenAI(base_url=router.base_url, api_key="none", max_retries=0) as client:
        running = client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_body=exactly(2000)
        )
        with running:
            next(iter(running))
            with pytest.raises(RateLimitError) as limited:
                client.chat.completions.create(model=MODEL, messages=HELLO)
        router.assert_idle()
        program.kill()
        until(lambda: router.readiness() == 503, "the router is not ready")
        with pytest.raises(InternalServerError) as down:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        assert [model.id for model in client.models.list()] == [MODEL]
    assert limited.value.code == "queue_full"
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
    assert (down.value.status_code, down.value.code) == (503, "no_worker_available")
    assert "127.0.0.1" not in down.value.message


def test_an_engine_that_crashes_in_the_middle_never_looks_complete(client: OpenAI, demo: Router) -> None:
    for engine in demo.engines:
        engine.fault(kind="crash", after_events=3, count=1, delay_s=0)
    reasons: list[str | None] = []
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, extra_body=exactly(500))
    with stream, pytest.raises(APIError) as raised:
        reasons.extend(choice.finish_reason for event in stream for choice in event.choices)
    assert reasons
    assert not any(reasons)
    assert raised.value.code == "upstream_broken"
    for engine in demo.engines:
        engine.heal()
    until(lambda: all(w["state"] == "ready" for w in demo.state()["workers"]), "all workers are back")


def test_a_client_that_waits_less_is_believed(client: OpenAI, demo: Router) -> None:
    for engine in demo.engines:
        engine.fault(kind="hang_headers", path="/v1/chat")
    with pytest.raises(APIStatusError) as raised:
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            stream=True,
            timeout=60,
            extra_headers={"x-stainless-read-timeout": "0.3"},
        )
    assert raised.value.status_code == 504
    assert raised.value.code == "deadline_exceeded"


def test_a_client_that_gives_up_leaves_nothing_behind(demo: Router) -> None:
    for engine in demo.engines:
        engine.fault(kind="hang_headers", path="/v1/chat")
    hasty = OpenAI(base_url=demo.base_url, api_key="none", max_retries=0, timeout=0.5)
    with hasty, pytest.raises(APITimeoutError):
        hasty.chat.completions.create(model=MODEL, messages=HELLO)
    demo.assert_idle(5)


# --- many at once ---------------------------------------------------------------------------------------


async def test_two_hundred_streams_at_once_are_all_complete(demo: Router) -> None:
    workers: set[str] = set()
    async with AsyncOpenAI(base_url=demo.base_url, api_key="none", max_retries=0) as client:

        async def stream(number: int) -> int:
            tokens = 10 + number % 20
            events = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Question {number}"}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body=exactly(tokens),
            )
            workers.add(events.response.headers["x-pointsman-worker"])
            usage, reasons = None, []
            async for event in events:
                usage = event.usage
                reasons += [choice.finish_reason for choice in event.choices if choice.finish_reason]
            assert reasons == ["length"]
            assert usage is not None
            return usage.completion_tokens - tokens

        assert await asyncio.gather(*map(stream, range(200))) == [0] * 200
    assert workers == {engine.name for engine in demo.engines}
