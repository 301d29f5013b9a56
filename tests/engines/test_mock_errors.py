"""What the mock refuses, and the bodies that vLLM gives for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.mock.errors import Refusal, body_for, event_for, queue_full
from router.virtual.clock import run
from tests.engines.mock_stage import CHAT, TEXT, Reply, stage

LEN = 128


def ask(path: str, body: object, headers: dict[str, str] | None = None, **settings: Any) -> Reply:
    async def main() -> Reply:
        async with stage(max_model_len=LEN, **settings) as act:
            return await act.ask(path, body, headers)

    return run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model"),
        ({"max_tokens": LEN + 1}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": "many"}, 400, "Bad Request", "body.max_tokens"),
        ({"max_tokens": 1, "min_tokens": 5}, 400, "BadRequestError", None),
        ({"n": 2, "temperature": 0}, 400, "BadRequestError", None),
        ({"n": 0}, 400, "BadRequestError", None),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"top_p": 0}, 400, "BadRequestError", "top_p"),
        ({"presence_penalty": 3}, 400, "BadRequestError", None),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "BadRequestError", "stop"),
        ({"stop": [1]}, 400, "Bad Request", "body.stop"),
        ({"cache_salt": "a/b"}, 400, "BadRequestError", "cache_salt"),
        ({"stream": "perhaps"}, 400, "Bad Request", "body.stream"),
        ({"stream_interval": 0}, 400, "BadRequestError", "stream_interval"),
        ({"ignore_eos": 2}, 400, "Bad Request", "body.ignore_eos"),
    ],
)
def test_a_bad_value_is_named(
    path: str, fields: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    reply = ask(path, {**(CHAT if "chat" in path else TEXT), **fields})
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (reply.status, error["code"], error["type"], error["param"]) == (status, status, kind, param)
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "body", "kind", "param"),
    [
        ("/v1/chat/completions", {"messages": []}, "BadRequestError", None),
        ("/v1/completions", {"prompt": []}, "BadRequestError", None),
        ("/v1/messages", {**CHAT, "max_tokens": 0}, "Bad Request", "body.max_tokens"),
    ],
)
def test_empty_and_zero_are_refused_as_vllm_does(
    path: str, body: dict[str, Any], kind: str, param: str | None
) -> None:
    reply = ask(path, body)
    error = reply.json()["error"]
    assert (reply.status, error["type"], error["param"]) == (400, kind, param)


def test_wire_messages_are_the_recorded_ones() -> None:
    reply = ask("/v1/completions", {**TEXT, "max_tokens": 5000})
    assert reply.json()["error"]["message"] == (
        f"max_tokens=5000 cannot be greater than max_model_len={LEN}. Please request fewer output tokens. "
        "(parameter=max_tokens, value=5000)"
    )
    reply = ask("/v1/completions", {**TEXT, "max_tokens": 1, "min_tokens": 5})
    assert reply.json()["error"]["message"] == "min_tokens must be less than or equal to max_tokens=1, got 5."
    reply = ask("/v1/completions", {**TEXT, "model": "nope"})
    assert reply.json()["error"]["message"] == "The model `nope` does not exist. Valid aliases: qwen2.5-3b."


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_before_any_event(stream: bool) -> None:
    reply = ask("/v1/completions", {"prompt": "x" * 4 * LEN, "stream": stream})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "input_tokens")
    assert f"maximum context length is {LEN} tokens" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", b"{", "body"),
        ("/v1/chat/completions", b"[]", "body"),
        ("/v1/chat/completions", b"\xff", "body"),
        ("/v1/chat/completions", {"max_tokens": 1}, "body.messages"),
        ("/v1/chat/completions", {"messages": "hello"}, "body.messages"),
        ("/v1/chat/completions", {"messages": [{"content": "no role"}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages"),
        ("/v1/completions", {}, "body.prompt"),
        ("/v1/completions", {"prompt": 5}, "body.prompt"),
        ("/v1/completions", {"prompt": [["a"]]}, "body.prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/messages", {"messages": []}, "body.max_tokens"),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_with_its_place(path: str, body: object, param: str) -> None:
    reply = ask(path, body)
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)


def test_another_content_type_is_refused() -> None:
    reply = ask("/v1/completions", TEXT, {"content-type": "text/plain"})
    assert (reply.status, reply.json()["error"]["type"]) == (400, "Bad Request")


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("1", 400), ("-1", 400), ("first", 200)])
def test_a_data_parallel_rank_must_exist_and_what_is_no_number_is_none(rank: str, status: int) -> None:
    reply = ask("/v1/completions", TEXT, {"x-data-parallel-rank": rank})
    assert reply.status == status


def test_unknown_paths_and_methods_have_the_frameworks_bodies() -> None:
    async def main() -> None:
        async with stage() as act:
            unknown = await act.ask("/v1/nothing")
            assert (unknown.status, unknown.json()) == (404, {"detail": "Not Found"})
            for path in ("/v1/chat/completions", "/tokenize"):
                wrong = await act.ask(path)
                assert (wrong.status, wrong.json()) == (405, {"detail": "Method Not Allowed"})
                assert wrong.headers["allow"]

    run(main())


def test_the_key_guards_v1_and_nothing_else() -> None:
    async def main() -> None:
        async with stage(api_key="secret") as act:
            refused = await act.ask("/v1/models")
            assert (refused.status, refused.body) == (401, b'{"error":"Unauthorized"}')
            assert (await act.ask("/v1/models", headers={"authorization": "Bearer wrong"})).status == 401
            assert (await act.ask("/v1/models", headers={"authorization": "Bearer secret"})).status == 200
            for path in ("/metrics", "/health", "/version", "/load"):
                assert (await act.ask(path)).status == 200

    run(main())


def test_a_full_queue_is_a_503_that_asks_for_another_instance() -> None:
    async def main() -> None:
        async with stage(max_num_seqs=1, max_num_queued_reqs=2) as act:
            long = {**TEXT, "max_tokens": 100, "ignore_eos": True}
            first = asyncio.ensure_future(act.ask("/v1/completions", long))
            await asyncio.sleep(0.05)
            second = asyncio.ensure_future(act.ask("/v1/completions", long))
            await asyncio.sleep(0.05)
            third = await act.ask("/v1/completions", {**long, "stream": True})
            assert third.status == 503
            assert third.json()["error"]["type"] == "Service Unavailable"
            assert "different instance" in third.json()["error"]["message"]
            assert "retry-after" not in third.headers
            assert [reply.status for reply in await asyncio.gather(first, second)] == [200, 200]
            metrics = (await act.ask("/metrics")).body.decode()
            assert (
                'vllm:admission_rejections_total{model_name="qwen2.5-3b",reason="max_num_queued_reqs"} 1.0'
                in metrics
            )

    run(main())


@pytest.mark.parametrize(
    ("dialect", "path", "begin"),
    [
        ("vllm", "/v1/completions", b'{"error":{"message"'),
        ("vllm", "/v1/messages", b'{"type":"error","error":{"type"'),
        ("sglang", "/v1/completions", b'{"object":"error","message":"The request queue is full."'),
    ],
)
def test_each_route_has_its_own_error_body(dialect: str, path: str, begin: bytes) -> None:
    assert body_for(dialect, path, queue_full()).startswith(begin)


def test_error_events_keep_the_spaces_that_were_recorded() -> None:
    refusal = Refusal(500, "InternalServerError", "m")
    event = (
        b'data: {"error": {"message": "m", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
    )
    assert event_for("vllm", "/v1/completions", refusal) == event
    assert event_for("vllm", "/v1/messages", refusal).startswith(b"event: error\ndata: ")
    assert event_for("vllm", "/v1/responses", refusal).startswith(b"event: error\ndata: ")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/chat/completions/render", 403), ("/inference/v1/generate", 403)],
)
def test_routes_that_need_a_flag_are_forbidden(path: str, status: int) -> None:
    reply = ask(path, {})
    assert (reply.status, reply.json()["error"]["type"]) == (status, "PermissionDeniedError")
