"""What time alone brings about."""

from __future__ import annotations

import asyncio

import pytest

from router.reaper import PERIOD_S, reap_once
from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import hang, talk


def test_a_wait_that_ran_out_is_seen_within_a_period() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        before = act.now
        assert (await act.ask(CHAT, STREAM)).status == 429
        assert 2 <= act.now - before <= 2 + PERIOD_S
        first.cancel()

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"}, limits={"queue_timeout_s": 2})


def test_who_waits_in_vain_is_told_as_soon_as_that_is_known() -> None:
    async def scene(act: Live) -> None:
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        waiting = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.queued == 1)
        act.puppets["a"].refuse()
        reply = await waiting
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert act.now < 7
        first.cancel()

    play(scene, {"a": hang}, pool={"slots": 1, "binding": "late"})


def test_nothing_is_reaped_by_age_while_its_socket_lives() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, ASK)
        await asyncio.sleep(3000)
        assert act.router.fleet.in_flight.used == 1
        assert not task.done()
        task.cancel()

    play(scene, {"a": hang}, **QUIET)


def test_a_removed_worker_is_forgotten_when_its_last_lease_ends() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        act.router.fleet.leave("a", act.loop.time())
        await asyncio.sleep(5)
        assert "a" in act.pool.roster.workers
        task.cancel()
        await asyncio.sleep(PERIOD_S + 0.1)
        assert "a" not in act.pool.roster.workers

    play(scene, {"a": hang, "b": hang}, pool={"policy": "session_affinity"})


def test_a_worker_may_come_back_under_its_name_while_it_still_has_streams() -> None:
    async def scene(act: Live) -> None:
        settings = act.router.settings.pools["default"].workers[0]
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        act.router.fleet.leave("a", act.loop.time())
        act.router.register("default", settings, "config")
        await act.until(lambda: act.state("a") == "ready")
        assert act.worker("a").incarnation > 0
        assert (act.worker("a").in_flight, act.pool.in_flight) == (0, 1)
        task.cancel()
        await asyncio.sleep(1)
        act.assert_zero()
        assert list(act.pool.roster.workers) == ["a"]

    play(scene, {"a": hang})


@pytest.mark.parametrize("count", [0, 3])
def test_a_look_at_an_idle_fleet_changes_nothing(count: int) -> None:
    async def scene(act: Live) -> None:
        before = repr(act.router.fleet)
        for _ in range(5):
            reap_once(act.router.fleet)
        assert repr(act.router.fleet) == before

    play(scene, dict.fromkeys("abc"[:count], talk))
