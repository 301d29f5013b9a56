"""The first law: whatever happens in whatever order, the account is right, and zero at the end."""

from __future__ import annotations

import asyncio
from enum import Enum

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import UpstreamError
from router.upstream.exchange import Exchange
from router.upstream.settings import UpstreamSettings
from tests.upstream.stage import ASK, HELLO, ORIGIN, STREAM_HEAD, Conversation, Stage, chunk, play

LIMITS = UpstreamSettings(max_idle_per_origin=3, max_idle=3)


class Step(Enum):
    OPEN = "open"
    OPEN_AND_LEAVE = "open and leave"
    READ = "read"
    READ_AND_LEAVE = "read and leave"
    CLOSE = "close"
    WORKER_CLOSES = "worker closes one"
    WORKER_RESETS = "worker resets one"
    WORKER_SPEAKS = "worker speaks unasked"
    REFUSE = "refuse"
    ACCEPT = "accept"
    WAIT = "wait"
    LONG_WAIT = "long wait"
    FORGET = "forget"


class Behaviour(Enum):
    """Of the worker, to the next request of a connection."""

    ANSWER = HELLO
    STREAM = STREAM_HEAD + chunk(b"data: 1\n\n")
    UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nbody"
    GARBAGE = b"\x00\x01"
    NOTHING = b""


class Actor:
    """Takes the steps and keeps its own books."""

    def __init__(self, stage: Stage, behaviours: list[Behaviour]) -> None:
        self.stage = stage
        self.behaviours = behaviours
        self.worker = stage.worker(self.answer)
        self.held: list[Exchange] = []

    def answer(self, conversation: Conversation) -> None:
        conversation.send(self.behaviours[conversation.requests % len(self.behaviours)].value)

    async def take(self, step: Step, which: int) -> None:
        place = (ORIGIN.host, ORIGIN.port)
        match step:
            case Step.OPEN | Step.OPEN_AND_LEAVE:
                await self.open(leave=step is Step.OPEN_AND_LEAVE)
            case Step.READ | Step.READ_AND_LEAVE | Step.CLOSE if self.held:
                await self.use(self.held[which % len(self.held)], step)
            case Step.WORKER_CLOSES | Step.WORKER_RESETS | Step.WORKER_SPEAKS if self.worker.conversations:
                self.disturb(self.worker.conversations[which % len(self.worker.conversations)], step)
            case Step.REFUSE:
                self.stage.network.refuse(*place)
            case Step.ACCEPT:
                self.stage.network.accept(*place)
            case Step.WAIT | Step.LONG_WAIT:
                await asyncio.sleep(0.01 if step is Step.WAIT else 2)
            case Step.FORGET:
                self.stage.upstream.forget(ORIGIN)

    async def open(self, *, leave: bool) -> None:
        opening = asyncio.create_task(
            self.stage.upstream.open(ORIGIN, ASK, headers_by=self.stage.loop.time() + 1)
        )
        if leave:
            await self.stage.turns(3)
            opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and not isinstance(opening.exception(), UpstreamError):
            self.held.append(opening.result())

    async def use(self, exchange: Exchange, step: Step) -> None:
        if step is Step.CLOSE:
            exchange.close()
            self.held.remove(exchange)
            return
        reading = asyncio.create_task(exchange.read(self.stage.loop.time() + 1))
        if step is Step.READ_AND_LEAVE:
            await self.stage.turns(1)
            reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled() and reading.exception() is not None:
            assert isinstance(reading.exception(), UpstreamError)

    def disturb(self, conversation: Conversation, step: Step) -> None:
        if step is Step.WORKER_CLOSES:
            conversation.transport.close()
        elif step is Step.WORKER_RESETS:
            conversation.transport.abort()
        else:
            conversation.send(b"unasked")

    def check(self) -> None:
        upstream = self.stage.upstream
        idle = len(upstream._idle)
        assert repr(upstream).startswith(f"<Upstream [{len(self.held)} busy | {idle} idle | ")
        assert idle <= LIMITS.max_idle


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(Step), st.integers(0, 7)), max_size=40),
    st.lists(st.sampled_from(Behaviour), min_size=1, max_size=4),
)
def test_the_account_is_right_after_every_step(
    steps: list[tuple[Step, int]], behaviours: list[Behaviour]
) -> None:
    async def scene(stage: Stage) -> None:
        actor = Actor(stage, behaviours)
        for step, which in steps:
            await actor.take(step, which)
            actor.check()
        for exchange in actor.held:
            exchange.close()
        await asyncio.sleep(10)
        await stage.assert_nothing_is_left()
        assert actor.worker.open_connections == 0

    play(scene, LIMITS)
