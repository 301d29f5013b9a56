"""Waiting for a turn at a worker: nothing is lost, whoever leaves and whenever, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import QueueFull
from router.core.health import Sign
from router.core.local_queue import LocalQueueRules, Order
from router.core.pool import Pool
from router.core.worker import Role
from router.dispatch import Dispatcher, Held
from router.virtual.clock import run
from tests.core.fleet_examples import FirstPair, FirstWorker, add_worker, assert_idle, joined, pool, request
from tests.shell.live import ASK, CHAT, STREAM, Live, leave, play
from tests.shell.pair import play_pair
from tests.shell.puppet import hang

ONE_AT_A_TIME = {"local_queue": "fcfs", "max_dispatched": 1}


def doors_of(made: Pool) -> Dispatcher:
    return Dispatcher(made, asyncio.get_running_loop().time)


def one_at_a_time(*names: str, **rules: Any) -> Pool:
    return pool(*names, local=LocalQueueRules(Order.FCFS, 1), **rules)


def test_who_waits_goes_when_the_one_before_is_done() -> None:
    async def main() -> None:
        made = one_at_a_time("a")
        doors = doors_of(made)
        order: list[tuple[str, float]] = []

        async def serve(name: str) -> None:
            with await doors.acquire(request(name)) as held:
                order.append((name, asyncio.get_running_loop().time()))
                assert held.waited is (name != "a")
                await asyncio.sleep(1)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(serve(name) for name in "abc"))
        assert [(name, at - began) for name, at in order] == [("a", 0.0), ("b", 1.0), ("c", 2.0)]
        assert_idle(made)

    run(main())


def test_who_leaves_while_waiting_gives_the_lease_back_once() -> None:
    async def main() -> None:
        made = one_at_a_time("a")
        doors = doors_of(made)
        with await doors.acquire(request()):
            waiting = asyncio.ensure_future(doors.acquire(request()))
            await asyncio.sleep(0.1)
            assert made.in_flight == 2
            await leave(waiting)
            assert made.in_flight == 1
        assert_idle(made)
        assert len(made.local) == 0

    run(main())


def test_who_leaves_in_the_turn_in_which_it_may_go_gives_the_lease_back() -> None:
    async def main() -> None:
        made = one_at_a_time("a")
        doors = doors_of(made)
        held = await doors.acquire(request())
        waiting = asyncio.ensure_future(doors.acquire(request()))
        await asyncio.sleep(0)
        held.settle_now()
        await asyncio.sleep(0)  # the look has run, the waiter has not
        assert len(made.local) == 0
        await leave(waiting)
        assert_idle(made)

    run(main())


def test_a_lost_worker_sends_those_who_wait_for_it_elsewhere() -> None:
    async def main() -> None:
        policy = FirstWorker()
        made = one_at_a_time("a", "b", policy=policy)
        doors = doors_of(made)
        with await doors.acquire(request()):
            waiting = asyncio.ensure_future(doors.acquire(request("moved")))
            await asyncio.sleep(0.1)
            made.roster.sign("a", Sign.STALLED, 0.1)
            doors.wake()
            with await waiting as held:
                assert held.lease.worker == "b"
            assert policy.committed_requests[1:] == [("moved", False), ("moved", True)]
        assert_idle(made)

    run(main())


def test_whoever_waits_too_long_is_told_so() -> None:
    async def main() -> None:
        made = one_at_a_time("a", max_wait_s=3.0)
        doors = doors_of(made)
        with await doors.acquire(request()):
            waiting = asyncio.ensure_future(doors.acquire(request()))
            await asyncio.sleep(2.9)
            doors.expire()
            assert not waiting.done()
            await asyncio.sleep(0.1)
            doors.expire()
            with pytest.raises(QueueFull, match="turn at a worker"):
                await waiting
        assert_idle(made)

    run(main())


def test_legs_that_run_at_the_same_time_wait_for_the_prefill_worker() -> None:
    async def main() -> None:
        decode = pool("d", policy=FirstPair(), role=Role.DECODE)
        prefill = pool(role=Role.PREFILL, local=LocalQueueRules(Order.FCFS, 1))
        del prefill.roster._workers["a"]
        add_worker(prefill, "p", role=Role.PREFILL)
        joined(decode, prefill)
        doors, beside = doors_of(decode), doors_of(prefill)
        doors.beside = beside.turns
        both = await doors.acquire(request(split=True))
        waiting = asyncio.ensure_future(doors.acquire(request(split=True)))
        await asyncio.sleep(0.1)
        assert (decode.in_flight, prefill.local.depth("p"), waiting.done()) == (2, 1, False)
        assert both.lease.prefill is not None
        beside.progress(both.lease.prefill, 1, None)
        with await waiting, both:
            pass
        assert_idle(decode)
        assert_idle(prefill)

    run(main())


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 20), st.none() | st.integers(0, 40)),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 3),
    st.none() | st.integers(0, 60),
)
def test_whoever_comes_stays_or_leaves_everything_is_idle_in_the_end(
    visits: list[tuple[int, int, int | None]], bound: int, lost_at: int | None
) -> None:
    async def main() -> None:
        made = pool("a", "b", local=LocalQueueRules(Order.PRIORITY_GROUPS, bound))
        doors = doors_of(made)
        running = dict.fromkeys("ab", 0)

        async def serve(comes: int, takes: int) -> None:
            await asyncio.sleep(comes)
            held: Held
            with await doors.acquire(request()) as held:
                worker = held.lease.worker
                running[worker] += 1
                assert running[worker] <= bound
                try:
                    await asyncio.sleep(takes)
                finally:
                    running[worker] -= 1

        async def visit(comes: int, takes: int, leaves: int | None) -> None:
            task = asyncio.ensure_future(serve(comes, takes))
            await asyncio.wait({task}, timeout=leaves)
            task.cancel()
            done, _ = await asyncio.wait({task})
            for one in done:
                assert one.cancelled() or one.exception() is None

        async def lose() -> None:
            if lost_at is not None:
                await asyncio.sleep(lost_at)
                made.roster.sign("a", Sign.REFUSED, 0.0)
                doors.wake()

        await asyncio.gather(lose(), *(visit(*one) for one in visits))
        assert_idle(made)
        assert len(made.local) == 0
        assert doors.turns._waiters == {}

    run(main())


# --- the whole router ------------------------------------------------------------------------------------


def test_a_worker_is_sent_one_at_a_time_and_the_rest_is_seen_in_the_metrics() -> None:
    async def scene(act: Live) -> None:
        asked = [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: act.pool.in_flight == 3)
        assert await act.metric("pointsman_worker_turns_waited_for", worker="a") == 2
        assert await act.metric("pointsman_worker_requests_in_flight", worker="a") == 3
        for reply in asked:
            assert (await reply).status == 200
        asks = act.puppets["a"].asks
        assert len(asks) == 3
        assert await act.metric("pointsman_worker_turns_waited_for", worker="a") == 0
        assert await act.metric("pointsman_worker_turn_seconds_count", worker="a") == 2
        assert act.now < 0.3

    play(scene, pool=ONE_AT_A_TIME)


def test_a_client_that_leaves_while_it_waits_is_never_sent() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, ASK)
        await act.until(lambda: act.puppets["a"].running == 1)
        second = act.asking(CHAT, ASK)
        await act.until(lambda: act.pool.local.depth("a") == 1)
        await leave(second)
        await act.until(lambda: act.pool.in_flight == 1)
        await leave(first)
        assert len(act.puppets["a"].asks) == 1

    play(scene, {"a": hang}, pool=ONE_AT_A_TIME)


def test_waiting_for_a_turn_ends_after_the_time_of_the_queue_with_429() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, ASK)
        await act.until(lambda: act.puppets["a"].running == 1)
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 429
        assert "turn at a worker" in reply.body.decode()
        assert 3.0 <= act.now < 3.6
        await leave(first)

    play(scene, {"a": hang}, pool=ONE_AT_A_TIME, limits={"queue_timeout_s": 3.0})


def test_prefill_workers_have_turns_too_and_kv_that_they_keep_takes_none() -> None:
    async def scene(act: Live) -> None:
        replies = [act.asking(CHAT, STREAM) for _ in range(4)]
        assert [(await reply).status for reply in replies] == [200] * 4
        assert len(act.puppets["p"].asks) == 4
        assert await act.metric("pointsman_worker_turn_seconds_count", worker="p") == 3

    play_pair(scene, prefill_pool=ONE_AT_A_TIME)
