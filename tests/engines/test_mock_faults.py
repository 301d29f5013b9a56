"""Each fault does to a client what it says, and nothing is left behind in the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.mock.app import create_app
from engines.mock.faults import ENGINE_FAULTS, HANDOVER_FAULTS, KINDS, REQUEST_FAULTS, Fault
from router.core.errors import UpstreamBroken, UpstreamClosed
from router.virtual.clock import run
from tests.engines.fault_stage import STREAM, broken_off, idle, silent_after
from tests.engines.mock_stage import CHAT, TEXT, UNIX_ORIGIN_S, spoken, stage


def test_reset_ends_the_connection_after_the_request_was_read() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("reset", count=1)
            act.upstream.forget(act.origin)  # a pooled connection would be tried again
            with pytest.raises((UpstreamClosed, UpstreamBroken)):
                await act.ask("/v1/completions", TEXT)
            assert (await act.ask("/v1/completions", TEXT)).status == 200
            assert idle(act)

    run(main())


def test_hang_headers_sends_nothing_until_the_client_leaves() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("hang_headers", count=1)
            asking = asyncio.ensure_future(act.ask("/v1/completions", TEXT))
            await asyncio.sleep(3600)
            assert not asking.done()
            asking.cancel()
            await asyncio.sleep(0.01)
            assert idle(act)
            assert act.app.in_progress == 0

    run(main())


def test_hang_headers_with_a_delay_serves_afterwards() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("hang_headers", count=1, delay_s=30)
            start = asyncio.get_running_loop().time()
            assert (await act.ask("/v1/completions", TEXT)).status == 200
            assert asyncio.get_running_loop().time() - start > 30

    run(main())


def test_hang_stream_stops_after_its_events() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("hang_stream", after_events=2)
            exchange = await act.open("/v1/completions", STREAM)
            assert (await silent_after(exchange, 600)).count(b"data: ") == 2
            exchange.close()
            await asyncio.sleep(0.01)
            assert idle(act)
            assert act.app.in_progress == 0

    run(main())


def test_hang_stream_with_a_delay_goes_on_and_loses_nothing() -> None:
    async def main() -> None:
        async with stage() as act:
            whole = (await act.ask("/v1/completions", STREAM)).text()
            await act.fault("hang_stream", after_events=2, delay_s=50, count=1)
            reply = await act.ask("/v1/completions", STREAM)
            assert reply.text() == whole
            assert reply.chunks[-1][0] - reply.chunks[0][0] >= 50

    run(main())


def test_half_a_body_hangs_too() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("hang_stream", delay_s=9, count=1)
            start = asyncio.get_running_loop().time()
            reply = await act.ask("/v1/completions", TEXT)
            assert reply.json()["usage"]["completion_tokens"] == 4
            assert asyncio.get_running_loop().time() - start >= 9

    run(main())


def test_slow_stretches_steps_for_its_time() -> None:
    async def main() -> None:
        async with stage() as act:

            async def took() -> float:
                start = asyncio.get_running_loop().time()
                await act.ask("/v1/completions", {**TEXT, "max_tokens": 50, "ignore_eos": True})
                return asyncio.get_running_loop().time() - start

            plain = await took()
            await act.fault("slow", factor=20, delay_s=plain * 100)
            assert await took() == pytest.approx(20 * plain, rel=0.05)
            await asyncio.sleep(plain * 100)
            assert await took() == pytest.approx(plain, rel=0.05)

    run(main())


def test_garbage_is_not_http() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("garbage", count=1)
            with pytest.raises((UpstreamBroken, UpstreamClosed)):
                await act.ask("/v1/completions", TEXT)
            assert idle(act)

    run(main())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_status_answers_with_an_error_body(status: int) -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("status", status=status, path="/v1/completions", count=1)
            assert (await act.ask("/v1/chat/completions", CHAT)).status == 200
            reply = await act.ask("/v1/completions", TEXT)
            assert (reply.status, reply.json()["error"]["code"]) == (status, status)
            assert ("retry-after" in reply.headers) == (status in {429, 503})
            assert (await act.ask("/v1/completions", TEXT)).status == 200

    run(main())


def test_error_first_is_a_200_whose_first_event_is_an_error() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("error_first", status=503)
            reply = await act.ask("/v1/completions", STREAM)
            assert reply.status == 200
            first, last = reply.events()
            assert first.startswith(b'data: {"error": {"message": ')
            assert b'"code": 503' in first
            assert last == b"data: [DONE]"

    run(main())


@pytest.mark.parametrize(("body", "begin"), [(STREAM, b"data: "), (TEXT, b'{"id"')])
def test_close_early_cuts_a_stream_and_a_body(body: dict[str, Any], begin: bytes) -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("close_early", after_events=3, count=1)
            exchange = await act.open("/v1/completions", body)
            received = await broken_off(exchange)
            assert received.startswith(begin)
            assert received.count(b"data: ") in {0, 3}
            assert b"[DONE]" not in received
            exchange.close()
            await asyncio.sleep(0.01)
            assert idle(act)

    run(main())


def test_multi_token_puts_several_tokens_in_an_event() -> None:
    async def main() -> None:
        async with stage() as act:
            whole = (await act.ask("/v1/completions", STREAM)).text()
            await act.fault("multi_token", tokens=3)
            reply = await act.ask("/v1/completions", {**STREAM, "return_token_ids": True})
            counts = [len(event["choices"][0]["token_ids"]) for event in reply.data()]
            assert counts == [1, 3, 2]
            assert reply.text() == whole

    run(main())


def test_empty_events_hold_their_text_back_and_lose_none() -> None:
    async def main() -> None:
        async with stage() as act:
            whole = (await act.ask("/v1/completions", STREAM)).text()
            await act.fault("empty")
            reply = await act.ask("/v1/completions", STREAM)
            assert "" in [event["choices"][0]["text"] for event in reply.data()]
            assert reply.text() == whole

    run(main())


def test_comments_come_before_the_first_event_and_between() -> None:
    async def main() -> None:
        async with stage() as act:
            plain = (await act.ask("/v1/completions", {**STREAM, "request_id": "r"})).events()
            await act.fault("comments")
            events = (await act.ask("/v1/completions", {**STREAM, "request_id": "r"})).events()
            assert events[0] == b": keep-alive"
            kept = [event for event in events if not event.startswith(b":")]
            assert [event.split(b'"choices"')[1:] for event in kept] == [
                event.split(b'"choices"')[1:] for event in plain
            ]
            assert events.count(b": keep-alive") == len(kept) + 1

    run(main())


def test_crlf_ends_every_line() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("crlf")
            reply = await act.ask("/v1/completions", STREAM)
            assert reply.body.count(b"\r\n\r\n") == 7
            assert reply.body.replace(b"\r\n", b"").count(b"\n") == 0

    run(main())


def test_flap_fails_every_second_health_check_and_nothing_else() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("flap")
            statuses = [(await act.ask("/health")).status for _ in range(4)]
            assert statuses == [503, 200, 503, 200]
            assert (await act.ask("/v1/completions", TEXT)).status == 200

    run(main())


def test_a_fault_hits_its_path_as_often_as_it_says() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.fault("status", status=500, path="/v1/", count=2)
            statuses = [(await act.ask("/v1/models")).status for _ in range(3)]
            assert statuses == [500, 500, 200]
            assert (await act.ask("/health")).status == 200

    run(main())


def test_clearing_ends_faults_and_heals_the_engine() -> None:
    async def main() -> None:
        async with stage(restart_delay_s=3600) as act:
            await act.fault("status", status=500)
            await act.fault("slow", factor=7)
            assert (await act.ask("/mock/faults")).json()["faults"][0]["kind"] == "status"
            assert (await act.ask("/mock/faults", method="DELETE")).json() == {"faults": []}
            assert (await act.ask("/v1/completions", TEXT)).status == 200
            assert act.process.ticker.slowness == 1.0

    run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "nonsense"},
        {},
        {"kind": "reset", "count": 0},
        {"kind": "status", "status": 99},
        {"kind": "slow", "factor": 0},
        {"kind": "hang_stream", "delay_s": -1},
        {"kind": "multi_token", "tokens": -1},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    async def main() -> None:
        async with stage() as act:
            assert (await act.ask("/mock/faults", fields)).status == 400
            assert not act.app.faults

    run(main())


def test_every_kind_says_what_it_does() -> None:
    assert KINDS == {**ENGINE_FAULTS, **REQUEST_FAULTS, **HANDOVER_FAULTS}
    assert not set(ENGINE_FAULTS) & set(REQUEST_FAULTS)


def test_the_state_shows_what_was_received() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.ask("/v1/completions?x=1", TEXT, {"X-Tenant": "blue"})
            (seen,) = [one for one in (await act.state())["requests"] if one["path"] == "/v1/completions"]
            assert ["x-tenant", "blue"] in seen["headers"]
            assert (seen["method"], seen["query"], seen["body_bytes"]) == ("POST", "x=1", 50)
            assert len(seen["body_sha256"]) == 64
            for _ in range(3):
                await act.ask("/metrics")
            state = await act.state()
            assert state["requests_seen"]["/metrics"] == 3
            assert all(one["path"] != "/metrics" for one in state["requests"])
            await act.ask("/mock/state", method="DELETE")
            assert (await act.state())["requests"] == []

    run(main())


def test_a_client_inside_the_process_sees_a_reset_as_an_exception() -> None:
    async def main() -> None:
        app = create_app(unix_origin_s=UNIX_ORIGIN_S)
        app.faults.add(Fault(kind="reset"))
        with pytest.raises(ConnectionResetError):
            await spoken(app, "/v1/completions", TEXT)

    run(main())
