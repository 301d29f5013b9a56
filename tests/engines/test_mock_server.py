"""The mock as a process: ports, signals, and clients that others wrote."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.request
from collections.abc import Iterator

import anthropic
import openai
import pytest

from engines.mock.__main__ import main
from engines.mock.app import create_app
from engines.mock.server import EngineServer
from router.upstream.origin import Origin
from router.virtual.clock import run
from router.virtual.network import Network
from tests.engines.mock_processes import engines
from tests.engines.mock_stage import HOST, PORT, UNIX_ORIGIN_S

KEY = "secret"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engines("--time-scale", "0.1", "--api-key", KEY) as (_, urls):
        yield urls[0]


def test_the_openai_client_streams_a_chat(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        chunks = list(
            client.chat.completions.create(
                model="qwen2.5-3b",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens <= 8
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        whole = client.chat.completions.create(
            model="qwen2.5-3b", messages=[{"role": "user", "content": "hello"}], max_tokens=8
        )
        assert whole.choices[0].message.content == text


def test_the_openai_client_uses_the_other_routes(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        assert [model.id for model in client.models.list()] == ["qwen2.5-3b"]
        assert client.completions.create(model="qwen2.5-3b", prompt="x", max_tokens=2).choices[0].text
        assert len(client.embeddings.create(model="qwen2.5-3b", input=["a", "b"]).data) == 2
        answer = client.responses.create(model="qwen2.5-3b", input="hello", max_output_tokens=4)
        assert client.responses.retrieve(answer.id).output_text == answer.output_text != ""
        events = list(
            client.responses.create(model="qwen2.5-3b", input="hello", max_output_tokens=4, stream=True)
        )
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        heard = client.audio.transcriptions.create(model="qwen2.5-3b", file=("a.wav", b"\0" * 64_000))
        assert heard.text


def test_the_openai_client_raises_its_own_errors(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="qwen2.5-3b", prompt="x", max_tokens=10**9)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_the_anthropic_client_streams_and_counts(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
        ask = {"model": "qwen2.5-3b", "messages": [{"role": "user", "content": "hello"}]}
        with client.messages.stream(max_tokens=8, **ask) as stream:  # type: ignore[arg-type] # plain dicts
            text = "".join(stream.text_stream)
        whole = client.messages.create(max_tokens=8, **ask)  # type: ignore[call-overload] # plain dicts
        assert whole.content[0].text == text
        counted = client.messages.count_tokens(**ask)  # type: ignore[arg-type] # plain dicts
        assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_streams_with_abort_and_the_process_with_zero(number: signal.Signals) -> None:
    with engines("--count", "2") as (process, urls):
        assert len(set(urls)) == 2
        body = {"prompt": "hello", "max_tokens": 10_000, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"{urls[0]}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.readline().startswith(b"data: ")
            process.send_signal(number)
            tail = answer.read()
        assert b'"finish_reason":"abort"' in tail
        assert tail.endswith(b"data: [DONE]\n\n")
        assert process.wait(timeout=30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_sigterm_with_a_timeout_lets_streams_finish_and_refuses_new_ones() -> None:
    with engines("--shutdown-timeout", "60", "--time-scale", "0.2") as (process, urls):
        body = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
        header = {"content-type": "application/json"}
        request = urllib.request.Request(f"{urls[0]}/v1/completions", json.dumps(body).encode(), header)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.readline().startswith(b"data: ")
            process.send_signal(signal.SIGTERM)
            refused = 200
            while refused == 200:
                second = urllib.request.Request(f"{urls[0]}/v1/completions", b'{"prompt":"x"}', header)
                try:
                    with urllib.request.urlopen(second, timeout=30):
                        refused = 200
                except urllib.error.HTTPError as error:
                    refused = error.code
                    error.close()
            assert refused == 500
            assert b'"finish_reason":"length"' in answer.read()
        assert process.wait(timeout=30) == 0


class Caller(asyncio.Protocol):
    """A client that says one thing and listens."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"GET /health HTTP/1.1\r\nHost: mock\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_at = asyncio.get_running_loop().time()


def test_an_idle_connection_is_closed_after_exactly_five_seconds() -> None:
    async def act() -> None:
        network = Network()
        server = EngineServer(create_app(unix_origin_s=UNIX_ORIGIN_S), HOST, PORT)
        network.serve(HOST, PORT, server.protocol)
        begin = asyncio.get_running_loop().time()
        _, caller = await network.connect(Origin("http", HOST, PORT, ""), Caller)
        assert isinstance(caller, Caller)
        await asyncio.sleep(60)
        head = caller.heard.split(b"\r\n")
        assert head[:3] == [b"HTTP/1.1 200 OK", b"date: Sun, 29 Nov 2026 17:39:30 GMT", b"server: uvicorn"]
        assert caller.ended_at is not None
        assert caller.ended_at - begin == pytest.approx(5.0, abs=0.01)
        assert server.connections == 0

    run(act())


def test_the_engines_of_a_fleet_have_ids_of_their_own() -> None:
    async def act() -> set[str]:
        apps = [create_app(unix_origin_s=UNIX_ORIGIN_S, instance=str(index)) for index in range(4)]
        return {app.process.draw_id() for app in apps}

    assert len(run(act())) == 4


def test_a_port_that_is_taken_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 from port {port}" in capsys.readouterr().err


def test_an_unknown_flag_is_said_without_a_page_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--dp", "2"])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "pointsman mock: unrecognized arguments: --dp 2",
        "See pointsman mock --help.",
    ]


def test_a_wrong_flag_value_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "chef"]) == 2
    assert capsys.readouterr().err.startswith("pointsman mock: --role chef: not known. Known: both, decode")
