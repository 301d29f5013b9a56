from __future__ import annotations

import asyncio

import pytest

from router.core.errors import DeadlineExceeded, UpstreamBroken
from router.upstream.client import WireRequest
from router.virtual.transport import LinkSettings
from tests.upstream.stage import ASK, HELLO, ORIGIN, STREAM_HEAD, Conversation, Stage, answering, chunk, play

GET = WireRequest(b"GET", b"/metrics")


def test_read_gives_all_that_is_buffered_in_one_piece() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD + b"".join(chunk(b"data: %d\n\n" % n) for n in range(3))))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert await exchange.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
            assert repr(exchange) == "<Exchange 200 [open | 0 bytes buffered]>"

    play(scene)


def test_compressed_bodies_pass_as_they_are() -> None:
    async def scene(stage: Stage) -> None:
        body = b"\x1f\x8b\x08\x00not really"
        stage.worker(
            answering(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
        )
        answer = await stage.upstream.fetch(ORIGIN, GET, total_s=1, max_bytes=100)
        assert answer.body == body
        assert (b"content-encoding", b"gzip") in answer.headers

    play(scene)


def test_an_answer_that_nobody_reads_is_buffered_up_to_a_bound_only() -> None:
    async def scene(stage: Stage) -> None:
        window, piece = 10_000, 5_000

        def flood(conversation: Conversation) -> None:
            conversation.send(STREAM_HEAD + b"".join(chunk(b"x" * 1000) for _ in range(1000)) + b"0\r\n\r\n")

        worker = stage.worker(flood)
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            await asyncio.sleep(1)
            assert exchange._decoder.buffered <= 65_536 + piece
            assert (
                worker.conversations[0].transport.get_write_buffer_size()
                > 1_000_000 - 65_536 - piece - window
            )
            first = await exchange.read()
            assert 65_536 < len(first) <= 65_536 + piece
            rest = await exchange.read_all(max_bytes=2_000_000, until=stage.loop.time() + 1)
            assert len(first) + len(rest) == 1_000_000
        assert worker.conversations[0].transport.get_write_buffer_size() == 0
        assert repr(stage.upstream) == "<Upstream [0 busy | 1 idle | 1 origins]>"

    play(scene, link=LinkSettings(window_bytes=10_000, piece_bytes=5_000))


def test_a_paused_connection_is_read_again_for_the_next_request() -> None:
    async def scene(stage: Stage) -> None:
        big = b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000
        worker = stage.worker(answering(big))
        for _ in range(3):
            exchange = await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 5)
            await asyncio.sleep(1)
            assert exchange.complete
            exchange.close()  # never read
        assert len(worker.conversations) == 1

    play(scene)


def test_fetch_refuses_what_is_larger_than_allowed_without_reading_it_all() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD + chunk(b"x" * 1000) * 1000))
        with pytest.raises(UpstreamBroken, match="larger than the 5000 bytes"):
            await stage.upstream.fetch(ORIGIN, GET, total_s=5, max_bytes=5000)
        await stage.assert_nothing_is_left()
        assert isinstance(worker.conversations[0].lost, OSError)  # with almost all of it unsent

    play(scene, link=LinkSettings(window_bytes=10_000, piece_bytes=5_000))


def test_fetch_takes_exactly_what_is_allowed() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(HELLO))
        answer = await stage.upstream.fetch(ORIGIN, GET, total_s=5, max_bytes=5)
        assert (answer.status, answer.headers, answer.body) == (200, [(b"content-length", b"5")], b"hello")

    play(scene)


@pytest.mark.parametrize("begun", [b"", STREAM_HEAD, STREAM_HEAD + chunk(b"a")])
def test_fetch_ends_in_time_however_far_the_answer_came(begun: bytes) -> None:
    async def scene(stage: Stage) -> None:
        def drip(conversation: Conversation) -> None:
            if begun:
                conversation.send(begun)
                if begun != STREAM_HEAD:
                    stage.loop.call_later(1, drip_on, conversation)

        def drip_on(conversation: Conversation) -> None:
            if not conversation.transport.is_closing():
                conversation.send(chunk(b"a"))
                stage.loop.call_later(1, drip_on, conversation)

        stage.worker(drip)
        with pytest.raises(DeadlineExceeded) as caught:
            await stage.upstream.fetch(ORIGIN, GET, total_s=5, max_bytes=5000)
        assert caught.value.phase == "total"
        assert stage.loop.time() == 1005
        await asyncio.sleep(1)
        await stage.assert_nothing_is_left()

    play(scene)
