"""Which paths there are, what the router answers itself, and what no client may reach."""

from __future__ import annotations

import asyncio

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, METRICS, Live, play
from tests.shell.puppet import WHOLE, Ask, answering

ENGINE_PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/pooling",
    "/pooling",
    "/v1/classify",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/v1/images/edits",
]

ADMINISTRATION = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/server_info",
    "/flush_cache",
    "/abort_request",
    "/update_weights_from_disk",
    "/start_profile",
    "/generate",
    "/inference/v1/generate",
    "/mock/faults",
    "/workers",
    "/debug/state",
    "/policies",
    "/route/explain",
    "/docs",
    "/openapi.json",
    "/v1",
    "/v1/",
    "/",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions/render",
    "/v1/responses/../../sleep",
    "/v1/responses/%2e%2e%2fsleep",
    "/V1/chat/completions",
    "/v1/chat/completions%00",
]


@pytest.mark.parametrize("path", ENGINE_PATHS)
def test_every_path_of_the_list_reaches_the_engine(path: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(path, ASK)
        assert (reply.status, reply.body) == (200, WHOLE)
        assert act.puppets["a"].asks[0].path == path

    play(scene, {"a": answering(200, WHOLE)})


def test_no_other_path_reaches_the_engine() -> None:
    async def scene(act: Live) -> None:
        for path in ADMINISTRATION:
            for method in ("GET", "POST", "DELETE", "PUT"):
                reply = await act.ask(path, b"{}" if method in ("POST", "PUT") else b"", method=method)
                assert reply.status in (404, 405), (method, path, reply.status)
                assert reply.error["type"] == "invalid_request_error"
        assert act.puppets["a"].asks == []

    play(scene)


def test_a_path_that_the_operator_allows_passes_with_any_body() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask("/v1/custom", ASK)).body == WHOLE
        assert act.puppets["a"].asks[0].path == "/v1/custom"
        assert (await act.ask("/v1/custom/more", ASK)).status == 404

    play(scene, {"a": answering(200, WHOLE)}, server={"passthrough_paths": ["/v1/custom"]})


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_a_wrong_method_is_405_in_words(method: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, method=method)
        assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
        assert act.puppets["a"].asks == []

    play(scene)


@pytest.mark.parametrize(("path", "status"), [(CHAT, 405), ("/nowhere", 404), ("/health", 200)])
def test_head_is_answered_without_a_body(path: str, status: int) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"HEAD %b HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n" % path.encode())
        received = await client.until_lost()
        assert received.startswith(b"HTTP/1.1 %d " % status)
        assert received.endswith(b"\r\n\r\n")

    play(scene)


def test_a_path_with_odd_characters_is_answered_in_words() -> None:
    async def scene(act: Live) -> None:
        for path in ("/%f0%9f%98%80", "/a%0d%0ab", "/%", "/v1/models/%ff", "/" + "a" * 5000):
            reply = await act.ask(path)
            assert reply.status in (400, 404)
            assert len(reply.error["message"]) < 400

    play(scene)


def test_the_model_list_is_merged_with_the_largest_context() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].models = {"m": 4096, "only-a": None}
        act.puppets["b"].models = {"m": 32768}
        await asyncio.sleep(25)
        listed = (await act.ask("/v1/models")).json()
        assert listed["object"] == "list"
        cards = {card["id"]: card for card in listed["data"]}
        assert set(cards) == {"m", "only-a"}
        assert cards["m"]["max_model_len"] == 32768
        assert cards["m"]["object"] == "model"
        one = await act.ask("/v1/models/only-a")
        assert (one.status, one.json()["id"]) == (200, "only-a")
        assert (await act.ask("/v1/models/none")).status == 404

    play(scene, dict.fromkeys("ab", answering(200, WHOLE)))


def test_a_model_of_one_worker_is_asked_of_that_one_only() -> None:
    async def scene(act: Live) -> None:
        act.puppets["b"].models = {"m": None, "org/lora": None}
        await asyncio.sleep(25)
        for _ in range(6):
            assert (await act.ask(CHAT, {**ASK, "model": "org/lora"})).status == 200
        assert len(act.puppets["b"].asks) == 6

    play(scene, dict.fromkeys("abc", answering(200, WHOLE)))


def test_health_tells_whether_some_worker_is_ready() -> None:
    async def scene(act: Live) -> None:
        for path in ("/health", "/readiness"):
            assert (await act.ask(path)).status == 200
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected")
        for path in ("/health", "/readiness"):
            reply = await act.ask(path)
            assert (reply.status, reply.json()["reason"]) == (503, "no worker is ready")
        assert (await act.ask("/liveness")).status == 200

    play(scene)


