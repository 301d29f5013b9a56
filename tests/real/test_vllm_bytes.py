"""vLLM behind the router: what the engine said is what the client gets, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.stage import Router, alike, router_before
from tests.real.tap import Tap, without_usage
from tests.real.vllm import Pair, chat
from tests.real.vllm_bodies import CHAT, REFUSED, STREAMED, WHOLE, asks_usage, streamed_text
from tests.real.wire import Exchange, ask

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def tap(vllm: Pair) -> Iterator[Tap]:
    with Tap(vllm.engines[0].port) as running:
        yield running


@pytest.fixture(scope="module")
def router(tap: Tap, vllm: Pair) -> Iterator[Router]:
    with router_before([tap], vllm.directory) as running:
        yield running


@pytest.fixture(autouse=True)
def first_law(router: Router) -> Iterator[None]:
    yield
    router.assert_idle()


@pytest.mark.parametrize("name", [*WHOLE, *REFUSED])
def test_an_answer_arrives_as_it_was_given(vllm: Pair, router: Router, tap: Tap, name: str) -> None:
    path, body = {**WHOLE, **REFUSED}[name]
    for _ in range(2):  # the second time the prefix cache is warm: what was cached is part of the answer
        direct = ask(vllm.engines[0].port, "POST", path, body, timeout_s=120)
    routed = ask(router.port, "POST", path, body, timeout_s=120)
    assert routed.body == tap.carried[-1].answer()
    assert (routed.status, alike(routed.body)) == (direct.status, alike(direct.body))
    assert routed.clean
    assert routed.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_arrives_as_it_was_sent(router: Router, tap: Tap, name: str) -> None:
    path, body = STREAMED[name]
    routed = ask(router.port, "POST", path, body, timeout_s=120)
    said = tap.carried[-1].answer()
    hidden = path in (CHAT, "/v1/completions") and not asks_usage(body)
    assert routed.body == (without_usage(said) if hidden else said)
    assert (without_usage(said) != said) == (path in (CHAT, "/v1/completions"))
    assert routed.status == 200
    assert routed.clean


def test_a_stream_says_what_the_whole_answer_says(vllm: Pair, router: Router) -> None:
    whole = ask(vllm.engines[0].port, "POST", CHAT, chat()).json()
    routed = ask(router.port, "POST", CHAT, chat(stream=True))
    assert streamed_text(routed) == whole["choices"][0]["message"]["content"]


def test_an_event_reaches_the_client_when_it_was_sent(router: Router, tap: Tap) -> None:
    with Exchange(router.port, "POST", CHAT, chat(max_tokens=500, stream=True)) as exchange:
        exchange.until(3)
        assert b"[DONE]" not in tap.carried[-1].received
        exchange.rest()


def test_the_engine_gets_the_clients_own_body(router: Router, tap: Tap) -> None:
    body = b'{ "model":"tiny",  "unknown": [1, {"a": null}],"prompt": "x", "max_tokens": 2 }'
    assert ask(router.port, "POST", "/v1/completions", body).status == 200
    assert bytes(tap.carried[-1].sent).endswith(b"\r\n\r\n" + body)


def test_control_fields_of_a_client_never_reach_the_engine(router: Router, tap: Tap) -> None:
    steering: dict[str, Any] = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1"},
        "ec_transfer_params": {"a": 1},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": 1,
        "data_parallel_rank": 0,
    }
    headers = {"x-data-parallel-rank": "0"}
    answer = ask(router.port, "POST", CHAT, chat(**steering), headers)
    assert answer.status == 200
    assert tap.carried[-1].ask() == chat()
    assert b"x-data-parallel-rank" not in tap.carried[-1].head.lower()


def test_the_request_id_is_the_same_at_the_client_and_at_the_engine(router: Router, tap: Tap) -> None:
    answer = ask(router.port, "POST", CHAT, chat(), {"x-request-id": "probe-7"})
    assert answer.headers["x-request-id"] == "probe-7"
    assert answer.json()["id"] == "chatcmpl-probe-7"
    assert b"x-request-id: probe-7" in tap.carried[-1].head.lower()
