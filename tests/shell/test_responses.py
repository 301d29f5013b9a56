"""Stored responses live in one engine: who goes on with one is sent there, or told that it is gone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from router.core.errors import NotFound
from router.responses import ResponseOwners
from tests.shell.live import Live, play
from tests.shell.puppet import Ask, Serve

PATH = "/v1/responses"
NEW: dict[str, Any] = {"model": "m", "input": "hello"}


def storing(name: str) -> Serve:
    """An engine that names its responses after itself."""
    made = 0

    async def serve(ask: Ask) -> None:
        nonlocal made
        if ask.method != "POST" or ask.path.count("/") > 2:
            ask.answer(200, json.dumps({"id": ask.path.split("/")[3], "by": name}).encode())
            return
        made += 1
        response = {"id": f"resp_{name}{made}", "object": "response", "status": "completed"}
        if not ask.json().get("stream"):
            ask.answer(200, json.dumps(response).encode())
            return
        ask.begin()
        for kind in ("response.created", "response.completed"):
            data = json.dumps({"type": kind, "response": response}).encode()
            ask.event(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
            await asyncio.sleep(0.01)
        ask.end()

    return serve


def fleet(*names: str) -> dict[str, Serve]:
    return {name: storing(name) for name in names}


async def make(act: Live, *, stream: bool = False) -> str:
    reply = await act.ask(PATH, {**NEW, "stream": stream})
    assert reply.status == 200
    if not stream:
        return str(reply.json()["id"])
    return str(reply.last_event()["response"]["id"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_is_continued_where_it_lives(stream: bool) -> None:
    async def scene(act: Live) -> None:
        for _ in range(6):
            before = await make(act, stream=stream)
            after = (await act.ask(PATH, {**NEW, "previous_response_id": before})).json()["id"]
            assert after[5] == before[5]

    play(scene, fleet("a", "b", "c"))


def test_a_response_is_read_cancelled_and_deleted_where_it_lives() -> None:
    async def scene(act: Live) -> None:
        for _ in range(3):
            made = await make(act)
            for method, path in (
                ("GET", ""),
                ("GET", "/input_items?limit=2"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                reply = await act.ask(f"{PATH}/{made}{path}", method=method)
                assert reply.json() == {"id": made.partition("?")[0], "by": made[5]}
                ask = act.puppets[made[5]].asks[-1]
                assert (ask.method, ask.path) == (method, f"{PATH}/{made}{path}")

    play(scene, fleet("a", "b", "c"))


def test_a_response_that_nobody_knows_is_a_clear_404() -> None:
    async def scene(act: Live) -> None:
        for reply in (
            await act.ask(f"{PATH}/resp_none"),
            await act.ask(PATH, {**NEW, "previous_response_id": "resp_none"}),
        ):
            assert (reply.status, reply.error["code"]) == (404, "not_found")
            assert "resp_none" in reply.error["message"]
        assert act.puppets["a"].asks == []

    play(scene, fleet("a"))


@pytest.mark.parametrize("how", ["restarted", "removed"])
def test_a_response_whose_worker_is_gone_is_a_clear_404(how: str) -> None:
    async def scene(act: Live) -> None:
        made = await make(act)
        owner = made[5]
        if how == "removed":
            act.router.fleet.leave(owner, act.loop.time())
        else:
            act.puppets[owner].metrics = "process_start_time_seconds 1000\n"
            await asyncio.sleep(3)
            act.puppets[owner].metrics = "process_start_time_seconds 2000\n"
            await asyncio.sleep(3)
        assert (await act.ask(f"{PATH}/{made}")).status == 404
        reply = await act.ask(PATH, {**NEW, "previous_response_id": made})
        assert (reply.status, reply.error["param"]) == (404, "previous_response_id")

    play(scene, fleet("a", "b"))


def test_a_response_of_a_worker_that_drains_can_still_be_read() -> None:
    async def scene(act: Live) -> None:
        made = await make(act)
        act.router.fleet.drain(made[5], act.loop.time())
        assert (await act.ask(f"{PATH}/{made}")).json()["by"] == made[5]

    play(scene, fleet("a", "b"))


def test_a_response_whose_worker_is_down_is_503_and_tried_nowhere_else() -> None:
    async def scene(act: Live) -> None:
        made = await make(act)
        act.puppets[made[5]].kill()
        assert (await act.ask(f"{PATH}/{made}")).status in (502, 503)
        await act.until(lambda: act.state(made[5]) == "ejected")
        reply = await act.ask(PATH, {**NEW, "previous_response_id": made})
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")

    play(scene, fleet("a", "b"))


def test_ids_that_are_no_ids_reach_nobody() -> None:
    async def scene(act: Live) -> None:
        for odd in ("..", "a/b/c", "%2e%2e", "x" * 300, "a b", "resp_1/stop", "\u00e9"):
            reply = await act.ask(f"{PATH}/{odd}".replace(" ", "%20").encode().decode("latin-1"))
            assert reply.status in (400, 404)
        assert act.puppets["a"].asks == []

    play(scene, fleet("a"))


def test_a_mock_engine_keeps_a_conversation_over_turns() -> None:
    async def scene(act: Live) -> None:
        body = {"model": "qwen2.5-3b", "input": "hello", "max_output_tokens": 4}
        first = (await act.ask(PATH, body)).json()
        for _ in range(3):
            reply = await act.ask(PATH, {**body, "previous_response_id": first["id"]})
            assert reply.status == 200, reply.body
            assert (await act.ask(f"{PATH}/{reply.json()['id']}")).json()["id"] == reply.json()["id"]

    play(scene, {"a": MockSettings(), "b": MockSettings()})


def test_the_oldest_owners_are_forgotten_first() -> None:
    async def scene(act: Live) -> None:
        owners = ResponseOwners(act.router.fleet, limit=2)
        member = act.router.fleet.member("a")
        assert member is not None
        for name in ("r1", "r2", "r1", "r3"):
            owners.learn(name, member)
        assert [owners.owner(name) for name in ("r1", "r3")] == ["a", "a"]
        with pytest.raises(NotFound):
            owners.owner("r2")
        assert repr(owners) == "<ResponseOwners [2 of 2]>"

    play(scene)
