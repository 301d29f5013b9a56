from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from router.core.errors import (
    ConnectFailed,
    DeadlineExceeded,
    InternalError,
    UpstreamBroken,
    UpstreamClosed,
    UpstreamError,
)
from router.upstream.client import WireRequest
from router.upstream.settings import UpstreamSettings
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


def answers_and_closes(data: bytes, *, reset: bool = False) -> Callable[[Conversation], None]:
    def on_request(conversation: Conversation) -> None:
        conversation.send(data)
        if reset:
            conversation.transport.abort()
        else:
            conversation.transport.close()

    return on_request


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", UpstreamClosed),
        (b"HTTP/1.1 200 OK\r\nContent-", UpstreamBroken),
        (b"HTTP/1.1 100 Continue\r\n\r\n", UpstreamBroken),
        (b"SSH-2.0-OpenSSH_9.2\r\n", UpstreamBroken),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, UpstreamBroken),
    ],
    ids=["nothing", "half a head", "interim only", "garbage", "flood"],
)
def test_without_a_head_the_error_tells_whether_a_byte_came(
    data: bytes, error: type[UpstreamError], reset: bool
) -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answers_and_closes(data, reset=reset))
        with pytest.raises(error) as caught:
            await stage.upstream.open(ORIGIN, ASK)
        assert caught.value.sent
        assert "worker:8000" not in str(caught.value)
        await stage.assert_nothing_is_left()

    play(scene)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"half"),
        (STREAM_HEAD, chunk(b"half")),
        (STREAM_HEAD, b"10\r\nhalf"),
    ],
    ids=["length", "between chunks", "in a chunk"],
)
def test_a_body_that_is_cut_short_gives_all_that_came_and_then_an_error(
    head: bytes, body: bytes, reset: bool
) -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answers_and_closes(head + body, reset=reset))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        assert await exchange.read() == b"half"
        for _ in range(2):
            with pytest.raises(UpstreamBroken, match="cut short"):
                await exchange.read()
        assert not exchange.complete
        assert "broken" in repr(exchange)
        exchange.close()
        await stage.assert_nothing_is_left()

    play(scene)


def test_garbage_inside_a_chunked_body_is_broken() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD + chunk(b"good") + b"not a size\r\n"))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert await exchange.read() == b"good"
            with pytest.raises(UpstreamBroken, match="not HTTP"):
                await exchange.read()

    play(scene)


def test_a_body_until_close_ends_cleanly_with_the_connection() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answers_and_closes(b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n"))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert await exchange.read() == b"data: 1\n\n"
            assert await exchange.read() == b""
            assert exchange.complete
        await stage.assert_nothing_is_left()
        assert len(worker.conversations) == 1

    play(scene)


def test_a_body_until_close_that_is_reset_is_broken() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answers_and_closes(b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n", reset=True))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert await exchange.read() == b"data: 1\n\n"
            with pytest.raises(UpstreamBroken):
                await exchange.read()

    play(scene)


def test_interim_answers_are_skipped() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + HELLO))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert exchange.status == 200
            assert exchange.headers == [(b"content-length", b"5")]

    play(scene)


# --- deadlines ---------------------------------------------------------------------------------------


def test_no_head_by_its_deadline() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(silent)
        with pytest.raises(DeadlineExceeded) as caught:
            await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 60, phase="first_event")
        assert (caught.value.phase, caught.value.sent) == ("first_event", True)
        assert stage.loop.time() == 1060
        await stage.assert_nothing_is_left()

    play(scene)


def test_interim_answers_do_not_move_the_deadline_of_the_head() -> None:
    async def scene(stage: Stage) -> None:
        def hints(conversation: Conversation) -> None:
            if not conversation.transport.is_closing():
                conversation.send(b"HTTP/1.1 102 Processing\r\n\r\n")
                stage.loop.call_later(1, hints, conversation)

        stage.worker(hints)
        with pytest.raises(DeadlineExceeded) as caught:
            await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 10)
        assert caught.value.phase == "headers"
        assert stage.loop.time() == 1010
        await asyncio.sleep(2)

    play(scene)


def test_a_hanging_connect_is_ended_by_the_deadline_of_the_head_if_that_is_shorter() -> None:
    async def scene(stage: Stage) -> None:
        stage.network.hang(ORIGIN.host, ORIGIN.port)
        with pytest.raises(DeadlineExceeded) as caught:
            await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 0.5)
        assert (caught.value.phase, caught.value.sent) == ("connect", False)
        assert stage.loop.time() == 1000.5
        with pytest.raises(ConnectFailed, match="within 1 s"):
            await stage.upstream.open(ORIGIN, ASK, headers_by=stage.loop.time() + 5)
        assert stage.loop.time() == 1001.5
        await stage.assert_nothing_is_left()

    play(scene)


