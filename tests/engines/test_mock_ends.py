"""How the process of a mock engine ends, or closes its door, and comes back."""

from __future__ import annotations

import asyncio

import pytest

from engines.mock.faults import Fault
from router.core.errors import ConnectFailed, UpstreamBroken, UpstreamClosed
from router.virtual.clock import run
from tests.engines.fault_stage import STREAM, broken_off, idle, silent_after
from tests.engines.mock_stage import TEXT, stage

POISON = {**TEXT, "kv_transfer_params": {"do_remote_prefill": True}}


def test_refuse_closes_the_door_for_its_time_and_keeps_who_is_inside() -> None:
    async def main() -> None:
        async with stage() as act:
            inside = await act.open("/v1/completions", {**STREAM, "max_tokens": 100})
            await act.fault("refuse", delay_s=60)
            act.upstream.forget(act.origin)
            with pytest.raises(ConnectFailed):
                await act.ask("/v1/completions", TEXT)
            assert b"[DONE]" in await inside.read_all(max_bytes=1 << 20, until=None)
            inside.close()
            await asyncio.sleep(60)
            act.upstream.forget(act.origin)
            assert (await act.ask("/v1/completions", TEXT)).status == 200

    run(main())


def test_a_crash_resets_every_connection_and_comes_back_empty() -> None:
    async def main() -> None:
        async with stage(restart_delay_s=20) as act:
            before = await act.state()
            long = {"prompt": "word " * 100, "max_tokens": 500, "ignore_eos": True}
            streaming = await act.open("/v1/completions", {**long, "stream": True})
            waiting = asyncio.ensure_future(act.ask("/v1/completions", long))
            await asyncio.sleep(0.1)
            act.process.crash(Fault(kind="crash"))
            assert b"[DONE]" not in await broken_off(streaming)
            with pytest.raises((UpstreamClosed, UpstreamBroken, ConnectFailed)):
                await waiting
            streaming.close()
            with pytest.raises(ConnectFailed):
                await act.ask("/health")
            await asyncio.sleep(20)
            after = await act.state()
            assert after["incarnation"] == before["incarnation"] + 1
            assert after["started_unix_s"] > before["started_unix_s"] + 20
            assert idle(act)
            again = (await act.ask("/v1/completions", {**long, "max_tokens": 1})).json()
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    run(main())


def test_a_crash_in_mid_stream_waits_for_its_events() -> None:
    async def main() -> None:
        async with stage(restart_delay_s=5) as act:
            await act.fault("crash", after_events=2, count=1)
            exchange = await act.open("/v1/completions", STREAM)
            received = await broken_off(exchange)
            assert received.count(b"data: ") == 2
            exchange.close()
            await asyncio.sleep(5)
            assert (await act.ask("/v1/completions", TEXT)).status == 200
            assert act.process.incarnation == 2

    run(main())


@pytest.mark.parametrize("poisoned", [False, True])
def test_engine_death_says_an_error_and_done_and_then_refuses(poisoned: bool) -> None:
    async def main() -> None:
        async with stage(restart_delay_s=5) as act:
            streaming = asyncio.ensure_future(act.ask("/v1/completions", {**STREAM, "max_tokens": 500}))
            whole = asyncio.ensure_future(
                act.ask("/v1/completions", {**TEXT, "max_tokens": 500, "ignore_eos": True})
            )
            await asyncio.sleep(0.1)
            if poisoned:
                killer = await act.ask("/v1/completions", POISON)
                assert (killer.status, killer.json()["error"]["type"]) == (500, "InternalServerError")
            else:
                await act.fault("engine_death")
            stream = await streaming
            assert stream.status == 200
            assert stream.events()[-2].startswith(
                b'data: {"error": {"message": "EngineCore encountered an issue.'
            )
            assert stream.events()[-1] == b"data: [DONE]"
            body = await whole
            assert (body.status, body.json()["error"]["code"]) == (500, 500)
            act.upstream.forget(act.origin)
            with pytest.raises(ConnectFailed):
                await act.ask("/health")
            await asyncio.sleep(5)
            assert (await act.ask("/health")).status == 200
            assert act.process.incarnation == 2

    run(main())


@pytest.mark.parametrize(
    "handle",
    [
        None,
        {"do_remote_decode": True},
        {"do_remote_prefill": False},
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1]]},
    ],
)
def test_other_hand_overs_do_not_kill(handle: object) -> None:
    async def main() -> None:
        async with stage() as act:
            reply = await act.ask("/v1/completions", {**TEXT, "kv_transfer_params": handle})
            assert reply.status == 200
            assert act.process.up

    run(main())


def test_sigterm_abort_ends_streams_with_abort_and_done() -> None:
    async def main() -> None:
        async with stage() as act:
            streaming = asyncio.ensure_future(act.ask("/v1/completions", {**STREAM, "max_tokens": 500}))
            await asyncio.sleep(0.1)
            await act.fault("sigterm_abort", delay_s=30)
            reply = await streaming
            assert reply.data()[-1]["choices"][0]["finish_reason"] == "abort"
            assert reply.events()[-1] == b"data: [DONE]"
            act.upstream.forget(act.origin)
            with pytest.raises(ConnectFailed):
                await act.ask("/health")
            await asyncio.sleep(30)
            assert (await act.ask("/health")).status == 200
            assert act.process.incarnation == 2

    run(main())


def test_sigterm_silence_leaves_streams_without_a_byte_and_without_an_end() -> None:
    async def main() -> None:
        async with stage(sse_keep_alive_interval_s=1.0) as act:
            exchange = await act.open("/v1/completions", {**STREAM, "max_tokens": 500})
            await asyncio.sleep(0.1)
            await act.fault("sigterm_silence")
            assert b"keep-alive" not in await silent_after(exchange, 3600)
            exchange.close()
            await asyncio.sleep(0.01)
            assert act.app.in_progress == 0

    run(main())


def test_a_replaced_process_closes_the_streams_that_fell_silent() -> None:
    async def main() -> None:
        async with stage() as act:
            exchange = await act.open("/v1/completions", {**STREAM, "max_tokens": 500})
            await asyncio.sleep(0.1)
            await act.fault("sigterm_silence", delay_s=60)
            assert b"[DONE]" not in await broken_off(exchange)
            exchange.close()
            assert act.process.incarnation == 2

    run(main())


def test_refuse_without_a_listener_is_itself_refused() -> None:
    async def main() -> None:
        async with stage() as act:
            act.process.listener = None
            assert (await act.ask("/mock/faults", {"kind": "refuse"})).status == 400

    run(main())
