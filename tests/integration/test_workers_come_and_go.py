"""Engines that are killed, restarted, added and drained under a router that serves."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.integration.clients import Seen, streams_of
from tests.integration.programs import Engine, Programs, Router, ask, until, until_on_loop

SLOW = ("--time-scale", "3")
EVEN = "least_requests"
"""Everybody asks the same, and by default would be sent where it is cached."""
QUICK_PROBES = {"health": {"interval_s": 0.5}}


def state_of(router: Router, worker: str) -> str:
    state: str = router.worker(worker)["state"]
    return state


def finished(engine: Engine) -> int:
    """Answers that it has completed."""
    return sum(engine.state()["finished"].values())


async def test_an_engine_killed_under_its_streams_takes_only_those_with_it(programs: Programs) -> None:
    doomed, (first,) = programs.engines(*SLOW)
    _, (second,) = programs.engines(*SLOW)
    router = programs.router([first, second], QUICK_PROBES, policy=EVEN)
    async with streams_of(router) as streams:
        streams.start(32, tokens=100)
        await streams.all_begun()
        doomed.kill()
        seen = await streams.over()
        assert Counter(stream.worker for stream in seen) == {first.name: 16, second.name: 16}
        lost = [stream for stream in seen if stream.worker == first.name]
        assert all(stream.broken_in_words for stream in lost)
        assert all(b"127.0.0.1" not in stream.body for stream in lost)
        assert all(stream.complete for stream in seen if stream.worker == second.name)

        await until_on_loop(lambda: state_of(router, first.name) == "ejected", "the dead engine is out")
        streams.seen.clear()
        streams.start(4, tokens=2)
        assert {stream.worker for stream in await streams.over() if stream.complete} == {second.name}

        programs.engines(*SLOW, port=first.port)
        await until_on_loop(lambda: state_of(router, first.name) == "ready", "the engine is back")
        streams.seen.clear()
        streams.start(8, tokens=2)
        assert {stream.worker for stream in await streams.over() if stream.complete} == {
            first.name,
            second.name,
        }
    router.assert_idle()


async def test_requests_that_meet_a_dead_engine_before_the_probe_does_are_served_elsewhere(
    programs: Programs,
) -> None:
    doomed, (first,) = programs.engines()
    _, (second,) = programs.engines()
    router = programs.router([first, second], {"health": {"interval_s": 3600}}, policy=EVEN)
    doomed.kill()
    async with streams_of(router) as streams:
        streams.start(8, tokens=2)
        seen = await streams.over()
    assert all(stream.complete and stream.worker == second.name for stream in seen)
    assert state_of(router, first.name) == "ejected"


async def test_a_worker_added_and_one_drained_under_load_fail_no_request(programs: Programs) -> None:
    _, (first, second) = programs.engines(count=2)
    router = programs.router([first], QUICK_PROBES, policy=EVEN)
    over = asyncio.Event()
    done: list[Seen] = []

    async def client() -> None:
        async with streams_of(router) as streams:
            while not over.is_set():
                streams.start(1, tokens=20)
                await streams.over()
            done.extend(streams.seen)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    try:
        added = ask(f"{router.admin_url}/workers", method="POST", body={"url": second.url})
        assert added.status == 202
        await until_on_loop(lambda: finished(second) > 8, "the new worker serves")
        drained = ask(f"{router.admin_url}/workers/{first.name}/drain", method="POST")
        assert (drained.status, drained.json()["state"]) == (200, "draining")
        await until_on_loop(lambda: router.worker(first.name)["in_flight"] == 0, "the old one is drained")
        assert ask(f"{router.admin_url}/workers/{first.name}", method="DELETE").status == 200
        before = finished(first), finished(second)
        assert router.worker(first.name) is None
        await until_on_loop(lambda: finished(second) > before[1] + 8, "the new worker serves alone")
        assert finished(first) == before[0]
    finally:
        over.set()
        await asyncio.gather(*clients)
    assert all(seen.complete for seen in done)
    assert {seen.worker for seen in done} == {first.name, second.name}
    router.assert_idle()


def test_a_router_starts_without_workers_and_takes_them_as_they_come_and_go(programs: Programs) -> None:
    _, (engine,) = programs.engines()
    router = programs.router([], {"pools": {"demo": {}}, **QUICK_PROBES}, ready=False)
    assert router.readiness() == 503
    assert ask(f"{router.url}/liveness").status == 200
    workers = f"{router.admin_url}/workers"
    assert ask(workers, method="POST", body={"url": engine.url}).status == 202
    until(lambda: router.readiness() == 200, "the worker is ready")
    assert ask(f"{workers}/{engine.name}/drain", method="POST").status == 200
    assert router.readiness() == 503
    assert ask(f"{workers}/{engine.name}/resume", method="POST").status == 200
    until(lambda: router.readiness() == 200, "ready again")
