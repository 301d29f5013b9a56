"""The end of a router, in order: announce it, let requests finish, end the rest in words."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router import __version__
from router.core.errors import ConnectFailed
from router.lifecycle import bracketed
from tests.shell.live import ADMIN, ASK, CHAT, DATA, STREAM, Live, play
from tests.shell.puppet import DONE, ROLE, STOP, TALK, WHOLE, Ask, flood, hang, streaming, talk, word


class Signals:
    """Signals that a test sends."""

    def __init__(self) -> None:
        self._came = asyncio.Event()
        self.count = 0
        self.at_once = False

    def send(self, *, interrupt: bool = False) -> None:
        self.count += 1
        self.at_once = self.at_once or interrupt
        self._came.set()

    async def wait(self) -> None:
        await self._came.wait()


def ending(act: Live) -> tuple[Signals, asyncio.Task[None]]:
    """A router that waits for its signals, and the task that ends with it."""
    signals = Signals()
    return signals, act.loop.create_task(act.process.until(signals), name="until")  # type: ignore[arg-type]


def words(count: int) -> list[bytes]:
    return [word(number) for number in range(count)]


def test_the_log_begins_with_what_begins(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        assert act.router.settings.pools["default"].policy == "round_robin"

    with caplog.at_level(logging.INFO):
        play(scene)
    first, second, *_ = caplog.messages
    assert first == f"version {__version__}, pool default chooses by round_robin"
    assert second == "worker a joins pool default (config)"


def test_readiness_says_so_at_once_while_requests_are_still_taken() -> None:
    async def scene(act: Live) -> None:
        signals, end = ending(act)
        signals.send()
        await act.turns()
        for path in ("/readiness", "/health"):
            reply = await act.ask(path)
            assert (reply.status, reply.json()["reason"]) == (503, "shutting down")
        assert (await act.ask("/liveness")).status == 200
        await asyncio.sleep(9)
        assert (await act.ask(CHAT, STREAM)).body == TALK
        await end
        assert act.now == pytest.approx(10, abs=0.2)

    play(scene)


def test_answers_on_the_way_out_ask_clients_to_come_back_elsewhere() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        ask = b"GET /liveness HTTP/1.1\r\nhost: r\r\n\r\n"
        client.send(ask)
        await client.until(lambda: b"alive" in client.received)
        assert b"connection: close" not in client.received
        signals, end = ending(act)
        signals.send()
        await act.turns()
        client.send(ask)
        await client.until_lost()
        assert client.received.count(b"connection: close") == 1
        streamed = await act.raw()
        streamed.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 53\r\n\r\n" % CHAT.encode())
        streamed.send(b'{"model": "m", "stream": true, "messages": [1, 2, 3]}')
        received = await streamed.until_lost()
        assert b"connection: close" in received
        assert received.endswith(b"0\r\n\r\n")
        await end

    play(scene)


def test_after_ten_seconds_nobody_is_let_in_and_idle_connections_are_closed() -> None:
    async def scene(act: Live) -> None:
        slow = act.asking(CHAT, STREAM)
        idle = await act.raw()
        idle.send(b"GET /liveness HTTP/1.1\r\nhost: r\r\n\r\n")
        await idle.until(lambda: b"alive" in idle.received)
        signals, end = ending(act)
        signals.send()
        await asyncio.sleep(11)
        assert idle.lost
        with pytest.raises(ConnectFailed):
            await act.raw(DATA)
        assert (await act.ask("/metrics", origin=ADMIN)).status == 200  # what still runs can be watched
        assert (await slow).broken is None
        await end

    play(scene, {"a": streaming(ROLE, *words(40), STOP, DONE, gap_s=0.5)})


def test_running_requests_finish_and_then_it_ends() -> None:
    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        signals, end = ending(act)
        signals.send()
        reply = await stream
        assert (reply.body, reply.broken) == (ROLE + b"".join(words(60)) + STOP + DONE, None)
        await end
        assert act.now == pytest.approx(63, abs=0.5)

    play(scene, {"a": streaming(ROLE, *words(60), STOP, DONE, gap_s=1)})


def test_what_does_not_finish_is_ended_in_words() -> None:
    async def serve(ask: Ask) -> None:
        if ask.json().get("stream"):
            await streaming(ROLE, word(), then="hang")(ask)
        else:
            await hang(ask)

    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        whole, queued = act.asking(CHAT, ASK), act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.queued == 1)
        signals, end = ending(act)
        before = act.now
        signals.send()
        await end
        assert act.now - before == pytest.approx(310, abs=3)
        reply = await stream
        assert reply.body.startswith(ROLE + word())
        assert reply.broken is not None
        assert b"[DONE]" not in reply.body
        assert "shutting down" in reply.last_event()["error"]["message"]
        refused = await whole
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert (await queued).status in (429, 503)
        assert all(ask.left_at is not None for ask in act.puppets["a"].asks)

    play(
        scene,
        {"a": serve},
        pool={"slots": 2, "binding": "late"},
        timeouts={"keep_alive_s": None, "idle_s": 3000},
    )


def test_a_second_signal_ends_it_at_once() -> None:
    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        queued = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.queued == 1)
        signals, end = ending(act)
        signals.send()
        await asyncio.sleep(3)
        signals.send()
        before = act.now
        await end
        assert act.now - before < 3
        reply = await stream
        assert reply.broken is not None
        assert reply.last_event()["error"]["message"]
        refused = await queued
        assert (refused.status, refused.error["code"]) == (503, "overloaded")

    play(scene, {"a": streaming(ROLE, word(), then="hang")}, pool={"slots": 1, "binding": "late"})


def test_who_still_waits_for_a_worker_at_the_end_is_told() -> None:
    async def scene(act: Live) -> None:
        waiting = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.queued == 1)
        signals, end = ending(act)
        signals.send(interrupt=True)
        await asyncio.sleep(1)
        signals.send()
        await end
        reply = await waiting
        assert (reply.status, reply.error["code"]) == (503, "overloaded")

    async def start(act: Live) -> None:
        act.puppets["a"].mute_probes = True
        await scene(act)

    play(start, {"a": talk}, ready=False)


def test_an_interrupt_skips_the_wait_and_lets_requests_finish() -> None:
    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        signals, end = ending(act)
        signals.send(interrupt=True)
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectFailed):
            await act.raw(DATA)
        assert (await stream).broken is None
        await end
        assert act.now == pytest.approx(8, abs=0.5)

    play(scene, {"a": streaming(ROLE, *words(5), STOP, DONE, gap_s=1)})


def test_an_idle_router_ends_right_after_the_wait() -> None:
    async def scene(act: Live) -> None:
        signals, end = ending(act)
        signals.send()
        await end
        assert act.now == pytest.approx(10, abs=0.2)

    play(scene)


def test_a_client_that_takes_nothing_cannot_hold_the_end_up() -> None:
    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        await asyncio.sleep(1)
        signals, end = ending(act)
        signals.send()
        await asyncio.sleep(1)
        signals.send()
        before = act.now
        await end
        assert act.now - before < 5
        client.transport.abort()

    play(scene, {"a": flood})


def test_requests_under_way_when_it_ends_leave_no_account() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM if number % 2 else ASK) for number in range(200)]
        await act.until(lambda: act.pool.in_flight == 200)
        signals, end = ending(act)
        signals.send(interrupt=True)
        await asyncio.sleep(1)
        signals.send()
        await end
        act.assert_zero()
        replies = await asyncio.gather(*tasks)
        assert all(reply.status == 503 or reply.broken is not None for reply in replies)

    play(scene, {"a": hang, "b": streaming(ROLE, word(), then="hang")})


def test_ending_twice_is_ending_once() -> None:
    async def scene(act: Live) -> None:
        await act.process.aclose()
        await act.process.aclose()

    play(scene)


@pytest.mark.parametrize(
    ("host", "written"), [("::1", "[::1]"), ("[::]", "[::]"), ("127.0.0.1", "127.0.0.1"), ("r", "r")]
)
def test_an_address_is_written_as_in_a_url(host: str, written: str) -> None:
    assert bracketed(host) == written


def test_the_process_shows_its_state() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, ASK)
        await act.until(lambda: act.pool.in_flight == 1)
        shown = repr(act.process)
        assert "<Listener data [1 connections | 1 busy]>" in shown
        assert "<Fleet [1 workers]" in shown
        assert (await task).body == WHOLE

    play(scene, {"a": talk})
