"""Workers that an operator drains by revision, and joins to one of two pools, while requests run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ADMIN, CHAT, STREAM, Live, play
from tests.shell.puppet import TALK, talk

FOUR = dict.fromkeys(("p1", "p2", "d1", "d2"), talk)


def worker(name: str, revision: str) -> dict[str, str]:
    return {"url": f"http://{name}:8000", "name": name, "revision": revision}


PAIR: dict[str, Any] = {
    "prefill": {"role": "prefill", "workers": [worker("p1", "old"), worker("p2", "new")]},
    "decode": {"role": "decode", "workers": [worker("d1", "old"), worker("d2", "new")]},
}


def states(act: Live) -> dict[str, str]:
    return {member.name: member.worker.state.value for member in act.router.fleet}


def test_a_revision_is_drained_on_both_sides_of_a_pair() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers/drain", {"revision": "old"}, origin=ADMIN)
        assert reply.status == 200
        answer = reply.json()
        assert (answer["revision"], answer["left"]) == ("old", 0)
        idle = {"state": "draining", "in_flight": 0, "held_handovers": 0}
        assert sorted(answer["workers"], key=lambda said: said["name"]) == [
            {"name": "d1", **idle},
            {"name": "p1", **idle},
        ]
        assert states(act) == {"p1": "draining", "p2": "ready", "d1": "draining", "d2": "ready"}

    play(scene, FOUR, pools=PAIR)


def test_draining_twice_is_draining_once() -> None:
    async def scene(act: Live) -> None:
        for _ in range(2):
            assert (await act.ask("/workers/drain", {"revision": "old"}, origin=ADMIN)).status == 200
        assert states(act)["p2"] == "ready"

    play(scene, FOUR, pools=PAIR)


def test_the_last_revision_is_drained_by_force_only() -> None:
    async def scene(act: Live) -> None:
        await act.ask("/workers/drain", {"revision": "old"}, origin=ADMIN)
        reply = await act.ask("/workers/drain", {"revision": "new"}, origin=ADMIN)
        assert reply.status == 409
        assert states(act)["p2"] == states(act)["d2"] == "ready"
        reply = await act.ask("/workers/drain", {"revision": "new", "force": True}, origin=ADMIN)
        assert reply.status == 200
        assert set(states(act).values()) == {"draining"}

    play(scene, FOUR, pools=PAIR)


def test_what_a_drained_worker_still_does_is_counted_until_it_is_done() -> None:
    async def scene(act: Live) -> None:
        stream = act.asking(CHAT, STREAM)
        await act.until(lambda: act.worker("a").in_flight == 1)
        reply = await act.ask("/workers/drain", {"worker": "a"}, origin=ADMIN)
        answer = reply.json()
        assert (answer["revision"], answer["left"]) == (None, 1)
        assert [(said["name"], said["in_flight"]) for said in answer["workers"]] == [("a", 1)]
        assert (await stream).body == TALK
        (said,) = (await act.ask("/workers", origin=ADMIN)).json()["workers"]
        assert (said["state"], said["in_flight"], said["held_handovers"]) == ("draining", 0, 0)

    play(scene)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"worker": "p1", "revision": "old"}, 400),
        ({"revision": "unheard-of"}, 400),
        ({"worker": "nobody"}, 404),
        ({"revision": "old", "colour": "red"}, 400),
        ({"revision": 7}, 400),
    ],
    ids=str,
)
def test_a_drain_that_means_nobody_is_refused(body: dict[str, Any], status: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers/drain", body, origin=ADMIN)
        assert reply.status == status
        assert reply.error["type"] == "invalid_request_error"
        assert set(states(act).values()) == {"ready"}

    play(scene, FOUR, pools=PAIR)


def test_a_drain_asks_for_the_administrators_key() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask("/workers/drain", {"worker": "a"}, origin=ADMIN)).status == 401
        await asyncio.sleep(0)
        assert states(act) == {"a": "ready"}

    play(scene, auth={"admin_api_key": "right"})


def test_workers_are_listed_with_what_they_run() -> None:
    async def scene(act: Live) -> None:
        listed = (await act.ask("/workers", origin=ADMIN)).json()["workers"]
        assert {said["name"]: (said["role"], said["pool"]) for said in listed} == {
            "p1": ("prefill", "prefill"),
            "p2": ("prefill", "prefill"),
            "d1": ("decode", "decode"),
            "d2": ("decode", "decode"),
        }
        assert all(said["revision"].startswith(("old", "new")) for said in listed)
        assert {said["held_handovers"] for said in listed} == {0}

    play(scene, FOUR, pools=PAIR)


@pytest.mark.parametrize(
    ("body", "status", "pool"),
    [
        ({}, 400, None),
        ({"role": "decode"}, 202, "decode"),
        ({"role": "prefill", "revision": "new"}, 202, "prefill"),
        ({"pool": "prefill"}, 202, "prefill"),
        ({"pool": "decode", "role": "both"}, 202, "decode"),
        ({"pool": "decode", "may_prefill": True}, 202, "decode"),
        ({"pool": "prefill", "role": "decode"}, 400, None),
        ({"pool": "decode", "bootstrap_port": 8998}, 400, None),
    ],
    ids=str,
)
def test_a_new_worker_says_which_side_of_a_pair_it_joins(
    body: dict[str, Any], status: int, pool: str | None
) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers", {"url": "http://x:8000", "name": "x", **body}, origin=ADMIN)
        assert reply.status == status
        member = act.router.fleet.member("x")
        assert (None if member is None else member.dispatcher.pool.rules.name) == pool

    play(scene, FOUR, pools=PAIR)
