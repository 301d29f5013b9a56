"""Comments and garbage of an engine: held, passed on, and never taken for progress."""

from __future__ import annotations

import asyncio

import pytest

from tests.shell.live import CHAT, STREAM, Live, play
from tests.shell.puppet import (
    DONE,
    ROLE,
    STOP,
    Ask,
    failure_event,
    streaming,
)
from tests.shell.visitors import assert_told


def test_comments_before_the_first_event_are_held_until_it_comes() -> None:
    async def late(ask: Ask) -> None:
        ask.begin()
        for _ in range(5):
            ask.event(b": keep-alive\n\n")
            await asyncio.sleep(2)
        ask.event(ROLE, STOP, DONE)
        ask.end()

    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, STREAM)
        assert act.now - before == pytest.approx(10)  # not a byte before
        assert (await visit.rest()).body == b": keep-alive\n\n" * 5 + ROLE + STOP + DONE

    play(scene, {"a": late})


def test_a_comment_after_fifteen_seconds_of_waiting_commits() -> None:
    async def late(ask: Ask) -> None:
        ask.begin()
        for _ in range(10):
            ask.event(b": keep-alive\n\n")
            await asyncio.sleep(4)
        ask.event(failure_event(500), DONE)
        ask.end()

    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, STREAM)
        assert act.now - before == pytest.approx(16)
        reply = await visit.rest()
        assert_told(reply)
        assert sum(len(puppet.asks) for puppet in act.puppets.values()) == 1  # committed: no try elsewhere

    play(scene, dict.fromkeys("ab", late))


def test_the_wait_for_a_comment_begins_when_the_request_does() -> None:
    async def late(ask: Ask) -> None:
        await asyncio.sleep(14)
        ask.begin()
        for _ in range(4):
            ask.event(b": keep-alive\n\n")
            await asyncio.sleep(2)
        ask.event(ROLE, STOP, DONE)
        ask.end()

    async def scene(act: Live) -> None:
        before = act.now
        visit = await act.open(CHAT, STREAM)
        assert act.now - before == pytest.approx(16)
        await visit.rest()

    play(scene, {"a": late})


def test_garbage_in_a_stream_is_passed_on_and_then_told() -> None:
    noise = b"data: {not json}\n\n" + b"\xff\xfe\x00"

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "stream_options": {"include_usage": True}})
        assert reply.body.startswith(ROLE + noise)
        assert reply.broken is not None

    play(scene, {"a": streaming(ROLE, noise, then="close", gap_s=0.01)})


def test_broken_chunks_in_a_stream_are_told() -> None:
    async def broken(ask: Ask) -> None:
        ask.begin()
        ask.event(ROLE)
        await asyncio.sleep(0.01)
        ask.send(b"zzz\r\nnot a chunk")

    async def scene(act: Live) -> None:
        assert_told(await act.ask(CHAT, STREAM), "upstream_broken")

    play(scene, {"a": broken})


def test_an_event_without_end_is_cut_at_its_bound() -> None:
    async def endless(ask: Ask) -> None:
        ask.begin()
        ask.event(ROLE)
        while not ask.left.is_set():
            ask.event(b"data: " + b"x" * 65_000)
            await asyncio.sleep(0.001)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "stream_options": {"include_usage": True}})
        assert reply.broken is not None
        assert len(reply.body) < 64 * 2**20

    play(scene, {"a": endless})
