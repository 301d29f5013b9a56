from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.core.errors import ClientGone, InternalError, UpstreamClosed
from router.upstream.client import WireRequest
from router.virtual.transport import LinkSettings
from tests.upstream.stage import (
    ASK,
    HELLO,
    ORIGIN,
    STREAM_HEAD,
    Conversation,
    Stage,
    answering,
    chunk,
    play,
    silent,
)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
        await asyncio.sleep(0.1)


def head_first(conversation: Conversation) -> None:
    """Begins the answer before the request is whole."""
    conversation.worker.on_bytes = None
    conversation.send(STREAM_HEAD)


def body_of(conversation: Conversation) -> bytes:
    return conversation.received.partition(b"\r\n\r\n")[2]


def test_a_body_of_unknown_length_goes_in_chunks() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        request = WireRequest(b"POST", b"/", (), pieces(b"a" * 20, b"", b"bc"))
        answer = await stage.upstream.fetch(ORIGIN, request, total_s=5, max_bytes=10)
        assert answer.body == b"hello"
        assert b"transfer-encoding: chunked\r\n" in worker.conversations[0].received
        assert body_of(worker.conversations[0]) == chunk(b"a" * 20) + chunk(b"bc") + b"0\r\n\r\n"

    play(scene)


def test_a_body_of_known_length_goes_plain_and_its_connection_is_reused() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        request = WireRequest(b"POST", b"/", (), pieces(b"abc", b"de"), content_length=5)
        await stage.upstream.fetch(ORIGIN, request, total_s=5, max_bytes=10)
        assert b"content-length: 5\r\n" in worker.conversations[0].received
        assert body_of(worker.conversations[0]) == b"abcde"
        await stage.upstream.fetch(ORIGIN, ASK, total_s=5, max_bytes=10)
        assert len(worker.conversations) == 1

    play(scene)


@pytest.mark.parametrize(("length", "word"), [(4, "longer"), (6, "shorter")])
def test_a_body_that_is_not_as_long_as_declared_never_completes(length: int, word: str) -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        request = WireRequest(b"POST", b"/", (), pieces(b"abc", b"de"), content_length=length)
        with pytest.raises(InternalError, match=word):
            await stage.upstream.open(ORIGIN, request)
        await stage.assert_nothing_is_left()
        assert worker.conversations[0].requests == 0

    play(scene)


def test_large_bytes_go_in_pieces_and_arrive_whole() -> None:
    async def scene(stage: Stage) -> None:
        body = bytes(range(256)) * 8_000
        worker = stage.worker(answering(HELLO))
        request = WireRequest(b"POST", b"/", (), body)
        await stage.upstream.fetch(ORIGIN, request, total_s=5, max_bytes=10)
        assert body_of(worker.conversations[0]) == body

    play(scene)


def test_an_iterated_body_never_rides_a_connection_that_may_be_stale() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(HELLO))
        await stage.upstream.fetch(ORIGIN, ASK, total_s=5, max_bytes=10)
        request = WireRequest(b"POST", b"/", (), pieces(b"a"))
        await stage.upstream.fetch(ORIGIN, request, total_s=5, max_bytes=10)
        assert [conversation.requests for conversation in worker.conversations] == [1, 1]

    play(scene)


def test_large_bytes_on_a_stale_connection_are_sent_again() -> None:
    async def scene(stage: Stage) -> None:
        def closes_the_second(conversation: Conversation) -> None:
            if conversation.requests == 1:
                conversation.send(HELLO)

        def cuts(conversation: Conversation) -> None:
            if conversation.requests == 1 and len(conversation.received) > 100_000:
                conversation.transport.abort()

        worker = stage.worker(closes_the_second, on_bytes=cuts)
        await stage.upstream.fetch(ORIGIN, ASK, total_s=5, max_bytes=10)
        request = WireRequest(b"POST", b"/", (), b"x" * 1_000_000)
        worker_answer = await stage.upstream.fetch(ORIGIN, request, total_s=5, max_bytes=10)
        assert worker_answer.body == b"hello"
        assert len(body_of(worker.conversations[1])) == 1_000_000

    play(scene)


