from __future__ import annotations

import asyncio

import pytest

from router.core.errors import ConnectFailed, Overloaded, UpstreamBroken, UpstreamClosed
from router.upstream.client import WireRequest
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from tests.upstream.stage import (
    ASK,
    HELLO,
    ORIGIN,
    STREAM_HEAD,
    Conversation,
    Stage,
    Worker,
    answering,
    chunk,
    play,
    silent,
)


async def ask(stage: Stage) -> bytes:
    with await stage.upstream.open(ORIGIN, ASK) as exchange:
        return await exchange.read_all(max_bytes=1000, until=None)


def test_request_goes_out_whole_and_the_answer_comes_back() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        with await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 5) as exchange:
            assert exchange.status == 200
            assert exchange.headers == [(b"content-length", b"5")]
            assert repr(stage.upstream) == "<Upstream [1 busy | 0 idle | 1 origins]>"
            assert await exchange.read() == b"hello"
            assert await exchange.read() == b""
            assert exchange.complete
        assert worker.conversations[0].received == (
            b"POST /v1/completions HTTP/1.1\r\nhost: worker:8000\r\ncontent-type: application/json\r\n"
            b'content-length: 8\r\n\r\n{"n": 1}'
        )
        assert repr(stage.upstream) == "<Upstream [0 busy | 1 idle | 1 origins]>"
        assert repr(exchange) == "<Exchange 200 [closed | complete]>"

    play(scene)


def test_target_is_relative_to_the_base_path() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        origin = Origin.parse("http://worker:8000/engine/")
        await stage.upstream.fetch(origin, WireRequest(b"GET", b"/metrics?a=b"), total_s=1, max_bytes=5)
        assert worker.conversations[0].received.startswith(b"GET /engine/metrics?a=b HTTP/1.1\r\n")

    play(scene)


def test_requests_one_after_the_other_share_a_connection() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        for _ in range(10):
            assert await ask(stage) == b"hello"
        assert len(worker.conversations) == 1

    play(scene)


def test_requests_at_once_have_a_connection_each_and_the_freshest_is_used_next() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        exchanges = [await stage.upstream.open(ORIGIN, ASK) for _ in range(3)]
        assert repr(stage.upstream) == "<Upstream [3 busy | 0 idle | 1 origins]>"
        for exchange in exchanges:
            exchange.close()
        await ask(stage)
        await ask(stage)
        assert [conversation.requests for conversation in worker.conversations] == [1, 1, 3]

    play(scene)


def test_closing_twice_settles_once() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(HELLO))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        exchange.close()
        exchange.close()
        assert repr(stage.upstream) == "<Upstream [0 busy | 1 idle | 1 origins]>"

    play(scene)


def test_a_complete_answer_that_nobody_read_still_leaves_a_clean_connection() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        (await stage.upstream.open(ORIGIN, ASK)).close()
        assert await ask(stage) == b"hello"
        assert len(worker.conversations) == 1

    play(scene)


def test_an_incomplete_answer_closes_the_connection_at_once() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD + chunk(b"data: 1\n\n")))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        assert await exchange.read() == b"data: 1\n\n"
        exchange.close()
        assert not exchange.complete
        await stage.turns()
        assert isinstance(worker.conversations[0].lost, ConnectionResetError)
        await stage.assert_nothing_is_left()

    play(scene)


def test_idle_connections_are_closed_before_the_engine_does() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        await ask(stage)
        await asyncio.sleep(2.9)
        assert worker.open_connections == 1
        await asyncio.sleep(0.2)
        assert worker.open_connections == 0
        await stage.assert_nothing_is_left()

    play(scene)


def test_an_expired_connection_is_never_used_even_before_the_sweep() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        await ask(stage)
        wire = stage.upstream._idle.take(ORIGIN, stage.loop.time() + 2.99)
        assert wire is not None
        assert stage.upstream._idle.put(wire, stage.loop.time())
        assert stage.upstream._idle.take(ORIGIN, stage.loop.time() + 3.0) is None
        await stage.turns()
        assert worker.open_connections == 0

    play(scene)


def test_use_keeps_a_connection_young_and_one_timer_serves_all() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        exchanges = [await stage.upstream.open(ORIGIN, ASK) for _ in range(5)]
        for exchange in exchanges:
            exchange.close()
        assert len(stage.timers()) == 1
        for _ in range(10):
            await asyncio.sleep(2)
            await ask(stage)
        assert worker.open_connections == 1
        assert len(worker.conversations) == 5

    play(scene)


def test_idle_connections_are_bounded_per_origin_and_in_all() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        stage.network.serve("other", 8000, worker.talk)
        for origin in (ORIGIN, Origin("http", "other", 8000, "")):
            exchanges = [await stage.upstream.open(origin, ASK) for _ in range(4)]
            for exchange in exchanges:
                exchange.close()
        await stage.turns()
        assert repr(stage.upstream) == "<Upstream [0 busy | 3 idle | 2 origins]>"
        assert worker.open_connections == 3

    play(scene, UpstreamSettings(max_idle_per_origin=2, max_idle=3))


def test_a_connection_that_the_peer_closes_while_idle_is_gone_at_once() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        await ask(stage)
        worker.conversations[0].transport.close()
        await stage.turns()
        assert repr(stage.upstream) == "<Upstream [0 busy | 0 idle | 0 origins]>"

    play(scene)


