"""The mock against the engine that it stands in for: the same keys, types, events, headers, statuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.install import ROOT
from tests.real.processes import environment, free_port
from tests.real.shapes import answer_shape
from tests.real.stage import Engine
from tests.real.vllm import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    KV_BLOCKS,
    MAX_SEQUENCES,
    MODEL_NAME,
    Pair,
    chat,
    completion,
)
from tests.real.vllm_bodies import CHAT, COMPLETIONS, MESSAGE, MESSAGES, REFUSED, RESPONSE, STREAMED, WHOLE
from tests.real.wire import ask

pytestmark = pytest.mark.timeout(300)

MORE: dict[str, tuple[str, Any]] = {
    "chat, unknown model": (CHAT, chat(model="nope")),
    "completion, unknown model": (COMPLETIONS, completion(model="nope")),
    "message, unknown model": (MESSAGES, {**MESSAGE, "model": "nope"}),
    "response, unknown model": ("/v1/responses", {**RESPONSE, "model": "nope"}),
    "bad JSON": (CHAT, b'{"model": "tiny", '),
    "no body": (CHAT, b""),
    "a list": (CHAT, b"[]"),
    "unknown path": ("/nothing", {}),
    "no output tokens": (CHAT, chat(max_tokens=0)),
    "top of nothing": (CHAT, chat(top_p=0)),
    "log probabilities not asked for": (CHAT, chat(logprobs=False, top_logprobs=2)),
    "empty text": (COMPLETIONS, completion("")),
    "a stream that is a word": (CHAT, chat(stream="yes")),
    "a flag that is a number": (CHAT, chat(ignore_eos=1)),
    "a stream that is no flag": (CHAT, chat(stream="perhaps")),
    "a flag that is another number": (CHAT, chat(ignore_eos=2)),
    "too many stop words": (CHAT, chat(stop=["a", "b", "c", "d", "e"])),
    "a stop word that is none": (CHAT, chat(stop=[1])),
    "a salt with a slash": (CHAT, chat(cache_salt="a/b")),
    "a penalty out of range": (CHAT, chat(presence_penalty=3)),
    "an interval of nothing": (CHAT, chat(stream=True, stream_interval=0)),
    "tokens as text": (CHAT, chat(max_tokens="many")),
    "messages as text": (CHAT, chat(messages="hello")),
    "a message without a role": (CHAT, chat(messages=[{"content": "no role"}])),
    "a message that is a number": (CHAT, chat(messages=[{"role": "user", "content": 5}])),
    "a prompt that is a number": (COMPLETIONS, completion(5)),
    "a list of lists of texts": (COMPLETIONS, completion([["a"]])),
    "a token id below zero": (COMPLETIONS, completion([-1])),
}
READ = ("/v1/models", "/version", "/load", "/health", "/ping", "/nothing", CHAT, "/v1/responses/resp_x")


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A mock with the flags of the real engines, ten times as fast as its GPU."""
    port = free_port()
    flags = {
        "port": port,
        "served-model-name": MODEL_NAME,
        "max-model-len": CONTEXT_TOKENS,
        "block-size": BLOCK_TOKENS,
        "kv-tokens": (KV_BLOCKS - 1) * BLOCK_TOKENS,
        "max-num-seqs": MAX_SEQUENCES,
        "time-scale": 0.1,
    }
    argv = [str(ROOT / ".venv/bin/pointsman"), "mock", "--enable-request-id-headers"]
    argv += ["--no-enable-auto-tool-choice"]
    argv += [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    engine = Engine(argv, port, tmp_path_factory.mktemp("mock") / "mock.log", environment())
    try:
        engine.until_healthy("/health", 60.0)
        yield engine
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(*case, id=name) for name, case in {**WHOLE, **REFUSED, **MORE}.items()]
    + [pytest.param(*case, id=f"{name}, streamed") for name, case in STREAMED.items()],
)
def test_the_mock_answers_as_vllm_does(vllm: Pair, mock: Engine, path: str, body: Any) -> None:
    headers = {"x-request-id": "probe"}
    real = ask(vllm.engines[0].port, "POST", path, body, headers, timeout_s=120)
    assert answer_shape(ask(mock.port, "POST", path, body, headers)) == answer_shape(real)


@pytest.mark.parametrize("path", READ)
def test_the_mock_is_read_as_vllm_is(vllm: Pair, mock: Engine, path: str) -> None:
    real = ask(vllm.engines[0].port, "GET", path)
    assert answer_shape(ask(mock.port, "GET", path)) == answer_shape(real)


def test_the_mock_exports_every_metric_of_vllm_with_its_labels(vllm: Pair, mock: Engine) -> None:
    body = chat(max_tokens=2)
    for engine in (mock, vllm.engines[0]):
        ask(engine.port, "POST", CHAT, body)
    assert _series(mock.metrics()) == _series(vllm.engines[0].metrics())


def _series(exposition: bytes) -> dict[str, list[str]]:
    """Label names by metric."""
    found = {}
    for line in exposition.decode().splitlines():
        if not line.startswith("#"):
            found[re.split("[ {]", line)[0]] = sorted(re.findall(r'(\w+)="', line))
    return found
