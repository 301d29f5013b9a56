"""Workers that an operator adds, drains, resumes and removes while requests run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, STREAM, Live, play
from tests.shell.puppet import TALK, Puppet, talk


def test_a_drained_worker_keeps_its_streams_and_gets_no_new_ones() -> None:
    async def scene(act: Live) -> None:
        streams = [act.asking(CHAT, STREAM) for _ in range(4)]
        await asyncio.sleep(0.005)
        reply = await act.ask("/workers/a/drain", method="POST", origin=ADMIN)
        assert (reply.status, reply.json()["state"]) == (200, "draining")
        assert {(await task).body for task in streams} == {TALK}
        before = len(act.puppets["a"].asks)
        for _ in range(4):
            await act.ask(CHAT, ASK)
        assert len(act.puppets["a"].asks) == before == 2
        await act.ask("/workers/a/resume", method="POST", origin=ADMIN)
        await act.until(lambda: act.state("a") == "ready", 6)

    play(scene, {"a": talk, "b": talk})


def test_a_removed_worker_finishes_its_streams_and_is_forgotten() -> None:
    async def scene(act: Live) -> None:
        streams = [act.asking(CHAT, STREAM) for _ in range(4)]
        await asyncio.sleep(0.005)
        reply = await act.ask("/workers/a", method="DELETE", origin=ADMIN)
        assert (reply.status, reply.json()["state"]) == (200, "gone")
        assert [w["name"] for w in (await act.ask("/workers", origin=ADMIN)).json()["workers"]] == ["b"]
        assert {(await task).body for task in streams} == {TALK}
        await asyncio.sleep(1)
        assert list(act.pool.roster.workers) == ["b"]
        probes = len(act.puppets["a"].probes)
        await asyncio.sleep(30)
        assert len(act.puppets["a"].probes) == probes
        assert (await act.ask("/workers/a", method="DELETE", origin=ADMIN)).status == 404

    play(scene, {"a": talk, "b": talk})


ADD: list[tuple[dict[str, Any], int]] = [
    ({"url": "http://b:8000"}, 202),
    ({"url": "http://b:8000", "name": "a"}, 400),
    ({"url": "http://a:8000", "name": "other"}, 400),
    ({"url": "ftp://b"}, 400),
    ({"url": "http://b:8000/v1"}, 400),
    ({"url": "dns+http://b:8000"}, 400),
    ({"url": "http://b:8000", "pool": "none"}, 400),
    ({"url": "http://b:8000", "capacity": 0}, 400),
    ({"url": "http://b:8000", "colour": "red"}, 400),
    ({}, 400),
]


@pytest.mark.parametrize(("body", "status"), ADD, ids=str)
def test_workers_are_added_or_refused_in_words(body: dict[str, Any], status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers", body, origin=ADMIN)
        assert reply.status == status
        if status != 202:
            assert reply.error["type"] == "invalid_request_error"
            assert len(act.router.fleet) == 1

    play(scene)


def test_an_added_worker_serves_after_its_first_probe() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers", {"url": "http://a:8000", "name": "new"}, origin=ADMIN)
        assert (reply.status, reply.json()["state"]) == (202, "starting")
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.state("new") == "ready"

    async def empty(act: Live) -> None:
        act.puppets["a"] = Puppet(act.network, "a")
        await scene(act)

    play(empty, {})
