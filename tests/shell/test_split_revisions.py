"""KV passes only between workers of one revision: what tells them apart, and how a fleet rolls onward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ADMIN, ASK, CHAT, QUIET, STREAM, Live
from tests.shell.pair import (
    STRICT,
    asks,
    counts,
    decode,
    fresh_handle,
    is_release,
    of_decode,
    of_prefill,
    play_pair,
    pool,
    prefilled,
)
from tests.shell.puppet import DONE, ROLE, STOP, TALK, WHOLE, Ask, Puppet, Serve, talk, word
from tests.shell.visitors import Reply

OLD, NEW = {"p", "d"}, {"q", "e"}
LABELS = {name: {"revision": "old"} for name in OLD} | {name: {"revision": "new"} for name in NEW}
AGAIN: dict[str, Any] = {
    "health": {"interval_s": 0.2},
    "polling": {"interval_s": 3000.0, "models_interval_s": 0.2},
}
"""Settings of a router that asks its workers all the time."""


def producer(name: str, gate: asyncio.Event | None = None) -> Serve:
    """A prefill worker whose handles say whose they are; it answers when the gate is open."""

    async def serve(ask: Ask) -> None:
        if not of_prefill(ask):
            await talk(ask)
            return
        await asyncio.sleep(0.02)
        if gate is not None:
            await gate.wait()
        ask.answer(200, prefilled({**fresh_handle(), "remote_host": name}))

    return serve


PREFILLS = {name: producer(name) for name in "pq"}
DECODES = dict.fromkeys("de", decode)


def assert_nothing_crossed(act: Live) -> None:
    """Every handle, also one that is released, came to an engine of its producer's revision."""
    for consumer, made_by in (("d", "p"), ("e", "q")):
        if consumer in act.puppets:
            legs = [ask for ask in asks(act, consumer) if of_decode(ask) or is_release(ask)]
            assert {ask.json()["kv_transfer_params"]["remote_host"] for ask in legs} <= {made_by}


async def join(act: Live, name: str, role: str, serve: Serve, revision: str = "new") -> None:
    """A worker that comes while the router runs."""
    act.puppets[name] = Puppet(act.network, name, serve)
    body = {"url": f"http://{name}:8000", "name": name, "role": role, "revision": revision}
    assert (await act.ask("/workers", body, origin=ADMIN)).status == 202
    await act.until(lambda: act.state(name) == "ready", 5)


async def drain(act: Live, revision: str) -> Any:
    reply = await act.ask("/workers/drain", {"revision": revision}, origin=ADMIN)
    assert reply.status == 200, reply.body
    return reply.json()


# --- what a revision is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["label", "version", "root"])
def test_only_workers_of_one_revision_hand_kv_to_each_other(how: str) -> None:
    async def scene(act: Live) -> None:
        for name, puppet in act.puppets.items():
            if how != "label":
                setattr(puppet, how, "old" if name in OLD else "new")
        await asyncio.sleep(1)
        for _ in range(12):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert min(counts(act, *"pqde")) >= 5
        assert await act.metric("pointsman_split_requests_total") == 12
        assert_nothing_crossed(act)

    play_pair(scene, PREFILLS, DECODES, each=LABELS if how == "label" else {}, **AGAIN)


def test_a_label_does_not_hide_another_engine_version() -> None:
    async def scene(act: Live) -> None:
        act.puppets["p"].version, act.puppets["d"].version = "0.31.0", "0.32.0"
        await asyncio.sleep(1)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert asks(act) == []

    each = {"p": {"revision": "a"}, "d": {"revision": "a"}}
    play_pair(scene, each=each, decode_pool=STRICT, **AGAIN)


def test_when_no_revision_is_whole_requests_are_served_whole() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "d") == [0, 1]
        assert await act.metric("pointsman_unsplit_requests_total", reason="no_prefill") == 1

    play_pair(scene, each={"p": {"revision": "a"}, "d": {"revision": "b"}})


def test_a_worker_that_was_upgraded_in_place_is_out_until_its_partner_is() -> None:
    async def scene(act: Live) -> None:
        for name, puppet in act.puppets.items():
            puppet.version = "1"
            assert name in OLD | NEW
        await asyncio.sleep(1)
        act.puppets["e"].version = "2"
        await asyncio.sleep(1)
        for _ in range(6):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "d", "e") == [6, 0]
        act.puppets["q"].version = "2"
        await asyncio.sleep(1)
        for _ in range(6):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "d", "e") == [9, 3]
        assert await act.metric("pointsman_split_requests_total") == 12

    play_pair(scene, PREFILLS, DECODES, **AGAIN)


