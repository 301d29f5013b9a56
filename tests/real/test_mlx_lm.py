"""mlx-lm behind the router: a real engine of HTTP/1.0, bodies that end by closing, comments before data."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.real.mlx import MODEL_NAME, START_S, Pair, chat, completion, pair, start
from tests.real.processes import until
from tests.real.stage import alike
from tests.real.wire import Exchange, ask

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("mlx-lm")]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = 2000


@pytest.fixture(scope="module")
def mlx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("mlx-lm")) as running:
        yield running


@pytest.fixture(autouse=True)
def first_law(mlx: Pair) -> Iterator[None]:
    yield
    mlx.router.assert_idle()


@pytest.fixture
def client(mlx: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{mlx.router.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


BODIES = {
    "chat": (CHAT, chat()),
    "chat, streamed": (CHAT, chat(stream=True)),
    "chat, streamed with usage": (CHAT, chat(stream=True, stream_options={"include_usage": True})),
    "chat, streamed without usage": (CHAT, chat(stream=True, stream_options={"include_usage": False})),
    "chat with log probabilities": (CHAT, chat(logprobs=True, top_logprobs=3)),
    "chat with an unknown field": (CHAT, chat(nobody_knows_this={"deep": [1, None]})),
    "chat with a stop word": (CHAT, chat(stop=["U"])),
    "completion": (COMPLETIONS, completion()),
    "completion, streamed": (COMPLETIONS, completion(stream=True)),
    "completion, streamed with usage": (
        COMPLETIONS,
        completion(stream=True, stream_options={"include_usage": True}),
    ),
    "completion with log probabilities": (COMPLETIONS, completion(logprobs=3)),
    "wrong type": (CHAT, chat(temperature="hot")),
    "no messages": (CHAT, {"model": MODEL_NAME}),
    "token ids, which it does not take": (COMPLETIONS, {"model": MODEL_NAME, "prompt": [72, 101, 108]}),
    "embeddings, which it does not have": ("/v1/embeddings", {"model": MODEL_NAME, "input": "a"}),
}


@pytest.mark.parametrize("name", BODIES)
def test_every_byte_of_the_engine_reaches_the_client(mlx: Pair, name: str) -> None:
    path, body = BODIES[name]
    for engine in mlx.engines:  # fills both prefix caches: how much was cached is part of the answer
        ask(engine.port, "POST", path, body)
    direct = ask(mlx.engines[0].port, "POST", path, body)
    for _ in mlx.engines:
        routed = ask(mlx.router.port, "POST", path, body)
        assert (routed.status, alike(routed.body)) == (direct.status, alike(direct.body))
        assert routed.clean
        assert routed.headers["content-type"] == direct.headers["content-type"]
        assert routed.headers["x-request-id"]


def test_the_engine_speaks_http_1_0_and_comments_before_data(mlx: Pair) -> None:
    body = chat("a prompt that nobody has sent before", stream=True)
    with Exchange(mlx.engines[0].port, "POST", CHAT, body) as exchange:
        answer = exchange.rest()
        assert exchange.response.version == 10
    assert "transfer-encoding" not in answer.headers
    assert "content-length" not in answer.headers
    assert answer.body.startswith(b": keepalive ")


def test_the_client_gets_http_1_1_with_a_framed_end(mlx: Pair) -> None:
    with Exchange(mlx.router.port, "POST", CHAT, chat(stream=True)) as exchange:
        answer = exchange.rest()
        assert exchange.response.version == 11
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.clean


def test_the_usage_event_is_hidden_unless_it_was_asked_for(mlx: Pair) -> None:
    plain = ask(mlx.router.port, "POST", CHAT, chat(stream=True))
    asked = ask(mlx.router.port, "POST", CHAT, chat(stream=True, stream_options={"include_usage": True}))
    assert not any("usage" in event for event in plain.events[:-1])
    assert asked.events[-2]["choices"] == []
    assert asked.events[-2]["usage"]["completion_tokens"] == 24


def test_the_openai_client_reads_one_text_streamed_and_not(client: openai.OpenAI) -> None:
    ask_for: Any = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
    whole = client.chat.completions.create(**ask_for)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    with client.chat.completions.create(**ask_for, stream=True) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len(pieces) > 10
    assert "".join(pieces) == whole.choices[0].message.content


def test_the_openai_client_reads_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL_NAME, prompt="Once upon", max_tokens=24)
    with client.completions.create(
        model=MODEL_NAME, prompt="Once upon", max_tokens=24, stream=True
    ) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_models_of_both_engines_are_one_list(mlx: Pair, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_a_model_that_nobody_serves_is_404_and_names_those_that_are(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hello"}])
    assert caught.value.code == "model_not_found"
    assert MODEL_NAME in str(caught.value)


def test_bad_json_is_refused_before_any_engine_sees_it(mlx: Pair) -> None:
    answer = ask(mlx.router.port, "POST", CHAT, b'{"model": "tiny", ')
    assert answer.status == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_engine_without_metrics_shows_as_one_that_says_nothing(mlx: Pair) -> None:
    for engine in mlx.engines:
        assert mlx.router.worker(engine)["engine"] is None
        assert mlx.router.worker(engine)["kv_capacity_tokens"] is None


def test_many_clients_at_once_each_get_their_own_text(mlx: Pair) -> None:
    bodies = [chat(f"number {number}", seed=number) for number in range(16)]
    texts = [_text(ask(mlx.engines[0].port, "POST", CHAT, body).json()) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = list(threads.map(lambda body: ask(mlx.router.port, "POST", CHAT, body), bodies))
    assert [_text(answer.json()) for answer in answers] == texts
    assert len({answer.headers["x-pointsman-worker"] for answer in answers}) == 2


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_leaves_nothing_behind(mlx: Pair, streamed: bool) -> None:
    with Exchange(mlx.router.port, "POST", CHAT, chat(max_tokens=LONG, stream=streamed)) as exchange:
        if streamed:
            exchange.until(3)
        until(mlx.router.busy, 10.0, "a request under way")
    mlx.router.assert_idle()


def test_an_engine_killed_in_a_stream_is_told_to_the_client_and_replaced(mlx: Pair) -> None:
    with Exchange(mlx.router.port, "POST", CHAT, chat(max_tokens=LONG, stream=True)) as exchange:
        exchange.until(3)
        victim = mlx.named(exchange.response.getheader("x-pointsman-worker") or "")
        survivor = mlx.other(mlx.router.worker(victim)["name"])
        victim.send(signal.SIGKILL)
        answer = exchange.rest()
    assert not answer.clean
    assert b"[DONE]" not in answer.body
    assert answer.events[-1]["error"]["code"] == "upstream_broken"
    until(lambda: mlx.router.worker(victim)["state"] == "ejected", 10.0, "the dead worker to be out")
    for _ in range(3):
        assert ask(mlx.router.port, "POST", CHAT, chat()).status == 200
    assert mlx.router.worker(survivor)["state"] == "ready"
    _restart(mlx, victim)


def test_an_answer_cut_short_is_had_from_the_other_engine(mlx: Pair) -> None:
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(ask, mlx.router.port, "POST", CHAT, chat(max_tokens=LONG))
        victim = until(lambda: _serving(mlx), 10.0, "an engine at work")
        victim.send(signal.SIGKILL)
        answer = coming.result(60)
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == LONG
    assert answer.headers["x-pointsman-worker"] != mlx.router.worker(victim)["name"]
    _restart(mlx, victim)


def test_an_engine_that_comes_back_is_used_again(mlx: Pair) -> None:
    victim = mlx.engines[0]
    name = mlx.router.worker(victim)["name"]
    victim.send(signal.SIGKILL)
    until(lambda: mlx.router.worker(victim)["state"] == "ejected", 10.0, "the dead worker to be out")
    _restart(mlx, victim)
    served = [ask(mlx.router.port, "POST", CHAT, chat()).headers["x-pointsman-worker"] for _ in range(4)]
    assert name in served


def _text(answer: Any) -> str:
    text = answer["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def _serving(mlx: Pair) -> Any:
    return next((engine for engine in mlx.engines if mlx.router.worker(engine)["in_flight"]), None)


def _restart(mlx: Pair, dead: Any) -> None:
    """A new process on the port of a dead one, back in rotation."""
    dead.stop()
    again = start(mlx.directory, dead.port)
    mlx.engines[mlx.engines.index(dead)] = again
    again.until_healthy("/health", START_S)
    until(lambda: mlx.router.worker(again)["state"] == "ready", 10.0, "the worker to be back")
