"""One client connection: slow, odd and hostile clients, on the whole router."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from router.virtual.transport import LinkSettings
from tests.shell.live import ASK, QUIET, STREAM, Live, play
from tests.shell.puppet import TALK, WHOLE, Ask, flood, hang, word
from tests.shell.visitors import RawClient

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n"


def whole_request(body: object, *headers: bytes) -> bytes:
    data = json.dumps(body).encode()
    return b"".join(
        [HEAD, *(line + b"\r\n" for line in headers), b"content-length: %d\r\n\r\n" % len(data), data]
    )


def statuses(client: RawClient) -> list[bytes]:
    return re.findall(rb"HTTP/1.1 (\d{3}) ", client.received)


def body_of(client: RawClient) -> bytes:
    return client.received.partition(b"\r\n\r\n")[2]


def test_a_head_that_comes_byte_by_byte_is_cut_after_thirty_seconds() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        before = act.now
        for byte in HEAD * 3:
            if client.lost:
                break
            client.send(bytes([byte]))
            await asyncio.sleep(1)
        assert client.lost_at is not None
        assert client.lost_at - act.started - before == pytest.approx(30, abs=0.1)

    play(scene)


def test_a_connection_that_says_nothing_is_cut_after_thirty_seconds() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        before = act.now
        await client.until_lost()
        assert act.now - before == pytest.approx(30, abs=0.1)
        assert client.received == b""

    play(scene)


def test_a_slow_head_on_a_used_connection_is_cut_too() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(ASK))
        await client.until(lambda: WHOLE in client.received)
        await asyncio.sleep(300)
        assert not client.lost  # idle connections are kept
        client.send(HEAD)
        before = act.now
        await client.until_lost()
        assert act.now - before == pytest.approx(30, abs=0.1)

    play(scene, **QUIET)


def test_a_body_that_goes_on_coming_is_waited_for() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        data = json.dumps(ASK).encode()
        client.send(HEAD + b"content-length: %d\r\n\r\n" % len(data))
        for byte in data:
            await asyncio.sleep(20)
            client.send(bytes([byte]))
        await client.until(lambda: body_of(client) == WHOLE)
        client.transport.close()

    play(scene, **QUIET)


def test_a_body_that_stops_coming_is_cut_after_sixty_seconds() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"content-length: 1000\r\n\r\n" + b"x" * 10)
        before = act.now
        await client.until_lost()
        assert 60 <= act.now - before <= 121
        assert act.router.bodies.used == 0

    play(scene)


def test_a_reader_that_takes_nothing_is_cut_after_sixty_seconds() -> None:
    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        before = act.now
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        await act.until(lambda: act.process.data.busy == 0, 200)
        assert 60 <= act.now - before <= 121
        await asyncio.sleep(0.1)
        assert act.puppets["a"].asks[0].left_at is not None
        client.transport.abort()

    play(scene, {"a": flood}, **QUIET)


def test_a_reader_that_takes_little_by_little_is_not_cut() -> None:
    async def much(ask: Ask) -> None:
        ask.begin()
        for _ in range(25):
            ask.event(word() * 50)
            await asyncio.sleep(0)
        ask.event(TALK)
        ask.end()

    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        while not client.received.endswith(b"\r\n0\r\n\r\n"):
            client.transport.pause_reading()
            await asyncio.sleep(50)
            assert not client.lost
            client.transport.resume_reading()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(client.received) > 25 * 50 * len(word())
        client.transport.close()

    link = LinkSettings(window_bytes=30_000, piece_bytes=15_000)
    play(scene, {"a": much}, link=link, timeouts={"keep_alive_s": None}, **QUIET)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(ask: Ask) -> None:
        await asyncio.sleep(1 if ask.json()["n"] == 1 else 0)
        ask.answer(200, b'{"n": %d}' % ask.json()["n"])

    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(b"".join(whole_request({**ASK, "n": number}) for number in (1, 2, 3)))
        await client.until(lambda: client.received.count(b'{"n"') == 3)
        order = [client.received.index(b'{"n": %d}' % number) for number in (1, 2, 3)]
        assert order == sorted(order)
        assert statuses(client) == [b"200"] * 3
        client.transport.close()

    play(scene, {"a": echo})


def test_a_client_that_leaves_with_pipelined_requests_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(STREAM) * 3)
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        client.transport.abort()
        await asyncio.sleep(0.1)
        act.assert_zero()
        assert len(act.puppets["a"].asks) == 1

    play(scene, {"a": hang})


def test_a_stream_that_breaks_before_pipelined_requests_ends_the_connection() -> None:
    async def broken(ask: Ask) -> None:
        ask.begin()
        ask.event(word())
        await asyncio.sleep(1)
        ask.close()

    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(STREAM) * 2)
        received = await client.until_lost()
        assert b"upstream_broken" in received
        assert not received.endswith(b"0\r\n\r\n")
        assert len(statuses(client)) == 1

    play(scene, {"a": broken})


def test_many_requests_share_one_connection() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        for number in range(1, 6):
            client.send(whole_request(STREAM if number % 2 else ASK))
            await client.until(lambda wanted=number: len(statuses(client)) == wanted)  # type: ignore[misc]
            await asyncio.sleep(1)
        assert statuses(client) == [b"200"] * 5
        client.transport.close()

    play(scene)


def test_an_idle_connection_is_kept_for_ten_minutes_and_some() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(ASK))
        await client.until(lambda: WHOLE in client.received)
        before = act.now
        await client.until_lost()
        assert act.now - before == pytest.approx(620, abs=1)

    play(scene, **QUIET)


def test_a_client_that_expects_to_be_told_to_go_on_is_told() -> None:
    async def scene(act: Live) -> None:
        data = json.dumps(ASK).encode()
        client = await act.raw()
        client.send(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(data))
        await client.until(lambda: client.received == b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(data)
        await client.until(lambda: WHOLE in client.received)
        assert act.puppets["a"].asks[0].header("expect") is None
        client.transport.close()

    play(scene)


def test_a_client_that_would_send_too_much_is_told_before_it_does() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"expect: 100-continue\r\ncontent-length: 300000000\r\n\r\n")
        await client.until(lambda: b"body_too_large" in client.received)
        assert statuses(client) == [b"413"]
        client.transport.close()

    play(scene)


def test_http_1_0_clients_are_served_and_closed() -> None:
    async def scene(act: Live) -> None:
        data = json.dumps(ASK).encode()
        client = await act.raw()
        client.send(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        received = await client.until_lost()
        assert received.endswith(WHOLE)

    play(scene)


def test_a_client_that_asks_to_close_is_closed() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(ASK, b"connection: close"))
        received = await client.until_lost()
        assert b"connection: close" in received
        assert received.endswith(WHOLE)

    play(scene)


def test_a_client_that_closes_its_sending_side_is_gone() -> None:
    """As for uvicorn and most proxies: half-closed clients cannot be told from those that left."""

    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(STREAM))
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        client.transport.write_eof()
        await asyncio.sleep(0.1)
        act.assert_zero()

    play(scene, {"a": hang})


def test_a_client_that_resets_an_idle_connection_leaves_no_timer() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(whole_request(ASK))
        await client.until(lambda: WHOLE in client.received)
        client.transport.abort()
        await asyncio.sleep(5)  # the worker's idle connection is gone too
        timers = [timer for timer in act.loop._scheduled if not timer.cancelled()]
        assert all(timer.when() - act.loop.time() < 100 for timer in timers)

    play(scene)


def test_an_answer_before_the_end_of_the_body_lets_the_connection_end() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(HEAD + b"content-length: 300000000\r\n\r\n")
        await client.until(lambda: b"body_too_large" in client.received)
        sent = 0
        while not client.lost and sent < 300_000_000:
            if client.transport.get_write_buffer_size() == 0:
                client.send(b"x" * 60_000)
                sent += 60_000
            await asyncio.sleep(0.1)
        assert sent < 60_000_000  # cut, not read to its end for ever

    play(scene, link=LinkSettings(window_bytes=65_536), **QUIET)
