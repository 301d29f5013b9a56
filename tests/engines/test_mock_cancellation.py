"""A client that leaves: the engine forgets its request at once, in whatever phase it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.upstream.client import WireRequest
from router.virtual.clock import run
from tests.engines.mock_stage import TEXT, Reply, Stage, stage

LONG = {"prompt": "word " * 200, "max_tokens": 1000, "ignore_eos": True}


def assert_idle(act: Stage) -> None:
    engine = act.process.engine
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.idle
    assert act.process.in_progress == 0
    assert act.app.in_progress == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.5])
def test_a_disconnect_frees_the_kv_cache_at_once(stream: bool, after_s: float) -> None:
    async def main() -> None:
        async with stage() as act:
            asking = asyncio.ensure_future(act.ask("/v1/completions", {**LONG, "stream": stream}))
            await asyncio.sleep(0.01)
            assert act.process.engine.running == 1
            await asyncio.sleep(after_s)
            asking.cancel()
            await asyncio.sleep(0.001)
            assert_idle(act)
            assert act.process.account.aborted == 1

    run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"])
def test_every_api_lets_go_when_its_client_leaves(path: str) -> None:
    text = "word " * 200
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "input": text,
        "max_tokens": 1000,
        "ignore_eos": True,
    }

    async def main() -> None:
        async with stage(time_scale=50.0) as act:
            asking = asyncio.ensure_future(act.ask(path, body))
            await asyncio.sleep(0.1)
            assert act.process.in_progress == 1
            asking.cancel()
            await asyncio.sleep(0.001)
            assert_idle(act)

    run(main())


def test_a_waiting_request_leaves_the_queue() -> None:
    async def main() -> None:
        async with stage(max_num_seqs=1) as act:
            first = asyncio.ensure_future(act.ask("/v1/completions", {**LONG, "max_tokens": 50}))
            await asyncio.sleep(0.01)
            second = asyncio.ensure_future(act.ask("/v1/completions", LONG))
            await asyncio.sleep(0.01)
            assert act.process.engine.waiting == 1
            second.cancel()
            await asyncio.sleep(0.001)
            assert (act.process.engine.running, act.process.engine.waiting) == (1, 0)
            assert (await first).status == 200
            assert_idle(act)

    run(main())


def test_all_answers_of_a_request_go_with_it() -> None:
    async def main() -> None:
        async with stage() as act:
            body = {**LONG, "prompt": ["a", "b"], "n": 3}
            asking = asyncio.ensure_future(act.ask("/v1/completions", body))
            await asyncio.sleep(0.05)
            assert act.process.engine.running == 6
            assert act.process.in_progress == 1
            asking.cancel()
            await asyncio.sleep(0.001)
            assert_idle(act)
            assert act.process.account.aborted == 1

    run(main())


def test_a_thousand_clients_leave_at_once() -> None:
    async def main() -> None:
        async with stage(max_num_seqs=64) as act:
            asks = [
                asyncio.ensure_future(act.ask("/v1/completions", {**LONG, "stream": index % 2 == 0}))
                for index in range(1000)
            ]
            await asyncio.sleep(1.0)
            assert act.process.engine.running == 64
            for asking in asks:
                asking.cancel()
            await asyncio.sleep(0.01)
            assert_idle(act)
            assert act.process.account.aborted == 1000

    run(main())


def test_the_rest_of_the_batch_does_not_notice() -> None:
    async def main() -> tuple[str, str]:
        async with stage() as act:
            alone = await act.ask("/v1/completions", {**TEXT, "max_tokens": 40})
            leaving = asyncio.ensure_future(act.ask("/v1/completions", LONG))
            staying = asyncio.ensure_future(act.ask("/v1/completions", {**TEXT, "max_tokens": 40}))
            await asyncio.sleep(0.05)
            leaving.cancel()
            return alone.json()["choices"][0]["text"], (await staying).json()["choices"][0]["text"]

    alone, beside = run(main())
    assert alone == beside


def test_a_client_that_leaves_while_it_sends_its_body_is_forgotten() -> None:
    async def main() -> None:
        async with stage() as act:

            async def half() -> Any:
                yield b'{"prompt": "x", '
                await asyncio.sleep(3600)

            request = WireRequest(
                b"POST", b"/v1/completions", ((b"content-type", b"application/json"),), half()
            )
            asking = asyncio.ensure_future(act.upstream.open(act.origin, request))
            await asyncio.sleep(0.1)
            assert act.app.in_progress == 1
            asking.cancel()
            await asyncio.sleep(0.001)
            assert_idle(act)

    run(main())


def test_a_slow_reader_gets_merged_events_and_loses_nothing() -> None:
    async def main() -> None:
        async with stage() as act:
            body = {**LONG, "max_tokens": 3000, "stream": True}
            whole = (await act.ask("/v1/completions", {**body, "stream": False})).json()
            exchange = await act.open("/v1/completions", body)
            await asyncio.sleep(600)
            assert act.process.engine.idle
            received = await exchange.read_all(max_bytes=1 << 24, until=None)
            exchange.close()
            assert received.count(b'"text":') < 3000
            assert Reply(200, {}, received).text() == whole["choices"][0]["text"]

    run(main())
