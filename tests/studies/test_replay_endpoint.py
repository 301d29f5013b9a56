"""Laws of the endpoint: what each answer and each fault becomes, over a virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest

from router.core.errors import ConnectFailed
from router.studies.replay.endpoint import Deadlines, Endpoint, EndpointError, ModelCard, parse_url
from router.studies.replay.prompts import Tokenizer, words
from router.studies.replay.run import Reply
from router.studies.replay.stream import StreamMeter
from router.upstream.client import Upstream
from router.virtual.asgi import serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network
from tests.studies.fake_engine import FakeEngine

T = TypeVar("T")
DEADLINES = Deadlines(first_event_s=20.0, idle_s=10.0, total_s=60.0)
CARD = ModelCard("fake", 512)
KEY = ((b"authorization", b"Bearer k"),)


def with_endpoint(
    engine: FakeEngine, act: Callable[[Endpoint], Awaitable[T]], network: Network | None = None
) -> T:
    """Runs `act` against the engine, on a clock of its own."""

    async def main() -> T:
        net = network or Network()
        serve_asgi(net, "engine", 80, engine)
        now = asyncio.get_running_loop().time
        upstream = Upstream(net.connect, now)
        try:
            return await act(Endpoint(upstream, parse_url("http://engine/v1"), KEY, now))
        finally:
            await upstream.aclose()

    return run(main())


def body(prompt_words: int = 10, max_tokens: int = 5, chat: bool = True) -> bytes:
    text = words("test", prompt_words)
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    return msgspec.json.encode({"model": "fake", **prompt, "max_tokens": max_tokens, "stream": True})


def stream(
    engine: FakeEngine, network: Network | None = None, **fields: Any
) -> tuple[StreamMeter, Reply, float]:
    """One streamed request: what the meter and the reply hold, and when it was sent."""

    async def act(endpoint: Endpoint) -> tuple[StreamMeter, Reply, float]:
        meter, reply = StreamMeter(), Reply()
        sent = asyncio.get_running_loop().time()
        api = "chat" if fields.get("chat", True) else "completions"
        await endpoint.stream(api, DEADLINES, body(**fields), meter, reply)  # type: ignore[arg-type]  # a literal
        return meter, reply, sent

    return with_endpoint(engine, act, network)


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_is_timed_to_its_first_token_and_between_tokens(chat: bool) -> None:
    meter, reply, sent = stream(FakeEngine(prefill_s=2.0, token_s=0.25, worker="w0"), chat=chat)
    assert reply.failure is None
    assert meter.first is not None
    assert meter.first - sent == pytest.approx(2.0, abs=0.01)
    assert meter.itl_us.tolist() == pytest.approx([250_000] * 4, abs=100)
    assert reply.ended is not None
    assert reply.ended - sent == pytest.approx(3.0, abs=0.01)
    assert (reply.status, reply.worker, reply.request_id) == (200, "w0", "r-1")


def test_the_key_and_the_path_are_sent() -> None:
    engine = FakeEngine()
    stream(engine)
    assert engine.streams[0].path == "/v1/chat/completions"
    assert engine.streams[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("429", "http_429", "fault 429"),
        ("500", "http_500", "fault 500"),
        ("404", "http_404", "fault 404"),
        ("error_event", "error_event", "engine died"),
        ("garbage", "bad_event", "nonsense"),
        ("abort", "aborted", "abort"),
        ("cut", "cut", "without a finish reason"),
        ("break", "upstream_broken", ""),
        ("hang", "deadline_first_event", ""),
        ("silence", "deadline_idle", ""),
    ],
)
def test_each_fault_has_its_own_kind(fault: str, kind: str, said: str) -> None:
    _, reply, _ = stream(FakeEngine(behave=lambda seen: fault))
    assert reply.failure is not None
    assert reply.failure.kind == kind
    assert said in reply.failure.message
    assert reply.ended is not None


def test_deadlines_end_a_request_when_they_say() -> None:
    _, reply, sent = stream(FakeEngine(behave=lambda seen: "hang"))
    assert reply.ended is not None
    assert reply.ended - sent == pytest.approx(DEADLINES.first_event_s, abs=0.01)
    meter, reply, sent = stream(FakeEngine(behave=lambda seen: "silence"))
    assert meter.last is not None
    assert reply.ended is not None
    assert reply.ended - meter.last == pytest.approx(DEADLINES.idle_s, abs=0.01)


def test_the_total_deadline_ends_a_stream_that_makes_progress() -> None:
    _, reply, sent = stream(FakeEngine(token_s=5.0), max_tokens=100)
    assert reply.failure is not None
    assert reply.failure.kind == "deadline_total"
    assert reply.ended is not None
    assert reply.ended - sent == pytest.approx(DEADLINES.total_s, abs=0.01)


def test_a_refused_connection_and_a_machine_that_is_off_are_unreachable() -> None:
    network = Network()
    network.refuse("engine", 80)
    _, reply, _ = stream(FakeEngine(), network)
    assert reply.failure is not None
    assert reply.failure.kind == ConnectFailed.code
    network = Network()
    network.hang("engine", 80)
    _, reply, _ = stream(FakeEngine(), network)
    assert reply.failure is not None
    assert reply.failure.kind == ConnectFailed.code


def test_a_cut_before_the_head_is_its_own_kind() -> None:
    network = Network()
    engine = FakeEngine(behave=lambda seen: "hang")

    async def act(endpoint: Endpoint) -> Reply:
        reply = Reply()
        task = asyncio.create_task(endpoint.stream("chat", DEADLINES, body(), StreamMeter(), reply))
        await asyncio.sleep(3.0)
        network.reset_all("engine", 80)
        await task
        return reply

    reply = with_endpoint(engine, act, network)
    assert reply.failure is not None
    assert reply.failure.kind == "upstream_closed"


def test_the_first_model_is_taken_or_the_one_that_was_asked_for() -> None:
    engine = FakeEngine(max_model_len=512)
    assert with_endpoint(engine, lambda e: e.model(None)).max_model_len == 512
    assert with_endpoint(engine, lambda e: e.model("fake")).max_model_len == 512
    unlisted = with_endpoint(engine, lambda e: e.model("other"))
    assert (unlisted.id, unlisted.max_model_len) == ("other", None)


def test_an_engine_without_a_model_list_is_used_by_the_name_given() -> None:
    engine = FakeEngine(models_path=None)
    assert with_endpoint(engine, lambda e: e.model("mine")) == ModelCard("mine")
    with pytest.raises(EndpointError, match="/v1/models with 404"):
        with_endpoint(engine, lambda e: e.model(None))


@pytest.mark.parametrize(
    ("overhead", "bytes_per_token"), [(6, 4.0), (0, 4.0), (31, 4.0), (6, 2.0), (6, 1.0), (3, 5.0)]
)
def test_calibration_finds_how_the_engine_counts(overhead: int, bytes_per_token: float) -> None:
    engine = FakeEngine(overhead_tokens=overhead, bytes_per_token=bytes_per_token)
    found = with_endpoint(engine, lambda e: e.calibrate("chat", CARD, 0))
    assert found.tokens_per_word == pytest.approx(4 / bytes_per_token, rel=0.01)
    assert found.overhead_tokens == pytest.approx(overhead, abs=0.5)
    assert len(engine.asides) == 2
    if bytes_per_token == 4.0:  # as the mock engine counts
        assert found == Tokenizer(overhead_tokens=overhead, tokens_per_word=1.0)


def test_a_roomy_context_is_calibrated_with_a_longer_prompt() -> None:
    engine = FakeEngine(bytes_per_token=3.0)
    found = with_endpoint(engine, lambda e: e.calibrate("chat", ModelCard("fake", 32_768), 0))
    assert found.tokens_per_word == pytest.approx(4 / 3, abs=1 / 1_024)
    assert max(len(seen.prompt) for seen in engine.asides) == 4 * 1_025


def test_an_engine_that_tells_no_usage_cannot_be_calibrated() -> None:
    class Mute(FakeEngine):
        def _usage(self, seen: Any) -> Any:
            return None

    with pytest.raises(EndpointError, match="--bytes-per-token"):
        with_endpoint(Mute(), lambda e: e.calibrate("chat", CARD, 0))


def test_an_engine_that_counts_backwards_is_not_believed() -> None:
    class Odd(FakeEngine):
        def _usage(self, seen: Any) -> dict[str, Any]:
            return {"prompt_tokens": 7, "completion_tokens": 1}

    with pytest.raises(EndpointError, match="cannot be trusted"):
        with_endpoint(Odd(), lambda e: e.calibrate("chat", CARD, 0))


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
def test_the_prefix_cache_is_reset_as_either_engine_calls_it(path: str) -> None:
    engine = FakeEngine(reset_path=path)
    with_endpoint(engine, lambda e: e.reset_prefix_cache())
    assert engine.resets == 1


def test_an_engine_that_does_not_allow_the_reset_is_named_with_the_remedy() -> None:
    with pytest.raises(EndpointError, match="VLLM_SERVER_DEV_MODE"):
        with_endpoint(FakeEngine(reset_path=None), lambda e: e.reset_prefix_cache())


def test_an_endpoint_that_is_not_there_is_a_sentence() -> None:
    network = Network()
    network.refuse("engine", 80)
    with pytest.raises(EndpointError, match="http://engine:80 does not answer /v1/models"):
        with_endpoint(FakeEngine(), lambda e: e.model(None), network)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_url_may_end_as_openai_clients_write_it(url: str) -> None:
    assert parse_url(url).url == "http://h:1"


def test_a_base_path_is_kept() -> None:
    assert parse_url("http://h:1/team/v1").url == "http://h:1/team"
