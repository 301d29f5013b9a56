"""Pairs that failed to hand over rest; who fails with several others is to blame, and a crowd is not."""

from __future__ import annotations

import asyncio

import pytest

from tests.shell.live import CHAT, QUIET, STREAM, Live
from tests.shell.pair import (
    STRICT,
    asks,
    counts,
    decode,
    fresh_handle,
    is_release,
    of_decode,
    partners,
    play_pair,
    prefill,
    prefilled,
    refusing_releases,
    whole,
)
from tests.shell.puppet import TALK, Ask, Serve, answering, failure, in_turn

BROKEN = answering(500, failure(500))


def aside(act: Live) -> set[tuple[str, str]]:
    """Pairs that may not be tried now."""
    return set(partners(act).pairs.set_aside(act.loop.time()))


def broken_split(serve: Serve = decode) -> Serve:
    """An engine whose hand-overs fail, and that is well otherwise."""

    async def served(ask: Ask) -> None:
        await (BROKEN if of_decode(ask) else serve)(ask)

    return served


def test_a_pair_that_failed_rests_and_longer_each_time() -> None:
    async def scene(act: Live) -> None:
        for rest_s in (1.0, 2.0, 4.0):
            await act.ask(CHAT, STREAM)
            assert aside(act) == {("p", "d")}
            await asyncio.sleep(rest_s - 0.1)
            assert aside(act) == {("p", "d")}
            await asyncio.sleep(0.11)
            assert aside(act) == set()

    play_pair(scene, decodes={"d": broken_split()}, strands=True, **QUIET)


def test_a_pair_that_does_well_again_is_as_good_as_new() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        await asyncio.sleep(1.01)
        await act.ask(CHAT, STREAM)
        assert len(partners(act).pairs) == 0

    serve = refusing_releases(in_turn(BROKEN, decode))
    play_pair(scene, decodes={"d": serve}, strands=True, **QUIET)


def test_while_the_only_pair_rests_requests_are_served_whole() -> None:
    async def scene(act: Live) -> None:
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "d") == [1, 4]
        assert [whole(ask) for ask in asks(act, "d")] == [False, True, True, True]
        assert await act.metric("pointsman_unsplit_requests_total", reason="no_prefill") == 3
        await asyncio.sleep(1)
        await act.ask(CHAT, STREAM)
        assert counts(act, "p") == [2]

    play_pair(scene, decodes={"d": broken_split()}, strands=True, **QUIET)


def test_in_strict_mode_the_only_pair_is_tried_however_often_it_fails() -> None:
    async def scene(act: Live) -> None:
        for asked in range(1, 4):
            reply = await act.ask(CHAT, STREAM)
            assert (reply.status, reply.error["message"]) == (500, "The engine failed.")
            assert counts(act, "p", "d") == [2 * asked, 2 * asked]

    play_pair(scene, decodes={"d": broken_split()}, decode_pool=STRICT, strands=True, **QUIET)


def test_a_pair_that_rests_keeps_neither_worker_from_others() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        assert len(aside(act)) == 1
        for _ in range(8):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert all(of_decode(ask) or is_release(ask) for ask in asks(act, "d", "e"))
        assert sum(counts(act, "p", "q")) == 10
        assert len(aside(act)) == 1

    serve = refusing_releases(in_turn(BROKEN, decode))
    play_pair(scene, dict.fromkeys("pq", prefill), dict.fromkeys("de", serve), strands=True, **QUIET)


def test_a_decode_worker_that_fails_with_two_prefill_workers_is_ejected() -> None:
    async def scene(act: Live) -> None:
        for _ in range(60):
            assert (await act.ask(CHAT, STREAM)).body == TALK
            await asyncio.sleep(0.5)
            if act.state("d") == "ejected":
                break
        assert act.state("d") == "ejected"
        assert act.state("p") == act.state("q") == act.state("e") == "ready"
        assert counts(act, "d")[0] <= 6

    play_pair(scene, dict.fromkeys("pq", prefill), {"d": broken_split(), "e": decode}, strands=True, **QUIET)


def test_a_prefill_worker_that_fails_with_two_decode_workers_is_ejected() -> None:
    """Its handles lead nowhere: every decode engine that fetches by them fails."""

    async def bad_handle(ask: Ask) -> None:
        if of_decode(ask) and ask.json()["kv_transfer_params"]["remote_port"] == 666:
            await BROKEN(ask)
        else:
            await decode(ask)

    async def scene(act: Live) -> None:
        for _ in range(60):
            assert (await act.ask(CHAT, STREAM)).body == TALK
            await asyncio.sleep(0.5)
            if act.state("p") == "ejected":
                break
        assert act.state("p") == "ejected"
        assert act.state("q") == act.state("d") == act.state("e") == "ready"
        assert counts(act, "p")[0] <= 6

    async def prefill_badly(ask: Ask) -> None:
        ask.answer(200, prefilled({**fresh_handle(), "remote_port": 666}))

    play_pair(
        scene,
        {"p": prefill_badly, "q": prefill},
        dict.fromkeys("de", bad_handle),
        strands=True,
        **QUIET,
    )


@pytest.mark.parametrize("size", [20, 60])
def test_a_crowd_that_fails_at_once_ejects_nobody_and_rests_a_pair_once(size: int) -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(size)]
        await act.until(lambda: counts(act, "d")[0] >= 4)
        await asyncio.sleep(0.005)
        for ask in act.puppets["d"].asks:
            ask.reset()
        act.puppets["d"].serve = decode
        replies = await asyncio.gather(*tasks)
        assert all(reply.status == 200 for reply in replies)
        assert [act.state(name) for name in "pqde"] == ["ready"] * 4
        await asyncio.sleep(1)
        assert aside(act) == set()

    async def slow(ask: Ask) -> None:
        await ask.left.wait()

    play_pair(
        scene,
        dict.fromkeys("pq", prefill),
        {"d": refusing_releases(slow), "e": decode},
        strands=True,
        retry={"budget_min": 100},
        **QUIET,
    )


def test_a_worker_that_restarted_is_another_end() -> None:
    """Its hand-overs failed before; the new process has not failed yet."""

    async def scene(act: Live) -> None:
        act.puppets["d"].metrics = "process_start_time_seconds 1\n"
        await asyncio.sleep(1.5)
        await act.ask(CHAT, STREAM)
        assert aside(act) == {("p", "d")}
        pairs, worker = partners(act).pairs, act.worker("d")
        before = worker.incarnation
        act.puppets["d"].metrics = "process_start_time_seconds 2\n"
        await act.until(lambda: worker.incarnation > before, 5)
        assert pairs.allowed(("p", act.worker("p").incarnation), ("d", worker.incarnation), act.loop.time())

    play_pair(scene, decodes={"d": broken_split()}, strands=True, polling={"interval_s": 0.2})