def test_silence_between_reads_ends_by_the_deadline_of_the_read() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD + chunk(b"1")))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            assert await exchange.read(stage.loop.time() + 600, "first_event") == b"1"
            with pytest.raises(DeadlineExceeded) as caught:
                await exchange.read(stage.loop.time() + 600)
            assert (caught.value.phase, caught.value.sent) == ("idle", True)
            assert stage.loop.time() == 1600
        await stage.assert_nothing_is_left()

    play(scene)


def test_hurry_shortens_the_read_that_waits_and_no_later_one() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(answering(STREAM_HEAD))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        reader = asyncio.create_task(exchange.read(stage.loop.time() + 600))
        await asyncio.sleep(1)
        exchange.hurry(stage.loop.time() + 10)
        exchange.hurry(stage.loop.time() + 20)  # a later one lengthens nothing
        await asyncio.sleep(5)
        worker.conversations[0].send(chunk(b"still here"))
        assert await reader == b"still here"
        with pytest.raises(DeadlineExceeded) as caught:
            await exchange.read(stage.loop.time() + 600)
        assert caught.value.phase == "idle"
        assert stage.loop.time() == 1606
        exchange.close()

    play(scene)


def test_hurry_bounds_a_read_without_a_deadline() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        reader = asyncio.create_task(exchange.read(phase="leg"))
        await stage.turns()
        exchange.hurry(stage.loop.time() + 10)
        with pytest.raises(DeadlineExceeded) as caught:
            await reader
        assert caught.value.phase == "leg"
        assert stage.loop.time() == 1010
        exchange.close()
        exchange.hurry(stage.loop.time())  # harmless after the end

    play(scene)


def test_bytes_that_came_before_the_deadline_are_not_lost_to_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD + chunk(b"in time")))
        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            await asyncio.sleep(100)
            assert await exchange.read(stage.loop.time() - 50) == b"in time"

    play(scene)


def test_a_stream_of_many_events_sets_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        def drip(conversation: Conversation) -> None:
            conversation.send(STREAM_HEAD)
            for n in range(1000):
                stage.loop.call_later(n * 0.01, conversation.send, chunk(b"data: %d\n\n" % n))
            stage.loop.call_later(10, conversation.send, b"0\r\n\r\n")

        stage.worker(drip)
        call_later = stage.loop.call_later
        made: list[float] = []

        def counted(delay: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
            made.append(delay)
            return call_later(delay, *args, **options)

        with await stage.upstream.open(ORIGIN, ASK) as exchange:
            monkeypatch.setattr(stage.loop, "call_later", counted)
            pieces = []
            while piece := await exchange.read(stage.loop.time() + 600):
                pieces.append(piece)
            monkeypatch.undo()
        assert b"".join(pieces) == b"".join(b"data: %d\n\n" % n for n in range(1000))
        assert made == [600]

    play(scene)


def test_a_worker_that_takes_no_bytes_is_a_write_stall() -> None:
    async def scene(stage: Stage) -> None:
        worker = stage.worker(silent)
        opener = asyncio.create_task(
            stage.upstream.open(ORIGIN, WireRequest(b"POST", b"/", (), b"x" * 200_000))
        )
        await stage.turns(2)
        worker.conversations[0].transport.pause_reading()
        with pytest.raises(DeadlineExceeded) as caught:
            await opener
        assert (caught.value.phase, caught.value.sent) == ("write", True)
        assert stage.loop.time() == 1030
        worker.conversations[0].transport.resume_reading()
        await stage.assert_nothing_is_left()

    play(scene, link=LinkSettings(window_bytes=1000))


@pytest.mark.parametrize("size", [200_000, 2_000_000], ids=["one write", "in pieces"])
def test_a_slow_worker_that_takes_some_bytes_is_no_stall(size: int) -> None:
    async def scene(stage: Stage) -> None:
        def sip(conversation: Conversation) -> None:
            transport = conversation.transport
            if len(conversation.received) < size - 100_000:
                transport.pause_reading()
                stage.loop.call_later(20, transport.resume_reading)

        stage.worker(answering(HELLO), on_bytes=sip)
        request = WireRequest(b"POST", b"/", (), b"x" * size)
        answer = await stage.upstream.fetch(ORIGIN, request, total_s=3000, max_bytes=10)
        assert answer.body == b"hello"
        assert stage.loop.time() > 1100

    play(scene, UpstreamSettings(), LinkSettings(window_bytes=16_384))


# --- misuse ------------------------------------------------------------------------------------------


def test_reading_after_close_and_two_readers_are_bugs_with_a_name() -> None:
    async def scene(stage: Stage) -> None:
        stage.worker(answering(STREAM_HEAD))
        exchange = await stage.upstream.open(ORIGIN, ASK)
        first = asyncio.create_task(exchange.read(stage.loop.time() + 1))
        await asyncio.sleep(0)
        with pytest.raises(InternalError, match="Two readers"):
            await exchange.read()
        with pytest.raises(DeadlineExceeded):
            await first
        exchange.close()
        with pytest.raises(InternalError, match="after it was closed"):
            await exchange.read()

    play(scene)
