"""What the engine said is what the client gets: compared with the same request to a twin of the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from tests.shell.live import ASK, CHAT, STREAM, Live, MockEngine, play
from tests.shell.puppet import DONE, ROLE, STOP, TALK, WHOLE, Ask, answering, chunk, streaming, word
from tests.shell.visitors import Reply

MOCK = MockSettings(output_tokens=12, max_num_seqs=8, enable_request_id_headers=True)
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
USAGE_TOO = {"stream_options": {"include_usage": True}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat_stream": (CHAT, {"messages": MESSAGES, "stream": True, **USAGE_TOO}),
    "chat_n": (CHAT, {"messages": MESSAGES, "n": 3, "seed": 1}),
    "chat_n_stream": (CHAT, {"messages": MESSAGES, "n": 3, "stream": True, **USAGE_TOO}),
    "chat_continuous_usage": (
        CHAT,
        {
            "messages": MESSAGES,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        },
    ),
    "chat_tools": (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
    "chat_tools_stream": (
        CHAT,
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "stream": True, **USAGE_TOO},
    ),
    "chat_logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "chat_logprobs_stream": (
        CHAT,
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stream": True, **USAGE_TOO},
    ),
    "chat_unknown_fields": (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"x": 1}, "odd": [None]}),
    "completions": ("/v1/completions", {"prompt": "once", "max_tokens": 5, "echo": True}),
    "completions_stream": ("/v1/completions", {"prompt": "once", "stream": True, **USAGE_TOO}),
    "completions_prompts": ("/v1/completions", {"prompt": ["once", "upon"], "n": 2, "max_tokens": 4}),
    "completions_ids": ("/v1/completions", {"prompt": [11, 12, 13], "max_tokens": 4}),
    "responses": ("/v1/responses", {"input": "tell", "max_output_tokens": 6}),
    "responses_stream": ("/v1/responses", {"input": "tell", "max_output_tokens": 6, "stream": True}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 6}),
    "messages_stream": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 6, "stream": True}),
    "count_tokens": ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    "embeddings": ("/v1/embeddings", {"input": ["a", "b"]}),
    "rerank": ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}),
    "rerank_v2": ("/v2/rerank", {"query": "q", "documents": ["a", "b"]}),
    "score": ("/score", {"text_1": "a", "text_2": ["b", "c"]}),
    "pooling": ("/pooling", {"input": "a"}),
    "classify": ("/classify", {"input": "a"}),
    "tokenize": ("/tokenize", {"prompt": "once upon", "return_token_strs": True}),
    "detokenize": ("/detokenize", {"tokens": [11, 12]}),
}


async def twins(act: Live, path: str, body: object, headers: dict[str, str]) -> tuple[Reply, Reply]:
    """The same request at the same instant: through the router to one engine, straight to its twin."""
    twin = act.mocks["twin"] = MockEngine(act.network, "twin", MOCK)
    headers = {"x-request-id": "same", **headers}
    through = act.asking(path, body, headers)
    direct = act.asking(path, body, headers, origin=twin.origin)
    return await through, await direct


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_has_the_bytes_status_and_type_of_the_engine_itself(name: str) -> None:
    path, fields = CALLS[name]

    async def scene(act: Live) -> None:
        through, direct = await twins(act, path, {"model": "qwen2.5-3b", **fields}, {})
        assert direct.status == 200, direct.body
        assert through.broken is direct.broken is None
        assert (through.status, through.body) == (direct.status, direct.body)
        assert through.header("content-type") == direct.header("content-type")

    play(scene, {"a": MOCK})


def form(*parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    pieces = b"".join(
        b'--cut\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (name.encode(), b'; filename="f.wav"' if name == "file" else b"", data)
        for name, data in parts
    )
    return pieces + b"--cut--\r\n", {"content-type": "multipart/form-data; boundary=cut"}


def test_a_multipart_answer_has_the_bytes_of_the_engine_itself() -> None:
    body, headers = form(("model", b"qwen2.5-3b"), ("file", b"RIFF" + bytes(range(256)) * 40))

    async def scene(act: Live) -> None:
        through, direct = await twins(act, "/v1/audio/transcriptions", body, headers)
        assert direct.status == 200, direct.body
        assert (through.status, through.body) == (direct.status, direct.body)
        sent, received = (act.mocks[name].front.seen[-1] for name in ("twin", "a"))
        assert (sent.body_sha256, sent.body_bytes) == (received.body_sha256, received.body_bytes)

    play(scene, {"a": MOCK})


def test_an_error_of_the_engine_is_relayed_with_its_bytes() -> None:
    async def scene(act: Live) -> None:
        body = {"model": "qwen2.5-3b", "messages": MESSAGES, "temperature": "hot"}
        through, direct = await twins(act, CHAT, body, {})
        assert direct.status == 400
        assert (through.status, through.body) == (direct.status, direct.body)

    play(scene, {"a": MOCK})


ODD = (
    '{"model": "m", "messages":[{"role":"user",'
    '"content":"\\u00e9 \\ud83d\\ude00 \u202e \U0001f600 \\/ \\u0000"}],'
    ' "zzz": 1e400, "n" : 1,\n\t"big": 123456789012345678901234567890}  \n'
).encode()


@pytest.mark.parametrize("stream", [b"", b'"stream": true, "stream_options": {"include_usage": true}, '])
def test_the_body_reaches_the_engine_byte_for_byte(stream: bytes) -> None:
    body = ODD.replace(b'{"model"', b"{" + stream + b'"model"')

    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, body)).status == 200
        assert act.puppets["a"].asks[0].body == body

    play(scene)


def test_path_query_and_foreign_headers_reach_the_engine() -> None:
    async def scene(act: Live) -> None:
        await act.ask(
            CHAT + "?a=%2F&b",
            ASK,
            {"x-odd": "caf\xe9", "user-agent": "me/1", "connection": "x-gone", "x-gone": "1"},
        )
        ask = act.puppets["a"].asks[0]
        assert ask.path == CHAT + "?a=%2F&b"
        assert (ask.header("x-odd"), ask.header("user-agent"), ask.header("x-gone")) == (
            "caf\xe9",
            "me/1",
            None,
        )
        assert ask.header("host") == "a:8000"

    play(scene)


def test_headers_of_the_engine_reach_the_client() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert reply.header("x-engine") == "7"
        assert [value for name, value in reply.headers if name == "set-cookie"] == ["a=1", "b=2"]
        assert reply.header("keep-alive") is None

    cookies = (b"x-engine: 7", b"set-cookie: a=1", b"set-cookie: b=2", b"keep-alive: timeout=5")
    play(scene, {"a": answering(200, WHOLE, *cookies)})


def test_a_stream_reaches_the_client_event_by_event_as_it_comes() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == TALK
        assert reply.broken is None
        times = {round(at - reply.pieces[0][0], 6) for at, _ in reply.pieces}
        assert times == {0.0, 0.01, 0.02, 0.03, 0.04}

    play(scene)


def test_a_stream_tells_proxies_not_to_collect_it() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.header("x-accel-buffering") == "no"
        assert reply.header("cache-control") == "no-cache, no-transform"
        assert reply.header("content-length") is None

    play(scene)


def test_events_of_any_shape_pass_unchanged() -> None:
    events = (
        b": a comment\r\n\r\n",
        chunk({"role": "assistant"}).replace(b"\n", b"\r\n"),
        b"id: 7\nretry: 10\n" + chunk({"content": "\u00e9\u2028x"}),
        b"data: not json\n\n",
        chunk({"content": "cut"})[:40],
        chunk({"content": "cut"})[40:],
        chunk({}, "stop").replace(b"\n", b"\r"),
        b"data: [DONE]\n\n",
    )

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, **USAGE_TOO})
        assert reply.body == b"".join(events)
        assert reply.broken is None

    play(scene, {"a": streaming(*events, gap_s=0.01)})


def test_an_http_1_0_answer_that_ends_by_closing_is_whole() -> None:
    async def old(ask: Ask) -> None:
        ask.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + WHOLE)
        ask.ended = True
        ask.close()

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.body, reply.broken) == (200, WHOLE, None)

    play(scene, {"a": old})


def test_binary_answers_pass_as_they_are() -> None:
    sound = bytes(range(256)) * 1000

    async def speak(ask: Ask) -> None:
        ask.begin(b"content-encoding: identity", kind=b"audio/mpeg")
        for start in range(0, len(sound), 50_000):
            ask.event(sound[start : start + 50_000])
        ask.end()

    async def scene(act: Live) -> None:
        reply = await act.ask("/v1/audio/speech", {"model": "m", "input": "hello"})
        assert (reply.status, reply.body, reply.broken) == (200, sound, None)
        assert reply.header("content-type") == "audio/mpeg"

    play(scene, {"a": speak})


def test_a_json_answer_to_a_streaming_request_passes() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body) == (200, WHOLE)

    play(scene, {"a": answering(200, WHOLE)})


def test_the_ledger_follows_the_stream_while_it_runs() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].serve = streaming(
            ROLE, *(word(number) for number in range(6)), STOP, DONE, gap_s=0.06
        )
        visit = await act.open(CHAT, STREAM)
        worker = act.worker("a")
        seen = []
        while await visit.read():
            seen.append((worker.in_flight, worker.queued_tokens, worker.kv_tokens))
        visit.leave()
        running = [(queued, kv) for in_flight, queued, kv in seen if in_flight]
        assert len(running) >= 4
        assert {queued for queued, _ in running} == {0}
        held = [kv for _, kv in running]
        assert held == sorted(held)
        assert held[-1] > held[0] > 0
        assert seen[-1] == (0, 0, 0)

    play(scene)


def test_the_usage_of_answers_teaches_what_a_prompt_is_charged() -> None:
    async def scene(act: Live) -> None:
        charged: list[int] = []

        async def count(ask: Ask) -> None:
            size = len(ask.json()["messages"][0]["content"])
            charged.append(act.worker("a").queued_tokens)
            usage = {"prompt_tokens": size, "completion_tokens": 1, "total_tokens": size + 1}
            ask.answer(200, json.dumps({**json.loads(WHOLE), "usage": usage}).encode())

        act.puppets["a"].serve = count
        for _ in range(30):
            await act.ask(CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]})
        assert charged[0] < 2000  # four bytes a token, to begin with
        assert 3500 < charged[-1] < 4500

    play(scene)
