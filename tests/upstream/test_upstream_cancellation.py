"""Cancelled at any await, a request leaves no connection, no timer, no task and no account behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from router.upstream.client import WireRequest
from router.upstream.exchange import AnsweredMeanwhile
from router.virtual.transport import LinkSettings
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


async def cancel(stage: Stage, awaited: Coroutine[Any, Any, object], after_s: float) -> None:
    task = asyncio.create_task(awaited)
    await asyncio.sleep(after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def assert_gone(stage: Stage, worker: Worker | None = None) -> None:
    await stage.assert_nothing_is_left()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert worker is None or worker.open_connections == 0


def test_while_connecting() -> None:
    async def scene(stage: Stage) -> None:
        stage.network.hang(ORIGIN.host, ORIGIN.port)
        await cancel(stage, stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9), 0.5)
        await assert_gone(stage)

    play(scene)


def test_in_the_turn_in_which_the_connection_is_made() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        for turns in range(6):
            task = asyncio.create_task(stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9))
            await stage.turns(turns)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await assert_gone(stage, worker)

    play(scene)


def test_while_waiting_for_the_head() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        await cancel(stage, stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9), 1)
        await assert_gone(stage, worker)

    play(scene)


def test_in_the_turn_in_which_the_whole_answer_comes_it_tells_the_answer() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        task = asyncio.create_task(stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9))
        await asyncio.sleep(1)
        (wire,) = stage.upstream._wires
        wire.data_received(HELLO)
        task.cancel()
        with pytest.raises(AnsweredMeanwhile) as answered:
            await task
        assert (answered.value.status, answered.value.body) == (200, b"hello")
        assert task.cancelled()
        await assert_gone(stage, worker)

    play(scene)


def test_in_the_turn_in_which_half_an_answer_comes_it_is_cancelled_like_any_other() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        task = asyncio.create_task(stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9))
        await asyncio.sleep(1)
        (wire,) = stage.upstream._wires
        wire.data_received(HELLO[:-1])
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert not isinstance(cancelled.value, AnsweredMeanwhile)
        await assert_gone(stage, worker)

    play(scene)


def test_who_wants_to_know_is_told_when_the_first_byte_has_left_and_only_then() -> None:
    async def scene(stage: Stage) -> None:
        told: list[float] = []
        request = WireRequest(b"POST", b"/", (), b"{}", on_sending=lambda: told.append(stage.loop.time()))
        stage.network.hang(ORIGIN.host, ORIGIN.port)
        await cancel(stage, stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 9), 0.5)
        assert told == []
        stage.network.accept(ORIGIN.host, ORIGIN.port)
        stage.worker(silent)
        await cancel(stage, stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 9), 0.5)
        assert len(told) == 1
        await assert_gone(stage)

    play(scene)


def test_while_waiting_for_the_head_on_a_reused_connection() -> None:
    async def scene(stage: Stage) -> None:
        def answers_once(conversation: Conversation) -> None:
            if conversation.requests == 1:
                conversation.send(HELLO)

        worker = stage.worker(answers_once)
        (await stage.upstream.open(ORIGIN, ASK)).close()
        await cancel(stage, stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9), 1)
        assert len(worker.conversations) == 1
        await asyncio.sleep(3)  # the sweep timer of the idle connection that was
        await assert_gone(stage, worker)

    play(scene)


def test_while_the_stale_connection_is_replaced() -> None:
    async def scene(stage: Stage) -> None:
        def closes_the_second(conversation: Conversation) -> None:
            if conversation.requests == 1:
                conversation.send(HELLO)
            else:
                stage.network.hang(ORIGIN.host, ORIGIN.port)
                conversation.transport.abort()

        worker = stage.worker(closes_the_second)
        (await stage.upstream.open(ORIGIN, ASK)).close()
        await cancel(stage, stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9), 0.5)
        await asyncio.sleep(3)
        await assert_gone(stage, worker)

    play(scene)


def test_while_reading() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        await cancel(stage, exchange.read(stage.loop.time() + 9), 1)
        await stage.turns()
        assert worker.open_connections == 0
        exchange.close()
        await assert_gone(stage, worker)

    play(scene)


def test_in_the_turn_in_which_the_bytes_arrive() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD))
        for turns in range(5):
            exchange = await stage.upstream.open(ORIGIN, ASK)
            reader = asyncio.create_task(exchange.read(stage.loop.time() + 9))
            await stage.turns()
            worker.conversations[-1].send(chunk(b"x"))
            await stage.turns(turns)
            reader.cancel()
            await asyncio.wait([reader])
            exchange.close()
            await assert_gone(stage, worker)

    play(scene)


def test_while_a_large_body_waits_for_the_worker() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        request = WireRequest(b"POST", b"/", (), b"x" * 1_000_000)
        opener = asyncio.create_task(stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 99))
        await stage.turns(3)
        worker.conversations[0].transport.pause_reading()
        await asyncio.sleep(1)
        opener.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opener
        worker.conversations[0].transport.resume_reading()
        await assert_gone(stage, worker)

    play(scene, link=LinkSettings(window_bytes=10_000))


def test_while_an_iterated_body_waits_for_its_next_piece() -> None:
    async def scene(stage: Stage) -> None:
        ended: list[str] = []

        async def slow() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.sleep(1000)
            finally:
                ended.append("body")

        worker = stage.worker(silent)
        request = WireRequest(b"POST", b"/", (), slow())
        await cancel(stage, stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 99), 1)
        await assert_gone(stage, worker)
        assert ended == ["body"]

    play(scene)


def test_a_thousand_readers_at_once() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD + chunk(b"1")))

        async def client() -> None:
            with await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 9) as exchange:
                while await exchange.read(stage.loop.time() + 600):
                    pass

        clients = [asyncio.create_task(client()) for _ in range(1000)]
        await asyncio.sleep(1)
        assert repr(stage.upstream) == "<Upstream [1000 busy | 0 idle | 1 origins]>"
        for task in clients:
            task.cancel()
        await asyncio.wait(clients)
        await assert_gone(stage, worker)

    play(scene)
