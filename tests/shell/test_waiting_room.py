"""Requests that have to wait, on the whole router: what keeps them apart, and what they are told in vain."""

from __future__ import annotations

import asyncio

from router.core.health import Sign
from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import WHOLE, Ask, talk

ONE_AT_A_TIME = {"slots": 1, "binding": "late"}


async def slow(ask: Ask) -> None:
    await asyncio.sleep(1.0)
    ask.answer(200, WHOLE)


def test_clients_that_send_the_same_request_id_get_each_their_own_answer() -> None:
    async def scene(act: Live) -> None:
        same = {"x-request-id": "mine"}
        replies = await asyncio.gather(*(act.ask(CHAT, ASK, same) for _ in range(4)))
        assert [reply.status for reply in replies] == [200] * 4
        assert {reply.header("x-request-id") for reply in replies} == {"mine"}
        assert act.now >= 4.0

    play(scene, {"a": slow}, pool=ONE_AT_A_TIME)


def test_a_client_that_leaves_the_queue_takes_no_other_of_the_same_id_with_it() -> None:
    async def scene(act: Live) -> None:
        same = {"x-request-id": "mine"}
        asking = [act.asking(CHAT, ASK, same) for _ in range(3)]
        await asyncio.sleep(0.5)
        asking[1].cancel()
        replies = await asyncio.gather(asking[0], asking[2])
        assert [reply.status for reply in replies] == [200, 200]

    play(scene, {"a": slow}, pool=ONE_AT_A_TIME)


def test_a_try_elsewhere_that_finds_no_room_ends_with_the_first_failure() -> None:
    async def scene(act: Live) -> None:
        roster = act.pool.roster
        roster.sign("a", Sign.DRAIN, act.loop.time())
        busy = act.asking(CHAT, ASK)
        await act.until(lambda: act.worker("b").in_flight == 1)
        for sign in (Sign.RESUME, Sign.GOOD):
            roster.sign("a", sign, act.loop.time())
        act.puppets["a"].refuse()
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (502, "upstream_unreachable")
        assert (await busy).status == 200

    play(scene, {"a": talk, "b": slow}, pool=ONE_AT_A_TIME, limits={"queue_size": 0}, **QUIET)


def test_a_fleet_that_is_down_since_the_start_is_a_reason_to_come_back() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected")
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert reply.header("retry-after") is not None

    play(scene, {"a": talk}, ready=False)


def test_a_name_that_nobody_serves_is_a_404_also_while_a_part_of_the_fleet_is_down() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected" and act.state("b") == "ready")
        reply = await act.ask(CHAT, {**ASK, "model": "typo"})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")

    play(scene, {"a": talk, "b": talk}, ready=False)