def test_the_next_piece_is_asked_for_only_when_the_last_was_taken() -> None:
    async def scene(stage: Stage) -> None:
        asked: list[int] = []

        async def endless() -> AsyncIterator[bytes]:
            for n in range(1000):
                asked.append(n)
                yield b"x" * 10_000

        def sip(conversation: Conversation) -> None:
            conversation.transport.pause_reading()

        worker = stage.worker(answering(HELLO), on_bytes=sip)
        request = WireRequest(b"POST", b"/", (), endless())
        opener = asyncio.create_task(stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 20))
        await asyncio.sleep(10)
        assert len(asked) <= 4
        opener.cancel()
        await asyncio.wait([opener])
        worker.conversations[0].transport.resume_reading()

    play(scene, link=LinkSettings(window_bytes=20_000))


@pytest.mark.parametrize("close", [False, True], ids=["keeps the connection", "closes it"])
@pytest.mark.parametrize("known_length", [False, True])
def test_an_early_refusal_is_delivered_and_sending_stops(close: bool, known_length: bool) -> None:
    async def scene(stage: Stage) -> None:
        refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large"

        def refuse(conversation: Conversation) -> None:
            if len(conversation.received) > 50_000 and not conversation.transport.is_closing():
                conversation.send(refusal)
                if close:
                    conversation.transport.close()
                else:
                    conversation.worker.on_bytes = None

        sent: list[int] = []

        async def body() -> AsyncIterator[bytes]:
            for n in range(1000):
                sent.append(n)
                yield b"x" * 10_000
                await asyncio.sleep(0.01)

        stage.worker(silent, on_bytes=refuse)
        request = WireRequest(b"POST", b"/", (), body(), 10_000_000 if known_length else None)
        with await stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 20) as exchange:
            assert exchange.status == 413
            assert await exchange.read_all(max_bytes=100, until=stage.loop.time() + 1) == b"too large"
            await asyncio.sleep(1)
        assert len(sent) < 20
        await stage.assert_nothing_is_left()

    play(scene)


def test_an_early_success_lets_the_body_go_on() -> None:
    async def scene(stage: Stage) -> None:
        def finish(conversation: Conversation) -> None:
            conversation.send(chunk(b"done") + b"0\r\n\r\n")

        worker = stage.worker(finish, on_bytes=head_first)
        request = WireRequest(b"POST", b"/", (), pieces(b"a", b"b", b"c"))
        with await stage.upstream.open(ORIGIN, request, headers_by=stage.loop.time() + 20) as exchange:
            assert await exchange.read(stage.loop.time() + 20) == b"done"
        assert body_of(worker.conversations[0]).endswith(chunk(b"c") + b"0\r\n\r\n")

    play(scene)


def test_a_client_that_fails_while_it_sends_ends_the_exchange_with_its_own_error() -> None:
    async def scene(stage: Stage) -> None:
        async def leaves() -> AsyncIterator[bytes]:
            yield b"half"
            raise ClientGone("The client left.")

        worker = stage.worker(silent)
        with pytest.raises(ClientGone):
            await stage.upstream.open(ORIGIN, WireRequest(b"POST", b"/", (), leaves()))
        await stage.assert_nothing_is_left()
        assert worker.open_connections == 0

    play(scene)


def test_a_client_that_fails_after_the_head_came_ends_the_read() -> None:
    async def scene(stage: Stage) -> None:
        async def leaves() -> AsyncIterator[bytes]:
            yield b"half"
            await asyncio.sleep(1)
            raise ClientGone("The client left.")

        stage.worker(silent, on_bytes=head_first)
        exchange = await stage.upstream.open(ORIGIN, WireRequest(b"POST", b"/", (), leaves()))
        with pytest.raises(ClientGone):
            await exchange.read()
        exchange.close()

    play(scene)


def test_a_worker_that_goes_away_while_we_wait_for_the_client_ends_the_exchange() -> None:
    async def scene(stage: Stage) -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield b"half"
            await asyncio.sleep(1000)

        worker = stage.worker(silent)
        opener = asyncio.create_task(stage.upstream.open(ORIGIN, WireRequest(b"POST", b"/", (), slow())))
        await asyncio.sleep(1)
        worker.conversations[0].transport.abort()
        with pytest.raises(UpstreamClosed) as caught:
            await opener
        assert caught.value.sent
        assert stage.loop.time() == 1001
        await stage.assert_nothing_is_left()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(scene)
