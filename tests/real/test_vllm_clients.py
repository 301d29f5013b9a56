"""vLLM behind the router, seen through the client libraries that people use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.real.vllm import CONTEXT_TOKENS, MODEL_NAME, Pair, chat
from tests.real.vllm_bodies import CHAT, TOO_LONG
from tests.real.wire import ask

pytestmark = pytest.mark.timeout(300)
HELLO: Any = [{"role": "user", "content": "hello"}]
ASK: Any = {"model": MODEL_NAME, "messages": HELLO, "max_tokens": 24, "temperature": 0}


@pytest.fixture
def client(vllm: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{vllm.router.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def claude(vllm: Pair) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=vllm.router.url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture(autouse=True)
def first_law(vllm: Pair) -> Iterator[None]:
    yield
    vllm.router.assert_idle()


def test_chat_is_one_text_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    with client.chat.completions.create(**ASK, stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_usage_comes_when_it_is_asked_for(client: openai.OpenAI) -> None:
    with client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}) as stream:
        last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 24


def test_two_choices_come_in_one_stream(client: openai.OpenAI) -> None:
    two: Any = {**ASK, "n": 2, "temperature": 1, "seed": 7}
    whole = client.chat.completions.create(**two)
    texts = ["", ""]
    with client.chat.completions.create(**two, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]


def test_log_probabilities_come_with_each_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 24
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)


def test_token_ids_come_with_the_events(client: openai.OpenAI) -> None:
    with client.chat.completions.create(**ASK, stream=True, extra_body={"return_token_ids": True}) as stream:
        chunks: Any = list(stream)
    ids = [
        token
        for chunk in chunks
        for choice in chunk.choices
        for token in getattr(choice, "token_ids", None) or []
    ]
    assert bytes(ids).decode() == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert len(ids) == 24
    assert chunks[0].prompt_token_ids


def test_a_prompt_may_be_token_ids(client: openai.OpenAI) -> None:
    common: Any = {"model": MODEL_NAME, "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(prompt="Hello", **common)
    by_ids = client.completions.create(prompt=list(b"Hello"), **common)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 5


def test_responses_are_one_text_streamed_and_not(client: openai.OpenAI) -> None:
    common: Any = {"model": MODEL_NAME, "input": "hello", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**common)
    with client.responses.create(**common, stream=True) as stream:
        events: Any = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.usage.output_tokens == 12


def test_messages_are_one_text_streamed_and_not(claude: anthropic.Anthropic) -> None:
    common: Any = {"model": MODEL_NAME, "messages": HELLO, "max_tokens": 12}
    common["extra_body"] = {"temperature": 0}
    whole: Any = claude.messages.create(**common)
    with claude.messages.stream(**common) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text
    assert last.stop_reason == whole.stop_reason == "max_tokens"
    assert last.usage.output_tokens == 12


def test_tokens_of_messages_are_counted(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model=MODEL_NAME, messages=HELLO)
    answer = claude.messages.create(model=MODEL_NAME, messages=HELLO, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens


def test_unknown_models_are_404_in_both_dialects(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.NotFoundError, match=f"`{MODEL_NAME}`"):
        client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(anthropic.NotFoundError, match=f"`{MODEL_NAME}`"):
        claude.messages.create(model="nope", messages=HELLO, max_tokens=1)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_prompt_that_is_too_long_is_400_in_the_engines_words(client: openai.OpenAI, streamed: bool) -> None:
    messages: Any = [{"role": "user", "content": TOO_LONG}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        client.chat.completions.create(model=MODEL_NAME, messages=messages, stream=streamed)


def test_bad_json_is_400_without_an_engine(vllm: Pair) -> None:
    answer = ask(vllm.router.port, "POST", CHAT, b'{"model": "tiny", ')
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "bad_request"
    assert "x-pointsman-worker" not in answer.headers


def test_models_of_both_engines_are_one_list_with_their_context(client: openai.OpenAI) -> None:
    listed: Any = list(client.models.list())
    assert [(model.id, model.max_model_len) for model in listed] == [(MODEL_NAME, CONTEXT_TOKENS)]


def test_text_survives_the_tokenizer_and_back(vllm: Pair) -> None:
    tokens = ask(vllm.router.port, "POST", "/tokenize", {"model": MODEL_NAME, "prompt": "über"}).json()
    assert tokens["tokens"] == list("über".encode())
    asked = {"model": MODEL_NAME, "tokens": tokens["tokens"]}
    assert ask(vllm.router.port, "POST", "/detokenize", asked).json() == {"prompt": "über"}


def test_both_engines_get_their_share(vllm: Pair) -> None:
    served = [ask(vllm.router.port, "POST", CHAT, chat()).headers["x-pointsman-worker"] for _ in range(4)]
    assert len(set(served)) == 2
