"""Waiting for a placement and giving it back: nothing is lost, whoever leaves and whenever."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import (
    BodyTooLarge,
    ClientGone,
    ConnectFailed,
    DeadlineExceeded,
    InternalError,
    NoWorker,
    QueueFull,
    UpstreamBroken,
)
from router.core.health import Sign
from router.core.lease import Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from router.core.request import Request
from router.core.worker import WorkerView
from router.dispatch import Dispatcher, Held
from router.dispatch.dispatcher import outcome_of
from router.virtual.clock import run
from tests.core.fleet_examples import NewestFirst, Nobody, assert_idle, pool, request


def dispatcher(made: Pool, **options: Any) -> Dispatcher:
    return Dispatcher(made, asyncio.get_running_loop().time, **options)


def one_slot(**options: Any) -> Pool:
    return pool("a", slots=1, late_binding=True, **options)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_request_that_can_be_placed_does_not_wait() -> None:
    async def main() -> None:
        made = pool("a")
        work = dispatcher(made).acquire(request())
        with pytest.raises(StopIteration) as placed:
            work.send(None)  # not a single turn of the loop
        with placed.value.value as held:
            assert held.lease.worker == "a"
        assert_idle(made)

    run(main())


def test_a_block_that_ends_is_a_success_and_gives_the_lease_back() -> None:
    async def main() -> None:
        made = pool("a")
        with await dispatcher(made).acquire(request()) as held:
            assert made.in_flight == 1
        assert held.lease.outcome is Outcome.OK
        assert_idle(made)

    run(main())


def test_settling_early_and_leaving_later_settles_once() -> None:
    async def main() -> None:
        made = pool("a")
        with await dispatcher(made).acquire(request()) as held:
            held.settle_now()
            assert_idle(made)
        assert held.lease.outcome is Outcome.OK

    run(main())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (asyncio.CancelledError(), Outcome.CANCELLED),
        (ClientGone("left"), Outcome.CANCELLED),
        (BodyTooLarge("large"), Outcome.CANCELLED),
        (InternalError("a bug of ours"), Outcome.CANCELLED),
        (ValueError("another"), Outcome.CANCELLED),
        (DeadlineExceeded("late", phase="idle", sent=True), Outcome.TIMEOUT),
        (ConnectFailed("no", refused=True), Outcome.UNREACHABLE),
        (ConnectFailed("no"), Outcome.FAILED),
        (UpstreamBroken("cut"), Outcome.FAILED),
    ],
    ids=repr,
)
def test_an_exception_tells_what_it_says_about_the_worker(
    error: BaseException | None, outcome: Outcome
) -> None:
    assert outcome_of(error) is outcome


def test_what_was_said_about_the_end_stands() -> None:
    async def main() -> None:
        made = pool("a")
        with contextlib.suppress(UpstreamBroken), await dispatcher(made).acquire(request()) as held:
            held.settle(Outcome.BUSY, "full")
            raise UpstreamBroken("cut")
        assert held.lease.outcome is Outcome.BUSY

    run(main())


def test_room_goes_to_the_one_that_waits_longest() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        order: list[str] = []

        async def serve(name: str) -> None:
            with await doors.acquire(request(name)):
                order.append(name)
                await asyncio.sleep(1)

        await asyncio.gather(*(serve(name) for name in "abcd"))
        assert order == list("abcd")
        assert_idle(made)

    run(main())


def test_who_leaves_the_queue_is_forgotten() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        with await doors.acquire(request()):
            waiting = asyncio.create_task(doors.acquire(request()))
            await turns()
            assert made.queued == 1
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert made.queued == 0
            assert doors._waiters == {}
        assert_idle(made)

    run(main())


def test_who_leaves_in_the_turn_of_the_placement_gives_it_back() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        first = await doors.acquire(request())
        waiting = asyncio.create_task(doors.acquire(request()))
        await turns()
        with first:
            pass
        while made.in_flight == 0:  # placed, and the waiter has not run yet
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert_idle(made)

    run(main())


def test_a_place_given_back_that_way_goes_to_the_next() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        first = await doors.acquire(request())
        second, third = (asyncio.create_task(doors.acquire(request())) for _ in range(2))
        await turns()
        with first:
            pass
        while made.in_flight == 0:
            await asyncio.sleep(0)
        second.cancel()
        with await third:
            assert made.in_flight == 1
        await asyncio.gather(second, return_exceptions=True)
        assert_idle(made)

    run(main())


def test_many_wishes_for_a_round_make_one() -> None:
    async def main() -> None:
        made = pool("a", policy=Nobody())
        doors = dispatcher(made)
        rounds = 0
        assign = made.assign

        def count(now: float) -> Any:
            nonlocal rounds
            rounds += 1
            return assign(now)

        waiting = asyncio.create_task(doors.acquire(request()))
        await turns()
        made.assign = count  # type: ignore[method-assign]
        for _ in range(100):
            doors.wake()
        await turns()
        assert rounds == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    run(main())


def test_rounds_of_a_batch_policy_keep_their_distance() -> None:
    async def main() -> None:
        made = pool("a", policy=NewestFirst())
        doors = dispatcher(made)
        loop = asyncio.get_running_loop()
        before = loop.time()
        times: list[float] = []

        async def serve() -> None:
            with await doors.acquire(request()):
                times.append(round(loop.time() - before, 3))

        await asyncio.gather(*(serve() for _ in range(4)))
        assert times == [0.0, 0.01, 0.02, 0.03]
        assert_idle(made)

    run(main())


def test_who_waits_too_long_is_told() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        with await doors.acquire(request()):
            waiting = asyncio.create_task(doors.acquire(request()))
            await asyncio.sleep(29)
            doors.expire()
            assert not waiting.done()
            await asyncio.sleep(2)
            doors.expire()
            with pytest.raises(QueueFull):
                await waiting
        assert_idle(made)

    run(main())


def test_who_waits_for_nobody_is_told_at_the_next_look() -> None:
    async def main() -> None:
        made = one_slot()
        doors = dispatcher(made)
        with await doors.acquire(request()):
            waiting = asyncio.create_task(doors.acquire(request()))
            await turns()
            made.roster.sign("a", Sign.REFUSED, 0.0)
            doors.expire()
            with pytest.raises(NoWorker):
                await waiting
        assert_idle(made)

    run(main())


class BreaksAt:
    """A policy that fails at the request with this id."""

    def __init__(self, bad: str) -> None:
        self.bad = bad

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        if request.id == self.bad:
            raise ZeroDivisionError("a bug in a policy")
        return Choice(request.id, workers[0].name)


def test_a_policy_that_fails_in_the_middle_of_a_round_leaves_no_lease() -> None:
    async def main() -> None:
        made = one_slot(policy=BreaksAt("bad"))
        doors = dispatcher(made)
        first = await doors.acquire(request())
        waiting = [asyncio.create_task(doors.acquire(request(name))) for name in ("good", "bad", "after")]
        await turns()
        made.roster.workers["a"].slots = 5
        with first:
            pass
        done = await asyncio.gather(*waiting, return_exceptions=True)
        for result in done:
            if isinstance(result, Held):
                with result:
                    pass
            else:
                assert isinstance(result, InternalError), result
        loop = asyncio.get_running_loop()
        loop.failures.clear()  # type: ignore[attr-defined]  # the round told the loop of the bug
        assert_idle(made)
        assert doors._waiters == {}

    run(main())


class Crowd:
    """Requests that come, wait, are served and leave, as drawn."""

    def __init__(self, made: Pool, draw: random.Random) -> None:
        self.doors = dispatcher(made)
        self.made = made
        self.draw = draw
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []

    async def _serve(self, over: asyncio.Event) -> None:
        with contextlib.suppress(NoWorker, QueueFull), await self.doors.acquire(request()):
            await over.wait()

    def ask(self) -> None:
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._serve(self.ends[-1])))

    def leave(self) -> None:
        if self.tasks:
            self.draw.choice(self.tasks).cancel()

    def end(self) -> None:
        if self.ends:
            self.draw.choice(self.ends).set()

    def expire(self) -> None:
        self.doors.expire()

    def eject(self) -> None:
        self.made.roster.sign("a", Sign.REFUSED, 0.0)

    def readmit(self) -> None:
        self.made.roster.sign("a", Sign.GOOD, 0.0)

    async def go_home(self) -> None:
        self.readmit()
        for event in self.ends:
            event.set()
        for _ in range(len(self.tasks) + 5):
            self.doors.wake()
            await turns()
        assert all(task.done() for task in self.tasks)
        await asyncio.gather(*self.tasks, return_exceptions=True)


STEP = st.sampled_from(["ask", "leave", "end", "expire", "eject", "readmit"])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=60), draw=st.randoms(use_true_random=False))
def test_no_order_of_events_loses_a_place(steps: list[str], draw: random.Random) -> None:
    async def main() -> None:
        made = one_slot()
        crowd = Crowd(made, draw)
        for step in steps:
            getattr(crowd, step)()
            await turns(draw.randint(0, 3))
        await crowd.go_home()
        assert_idle(made)
        assert crowd.doors._waiters == {}

    run(main())


def test_decisions_are_measured_by_the_stopwatch() -> None:
    """The clock may count whole milliseconds, which no decision takes."""

    async def main() -> None:
        told: list[tuple[str, float]] = []
        made = one_slot()
        made.use(made.policy, "first")
        waits = dispatcher(made, on_decided=lambda policy, seconds: told.append((policy, seconds)))
        waits.stopwatch = itertools.count(0.0, 0.25).__next__
        with await waits.acquire(request()):
            late = asyncio.create_task(waits.acquire(request()))
            await turns()
        with await late:
            assert set(told) == {("first", 0.25)}

    run(main())