@pytest.mark.parametrize("first", ["q", "e"])
def test_a_new_revision_stays_out_until_both_of_its_sides_are_there(first: str) -> None:
    async def scene(act: Live) -> None:
        sides = {"q": ("prefill", PREFILLS["q"]), "e": ("decode", decode)}
        role, serve = sides.pop(first)
        await join(act, first, role, serve)
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).body == TALK
            assert (await act.ask(CHAT, {**ASK, "n": 2})).body == WHOLE
        assert counts(act, first) == [0]
        ((second, (role, serve)),) = sides.items()
        await join(act, second, role, serve)
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "q", "e") == [2, 2]
        assert_nothing_crossed(act)

    play_pair(scene, {"p": PREFILLS["p"]}, each={n: LABELS[n] for n in OLD}, health={"interval_s": 0.2})


# --- rolling to the next ----------------------------------------------------------------------------------


class OldEngine:
    """A decode worker whose requests stand still until the gate opens: the first while it decodes, the second
    before its first event. Further ones find it quick."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    async def __call__(self, ask: Ask) -> None:
        self.begun += 1
        if self.begun == 1:
            await self._halfway(ask)
            return
        if self.begun == 2:
            await self.gate.wait()
        await decode(ask)

    async def _halfway(self, ask: Ask) -> None:
        ask.begin()
        ask.event(ROLE)
        await self.gate.wait()
        ask.event(*(word(number) for number in range(4)), STOP, DONE)
        ask.end()


def test_a_revision_is_drained_under_requests_in_every_phase_and_none_fails_or_crosses() -> None:
    async def scene(act: Live) -> None:
        engine, prefill_gate = OldEngine(), asyncio.Event()
        act.puppets["d"].serve = engine
        tasks = [act.asking(CHAT, STREAM) for _ in range(2)]  # decoding, transferring
        await act.until(lambda: engine.begun == 2)
        tasks.append(act.asking(CHAT, STREAM))  # pooled
        await act.until(lambda: pool(act, "decode").queued == 1)
        act.puppets["p"].serve = producer("p", prefill_gate)
        tasks.append(act.asking(CHAT, STREAM))  # prefilling
        await act.until(lambda: counts(act, "p") == [4])
        act.worker("p").configured_kv_tokens = 10
        tasks.append(act.asking(CHAT, STREAM))  # queued
        await act.until(lambda: pool(act, "prefill").queued == 1)
        await join(act, "e", "decode", decode)
        await join(act, "q", "prefill", PREFILLS["q"])
        assert (await drain(act, "old"))["left"] > 0
        tasks += [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: sum(task.done() for task in tasks) == 4)
        prefill_gate.set()
        await asyncio.sleep(1)
        engine.gate.set()
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [TALK] * 8
        assert counts(act, "p", "d", "q", "e") == [4, 4, 4, 4]
        assert (await drain(act, "old"))["left"] == 0
        assert_nothing_crossed(act)
        assert await act.metric("pointsman_reprefills_total") is None

    play_pair(
        scene,
        {"p": PREFILLS["p"]},
        each={n: LABELS[n] for n in OLD},
        decode_pool={"slots": 2, "binding": "late"},
        health={"interval_s": 0.2},
    )


def test_a_fleet_rolls_under_load_without_a_failed_request() -> None:
    async def scene(act: Live) -> None:
        tasks: list[asyncio.Task[Reply]] = []

        async def load(count: int) -> None:
            for _ in range(count):
                tasks.append(act.asking(CHAT, STREAM))
                await asyncio.sleep(0.005)

        await load(40)
        await join(act, "q", "prefill", PREFILLS["q"])
        await load(40)
        await join(act, "e", "decode", decode)
        await load(40)
        await drain(act, "old")
        await load(40)
        await act.until(lambda: act.worker("p").in_flight == act.worker("d").in_flight == 0)
        for name in OLD:
            act.router.fleet.leave(name, act.loop.time())
        await load(40)
        replies = await asyncio.gather(*tasks)
        assert [reply.body for reply in replies] == [TALK] * 200
        assert await act.metric("pointsman_split_requests_total") == 200
        assert await act.metric("pointsman_reprefills_total") is None
        assert_nothing_crossed(act)

    play_pair(scene, {"p": PREFILLS["p"]}, each={n: LABELS[n] for n in OLD}, health={"interval_s": 0.2})


def test_what_is_pooled_for_a_revision_that_left_is_prefilled_again_by_the_other() -> None:
    async def scene(act: Live) -> None:
        engine = OldEngine()
        act.puppets["d"].serve = engine
        tasks = [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: pool(act, "decode").queued == 1)
        await join(act, "q", "prefill", PREFILLS["q"])
        await join(act, "e", "decode", decode)
        act.router.fleet.leave("d", act.loop.time())
        await asyncio.sleep(1)
        engine.gate.set()
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [TALK] * 3
        assert counts(act, "p", "d", "q", "e") == [3, 2, 1, 1]
        assert_nothing_crossed(act)

    play_pair(
        scene,
        {"p": PREFILLS["p"]},
        each={n: LABELS[n] for n in OLD},
        decode_pool={"slots": 2, "binding": "late"},
        strands=True,
        **{**QUIET, "health": {"interval_s": 0.2}},
    )
