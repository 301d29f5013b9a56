"""A client that leaves, in every phase: its worker is let go within 100 ms and every account is settled."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.mock.settings import MockSettings
from router.virtual.transport import LinkSettings
from tests.shell.live import (
    ASK,
    CHAT,
    SETTLED_S,
    STREAM,
    Live,
    assert_let_go,
    leave,
    play,
)
from tests.shell.puppet import DONE, ROLE, Ask, hang, streaming, talk, word
from tests.shell.visitors import Reply


def test_a_client_that_leaves_while_it_sends_its_body_holds_nothing() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(
            b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 1000\r\n\r\n" % CHAT.encode() + b"x" * 500
        )
        await act.until(lambda: act.router.bodies.used == 500)
        client.transport.abort()
        await assert_let_go(act)
        assert act.puppets["a"].asks == []

    play(scene)


def test_a_client_that_leaves_the_queue_leaves_no_trace() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        waiting = [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: act.pool.queued == 3)
        await leave(waiting[1])
        await act.turns()
        assert act.pool.queued == 2
        for task in (waiting[0], waiting[2], first):
            await leave(task)
        await assert_let_go(act)
        assert len(act.puppets["a"].asks) == 1

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"})


def test_a_client_that_leaves_in_the_turn_it_was_placed_gives_the_place_back() -> None:
    """Between the placement and the moment its waiter runs again."""

    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        second = await act.open_raw(STREAM)
        third = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.queued == 2)
        dispatcher = act.dispatcher
        deliver, server = dispatcher._deliver, act.server_end(second)

        def deliver_and_lose(leases: Any) -> None:
            deliver(leases)
            server.connection_lost(None)  # in the same turn

        dispatcher._deliver = deliver_and_lose
        await leave(first)
        await act.until(lambda: len(act.puppets["a"].asks) == 2)
        dispatcher._deliver = deliver
        second.transport.abort()
        await leave(third)
        await assert_let_go(act)

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"})


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
def test_a_client_that_leaves_before_the_headers_frees_the_engine(body: Any) -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, body)
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        await leave(task)
        await assert_let_go(act)
        assert await act.metric("pointsman_client_disconnects_total") == 1

    play(scene, {"a": hang})


def test_a_client_that_leaves_between_headers_and_first_event_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(1)
        await leave(task)
        await assert_let_go(act)

    play(scene, {"a": streaming(b": keep-alive\n\n", then="hang")})


def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        visit = await act.open(CHAT, STREAM)
        await visit.read()
        await asyncio.sleep(1)
        visit.leave()
        await assert_let_go(act)

    play(scene, {"a": streaming(ROLE, word(), word(), then="hang")})


def test_a_client_that_leaves_in_the_middle_of_a_whole_answer_frees_the_engine() -> None:
    async def half(ask: Ask) -> None:
        ask.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        await ask.left.wait()

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, ASK)
        await asyncio.sleep(1)
        await leave(task)
        await assert_let_go(act)

    play(scene, {"a": half})


def test_a_client_that_leaves_while_it_uploads_a_form_frees_the_engine() -> None:
    head = b'--c\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--c\r\n'

    async def scene(act: Live) -> None:
        act.puppets["a"].at_head = True
        client = await act.raw()
        client.send(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-length: 100000\r\n"
            b"content-type: multipart/form-data; boundary=c\r\n\r\n" + head
        )
        await act.until(lambda: len(act.puppets["a"].asks) == 1)
        client.send(b"x" * 1000)
        await act.turns()
        client.transport.abort()
        await assert_let_go(act)

    play(scene, {"a": hang})


async def flood(ask: Ask) -> None:
    ask.begin()
    ask.event(ROLE)
    while not ask.left.is_set():
        ask.event(word() * 100)
        await asyncio.sleep(0.001)


def test_a_slow_reader_that_leaves_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        await asyncio.sleep(5)
        (connection,) = act.process.data.state.connections
        assert connection.transport.get_write_buffer_size() > 200_000
        client.transport.abort()
        await assert_let_go(act)

    play(scene, {"a": flood})


def test_an_engine_that_is_paused_by_a_slow_reader_is_not_buffered_for() -> None:
    sent = 0

    async def count(ask: Ask) -> None:
        nonlocal sent
        ask.begin()
        ask.event(ROLE)
        while not ask.left.is_set():
            if ask.transport.get_write_buffer_size() == 0:
                ask.event(word() * 100)
                sent += 100 * len(word())
            await asyncio.sleep(0.001)

    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        await asyncio.sleep(20)
        assert sent < 1_500_000  # windows of both links, one buffer of 256 KiB and one of 64 KiB
        client.transport.abort()
        await assert_let_go(act)

    play(scene, {"a": count})


def test_a_mock_engine_forgets_the_request_of_a_client_that_left() -> None:
    async def scene(act: Live) -> None:
        body = {"model": "qwen2.5-3b", "messages": ASK["messages"], "max_tokens": 500, "ignore_eos": True}
        tasks = [act.asking(CHAT, {**body, "stream": stream, "n": 2}) for stream in (True, False)]
        await asyncio.sleep(1)
        engine = act.mocks["a"].process.engine
        assert engine.running == 4
        for task in tasks:
            await leave(task)
        await asyncio.sleep(SETTLED_S)
        assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)

    play(scene, {"a": MockSettings()})


def test_a_thousand_clients_that_leave_at_once_leave_nothing() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM if number % 3 else ASK) for number in range(1000)]
        await act.until(lambda: act.pool.in_flight == 1000)
        await act.turns()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await assert_let_go(act)
        assert sum(len(puppet.asks) for puppet in act.puppets.values()) == 1000

    play(scene, {"a": streaming(ROLE, word(), then="hang"), "b": hang})


def test_a_client_that_left_is_no_failure_of_the_worker() -> None:
    async def scene(act: Live) -> None:
        for _ in range(10):
            task = act.asking(CHAT, STREAM)
            await asyncio.sleep(0.5)
            await leave(task)
        assert act.state("a") == "ready"
        assert act.worker("a").health.failures == 0

    play(scene, {"a": hang, "b": hang})


def test_a_retry_ends_when_its_client_leaves() -> None:
    async def scene(act: Live) -> None:
        async def reset(ask: Ask) -> None:
            ask.reset()

        act.puppets["a"].serve = reset
        tasks = [act.asking(CHAT, STREAM) for _ in range(4)]
        await act.until(lambda: act.router.retries.budget.used > 0)
        await act.turns()
        for task in tasks:
            await leave(task)
        await assert_let_go(act)

    play(scene, {"a": hang, "b": hang})


def test_a_client_that_leaves_after_its_answer_is_not_counted_as_gone() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        await act.turns()
        assert await act.metric("pointsman_client_disconnects_total") in (None, 0)

    play(scene)


async def erratic(ask: Ask) -> None:
    """Streams for a while; each tenth event takes long."""
    if not ask.json().get("stream"):
        await talk(ask)
        return
    ask.begin()
    ask.event(ROLE)
    for number in range(30):
        await asyncio.sleep(0.5 if number % 10 == 9 else 0.01)
        ask.event(word(number))
    ask.event(DONE)
    ask.end()


class Drill:
    """Clients that come and go, and workers that break, as drawn."""

    def __init__(self, act: Live, draw: random.Random) -> None:
        self.act = act
        self.draw = draw
        self.puppets = list(act.puppets.values())
        self.tasks: list[asyncio.Task[Reply]] = []

    def stream(self) -> None:
        self.tasks.append(self.act.asking(CHAT, STREAM))

    def whole(self) -> None:
        self.tasks.append(self.act.asking(CHAT, ASK))

    def leave(self) -> None:
        if self.tasks:
            self.draw.choice(self.tasks).cancel()

    def reset(self) -> None:
        for ask in self.draw.choice(self.puppets).asks[-2:]:
            ask.reset()

    def garble(self) -> None:
        for ask in self.draw.choice(self.puppets).asks[-2:]:
            ask.send(b"garbage\r\n\r\n")

    def kill(self) -> None:
        self.draw.choice(self.puppets).kill()

    def revive(self) -> None:
        for puppet in self.puppets:
            puppet.accept()

    async def run(self, steps: list[str]) -> None:
        for step in steps:
            if step == "sleep":
                await asyncio.sleep(self.draw.choice([0.005, 0.2, 3]))
            else:
                getattr(self, step)()
                await self.act.turns(self.draw.randint(0, 8))
        self.revive()
        replies = await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 90)
        for reply in replies:
            if not isinstance(reply, asyncio.CancelledError):
                assert isinstance(reply, Reply), reply
                assert reply.status in (200, 429, 502, 503, 504)


STEP = st.sampled_from(["stream", "whole", "leave", "reset", "garble", "kill", "revive", "sleep"])


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=4, max_size=30), draw=st.randoms(use_true_random=False))
def test_clients_that_leave_while_workers_die_leave_nothing(steps: list[str], draw: random.Random) -> None:
    async def scene(act: Live) -> None:
        await Drill(act, draw).run(steps)

    link = LinkSettings(latency_s=0.0005)
    play(scene, {"a": erratic, "b": erratic}, pool={"slots": 3, "binding": "late"}, link=link)