def test_metrics_are_on_every_listener() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK)
        for origin in (None, ADMIN, METRICS):
            reply = await (act.ask("/metrics", origin=origin) if origin else act.ask("/metrics"))
            assert reply.status == 200
            assert b"pointsman_requests_in_flight 0" in reply.body
        assert (await act.ask("/workers", origin=METRICS)).status == 404
        assert (await act.ask(CHAT, ASK, origin=ADMIN)).status == 404

    play(scene, {"a": answering(200, WHOLE)}, server={"prometheus_port": 29000})


def test_an_idle_router_shows_zero_everywhere() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK)
        state = await act.debug_state()
        assert state["requests_in_flight"] == 0
        for pool in state["pools"].values():
            assert (pool["queued"], pool["in_flight"]) == (0, 0)
        for worker in state["workers"]:
            zero = ("in_flight", "sequences", "queued_tokens", "kv_tokens")
            assert [worker[name] for name in zero] == [0, 0, 0, 0]

    play(scene, {"a": answering(200, WHOLE)})


def test_state_and_metrics_show_what_runs() -> None:
    async def slow(ask: Ask) -> None:
        await asyncio.sleep(5)
        ask.answer(200, WHOLE)

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, {**ASK, "n": 2})
        await asyncio.sleep(1)
        state = await act.debug_state()
        (worker,) = state["workers"]
        assert (state["requests_in_flight"], worker["in_flight"], worker["sequences"]) == (1, 1, 2)
        assert worker["kv_tokens"] > 0
        assert await act.metric("pointsman_requests_in_flight") == 1
        assert await act.metric("pointsman_worker_requests_in_flight", worker="a") == 1
        await task

    play(scene, {"a": slow})


def test_routing_headers_are_sent_where_they_are_exposed() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert reply.header("x-pointsman-worker") == "a"
        assert reply.header("x-pointsman-policy") == "round_robin"

    play(scene, {"a": answering(200, WHOLE)}, server={"expose_routing_headers": True})


def test_routing_headers_are_kept_to_the_router_otherwise() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert not [name for name, _ in reply.headers if name.startswith("x-pointsman")]

    play(scene, {"a": answering(200, WHOLE)})


def test_the_request_id_of_the_client_goes_in_and_out() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK, {"x-request-id": "abc-1:2.3_4"})
        assert reply.header("x-request-id") == "abc-1:2.3_4"
        assert act.puppets["a"].asks[0].header("x-request-id") == "abc-1:2.3_4"

    play(scene, {"a": answering(200, WHOLE)})


def test_a_request_id_is_made_where_there_was_none() -> None:
    async def scene(act: Live) -> None:
        ids = {(await act.ask(CHAT, ASK)).header("x-request-id") for _ in range(3)}
        assert len(ids) == 3
        assert None not in ids
        assert {ask.header("x-request-id") for ask in act.puppets["a"].asks} == ids

    play(scene, {"a": answering(200, WHOLE)})


def test_a_request_id_is_made_safe() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK, {"x-request-id": 'a"b c/d\xe9' + "x" * 500})
        assert reply.header("x-request-id") == "a_b_c_d_" + "x" * 120
        assert act.puppets["a"].asks[0].header("x-request-id") == reply.header("x-request-id")

    play(scene, {"a": answering(200, WHOLE)})


def test_two_requests_with_one_id_are_both_served() -> None:
    async def slow(ask: Ask) -> None:
        await asyncio.sleep(1)
        ask.answer(200, WHOLE)

    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, ASK, {"x-request-id": "same"}) for _ in range(3)]
        assert [(await task).status for task in tasks] == [200, 200, 200]

    play(scene, {"a": slow}, pool={"slots": 1, "binding": "late"})


def test_every_refusal_carries_the_request_id() -> None:
    async def scene(act: Live) -> None:
        named = {"x-request-id": "mine"}
        replies = [
            await act.ask(CHAT, b"{", named),
            await act.ask(CHAT, {**ASK, "model": "x"}, named),
            await act.ask(CHAT, headers=named, method="GET"),
            await act.ask("/v1/responses/resp_1", headers=named),
        ]
        assert [reply.header("x-request-id") for reply in replies] == ["mine"] * len(replies)

    play(scene, {"a": answering(200, WHOLE)})


def test_every_answer_has_a_date() -> None:
    async def scene(act: Live) -> None:
        first = (await act.ask("/liveness")).header("date")
        await asyncio.sleep(10)
        assert (await act.ask("/liveness")).header("date") != first
        assert "GMT" in str(first)

    play(scene, {"a": answering(200, WHOLE)})