def test_bytes_on_an_idle_connection_close_it() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        await ask(stage)
        worker.conversations[0].send(HELLO)
        await stage.turns()
        assert worker.open_connections == 0
        assert await ask(stage) == b"hello"

    play(scene)


def test_bytes_after_the_answer_keep_the_connection_from_being_used_again() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO + HELLO))
        for _ in range(2):
            assert await ask(stage) == b"hello"
        assert [conversation.requests for conversation in worker.conversations] == [1, 1]

    play(scene)


def test_late_bytes_after_the_answer_keep_the_connection_from_being_used_again() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        worker.conversations[0].send(b"more")
        await stage.turns()
        assert await exchange.read() == b"hello"
        exchange.close()
        await stage.assert_nothing_is_left()

    play(scene)


def test_connection_close_is_obeyed() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
        for _ in range(2):
            assert await ask(stage) == b"hello"
        assert len(worker.conversations) == 2

    play(scene)


def closes_the_second(conversation: Conversation) -> None:
    """As an engine whose keep-alive ran out while our request was on its way."""
    if conversation.requests == 1:
        conversation.send(HELLO)
    else:
        conversation.transport.abort()


def test_a_reused_connection_that_turns_out_closed_is_replaced_once() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(closes_the_second)
        await ask(stage)
        assert await ask(stage) == b"hello"
        assert [conversation.requests for conversation in worker.conversations] == [2, 1]
        assert repr(stage.upstream) == "<Upstream [0 busy | 1 idle | 1 origins]>"

    play(scene)


def test_a_fresh_connection_that_closes_unanswered_is_not_tried_again() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(lambda conversation: conversation.transport.abort())
        with pytest.raises(UpstreamClosed) as caught:
            await ask(stage)
        assert caught.value.sent
        assert len(worker.conversations) == 1
        await stage.assert_nothing_is_left()

    play(scene)


def test_a_reused_connection_that_closes_late_has_been_seen_and_is_not_replaced() -> None:
    async def scene(stage: Stage) -> None:
        def crashes_late(conversation: Conversation) -> None:
            if conversation.requests == 1:
                conversation.send(HELLO)
            else:
                stage.loop.call_later(1.5, conversation.transport.abort)

        worker = stage.worker(crashes_late)
        await ask(stage)
        with pytest.raises(UpstreamClosed) as caught:
            await ask(stage)
        assert caught.value.sent
        assert len(worker.conversations) == 1

    play(scene)


def test_a_reused_connection_that_breaks_off_in_the_answer_is_not_replaced() -> None:
    async def scene(stage: Stage) -> None:
        def breaks(conversation: Conversation) -> None:
            conversation.send(HELLO if conversation.requests == 1 else b"HTTP/1.1 200")
            if conversation.requests == 2:
                conversation.transport.close()

        worker = stage.worker(breaks)
        await ask(stage)
        with pytest.raises(UpstreamBroken):
            await ask(stage)
        assert len(worker.conversations) == 1

    play(scene)


def test_when_the_replacement_is_refused_the_request_counts_as_sent() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(closes_the_second)
        await ask(stage)
        stage.network.refuse(ORIGIN.host, ORIGIN.port)
        with pytest.raises(UpstreamClosed) as caught:
            await ask(stage)
        assert caught.value.sent
        assert isinstance(caught.value.__cause__, ConnectFailed)

    play(scene)


def test_refused_is_said_without_an_address_and_nothing_was_sent() -> None:
    async def scene(stage: Stage) -> None:
        with pytest.raises(ConnectFailed, match="refused") as caught:
            await ask(stage)
        assert not caught.value.sent
        assert "worker:8000" not in str(caught.value)
        await stage.assert_nothing_is_left()

    play(scene)


def test_forget_closes_what_is_idle_and_leaves_what_is_busy() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(HELLO))
        busy, other = [await stage.upstream.open(ORIGIN, ASK) for _ in range(2)]
        other.close()
        stage.upstream.forget(ORIGIN)
        await stage.turns()
        assert repr(stage.upstream) == "<Upstream [1 busy | 0 idle | 1 origins]>"
        assert await busy.read() == b"hello"
        busy.close()

    play(scene)


def test_aclose_ends_waiting_readers_and_openers_with_a_clear_error() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD))
        stage.network.serve("mute", 1, Worker(silent).talk)
        exchange = await stage.upstream.open(ORIGIN, ASK)
        reader = asyncio.create_task(exchange.read())
        opener = asyncio.create_task(stage.upstream.open(Origin("http", "mute", 1, ""), ASK))
        await stage.turns()
        await stage.upstream.aclose()
        for task in (reader, opener):
            with pytest.raises(Overloaded, match="shutting down"):
                await task
        exchange.close()
        with pytest.raises(Overloaded, match="shutting down"):
            await stage.upstream.open(ORIGIN, ASK)
        await stage.assert_nothing_is_left()

    play(scene)


def test_aclose_while_connecting_leaves_no_connection() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        opener = asyncio.create_task(stage.upstream.open(ORIGIN, ASK))
        await asyncio.sleep(0)
        await stage.upstream.aclose()
        with pytest.raises(Overloaded, match="shutting down"):
            await opener
        await stage.turns()
        assert worker.open_connections == 0

    play(scene)
