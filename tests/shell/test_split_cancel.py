"""A client of a split request that leaves, in every phase: both engines are let go, and the KV as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.upstream.wire import Wire
from router.virtual.transport import LinkSettings
from tests.shell.live import (
    CHAT,
    SETTLED_S,
    STREAM,
    Live,
    assert_let_go,
    leave,
)
from tests.shell.pair import (
    asks,
    budget,
    counts,
    decode,
    fresh_handle,
    is_release,
    play_pair,
    pool,
    prefill,
    prefilled,
    refusing_releases,
    shown,
    stranded,
)
from tests.shell.puppet import DONE, ROLE, STOP, Ask, Serve, answering, failure, hang, streaming, word

DECODING = refusing_releases(streaming(ROLE, word(), then="hang"))
ONE_SLOT = {"slots": 1, "binding": "late"}


async def pooled(act: Live) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
    """A client that occupies the only slot, and one that waits for it with its prompt prefilled."""
    first = act.asking(CHAT, STREAM)
    await act.until(lambda: counts(act, "d") == [1])
    second = act.asking(CHAT, STREAM)
    await act.until(lambda: pool(act, "decode").queued == 1)
    return first, second


async def cancelled_legs(act: Live, leg: str) -> float | None:
    return await act.metric("pointsman_legs_cancelled_total", leg=leg, reason="client_left")


def test_a_client_that_leaves_before_its_prefill_holds_nothing() -> None:
    async def scene(act: Live) -> None:
        act.worker("p").configured_kv_tokens = 10
        first = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        second = act.asking(CHAT, STREAM)
        await act.until(lambda: pool(act, "prefill").queued == 1)
        await leave(second)
        await act.turns()
        assert pool(act, "prefill").queued == 0
        assert counts(act, "p", "d") == [1, 0]
        await leave(first)
        await assert_let_go(act)

    play_pair(scene, {"p": hang}, prefill_pool={"prefill_budget_high": 0.05, "prefill_budget_low": 0.01})


def test_a_client_that_leaves_while_it_prefills_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        await leave(task)
        await assert_let_go(act)
        assert counts(act, "p", "d") == [1, 0]
        assert await cancelled_legs(act, "prefill") == 1
        assert asks(act, "d") == []  # no KV was made that somebody had to be told of

    play_pair(scene, {"p": hang})


def test_a_client_that_leaves_the_prompt_pool_has_its_kv_released() -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        await leave(second)
        await act.until(lambda: any(is_release(ask) for ask in asks(act, "d")), SETTLED_S)
        (release,) = (ask for ask in asks(act, "d") if is_release(ask))
        assert release.json()["max_tokens"] == 2**31 - 1
        assert release.path == "/v1/completions"
        await act.turns()
        assert stranded(act) == 0
        assert await act.metric("pointsman_handover_releases_total", outcome="released") == 1
        await leave(first)
        await assert_let_go(act)

    play_pair(scene, decodes={"d": DECODING}, decode_pool=ONE_SLOT)


def test_an_engine_that_takes_a_release_for_a_request_is_cut_after_its_first_bytes() -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        await leave(second)
        await act.until(lambda: len(act.puppets["d"].asks) == 2, SETTLED_S)
        release = act.puppets["d"].asks[1]
        await act.until(lambda: release.left_at is not None, SETTLED_S)
        assert await act.metric("pointsman_handover_releases_total", outcome="dropped") == 1
        await leave(first)
        await assert_let_go(act)

    play_pair(scene, decodes={"d": streaming(ROLE, word(), then="hang")}, decode_pool=ONE_SLOT)


async def reset(ask: Ask) -> None:
    ask.reset()


BAD_RELEASES: dict[str, Serve] = {"reset": reset, "hang": hang}


@pytest.mark.parametrize("how", BAD_RELEASES)
def test_kv_whose_release_fails_counts_until_its_lease_ends(how: str) -> None:
    async def serve(ask: Ask) -> None:
        await (BAD_RELEASES[how] if is_release(ask) else DECODING)(ask)

    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        await leave(second)
        await leave(first)
        await asyncio.sleep(6)
        assert await act.metric("pointsman_handover_releases_total", outcome="stranded") == 1
        assert stranded(act) == 7
        assert budget(act).held_tokens(act.worker("p"), act.loop.time()) == 7
        await asyncio.sleep(23.5)
        assert stranded(act) == 7
        await asyncio.sleep(0.6)
        assert stranded(act) == 0

    play_pair(scene, decodes={"d": serve}, decode_pool=ONE_SLOT)


def test_without_a_decode_worker_kv_is_stranded_until_its_lease_ends() -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        act.router.fleet.leave("d", act.loop.time())
        await leave(second)
        await act.turns()
        assert stranded(act) == 7
        await leave(first)

    play_pair(scene, decodes={"d": DECODING}, decode_pool=ONE_SLOT, strands=True)


def test_releases_of_a_crowd_are_rate_limited_and_all_come() -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        crowd = [second, *(act.asking(CHAT, STREAM) for _ in range(39))]
        await act.until(lambda: pool(act, "decode").queued == 40)
        began = act.loop.time()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await act.until(lambda: pool(act, "decode").queued == 0)
        await act.until(lambda: act.router.releases._queue.empty() and not stranded(act), 10)
        times = sorted(ask.at - began for ask in asks(act, "d") if is_release(ask))
        assert len(times) == 40
        for second_of_it in range(2):
            assert sum(second_of_it <= at < second_of_it + 1 for at in times) <= 20 + 4
        assert times[-1] == pytest.approx(1.8, abs=0.1)
        await leave(first)
        await asyncio.sleep(SETTLED_S)

    play_pair(scene, decodes={"d": DECODING}, decode_pool=ONE_SLOT)


def test_what_does_not_fit_into_the_queue_of_releases_is_stranded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        crowd = [second, *(act.asking(CHAT, STREAM) for _ in range(19))]
        await act.until(lambda: pool(act, "decode").queued == 20)
        monkeypatch.setattr(act.router.releases._queue, "_maxsize", 3)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await leave(first)
        await asyncio.sleep(1)
        lost = await act.metric("pointsman_handover_releases_total", outcome="stranded")
        assert lost is not None
        assert lost >= 13
        assert stranded(act) == lost * 7

    play_pair(scene, decodes={"d": DECODING}, decode_pool=ONE_SLOT, strands=True)


def test_kv_is_released_by_a_worker_of_the_producers_revision() -> None:
    async def scene(act: Live) -> None:
        first, second = await pooled(act)
        await leave(second)
        await act.until(lambda: any(is_release(ask) for ask in asks(act, "d")), SETTLED_S)
        assert asks(act, "x") == []
        await leave(first)
        await assert_let_go(act)

    each = {name: {"revision": "old"} for name in "pd"} | {name: {"revision": "new"} for name in "yx"}
    prefills = {"p": prefill, "y": answering(500, failure(500))}
    play_pair(scene, prefills, {"d": DECODING, "x": decode}, each=each, decode_pool=ONE_SLOT)


@pytest.mark.parametrize("body", [STREAM, {**STREAM, "stream": False}], ids=["stream", "whole"])
def test_a_client_that_leaves_before_the_first_event_of_its_decode_frees_both_engines(body: Any) -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, body)
        await act.until(lambda: counts(act, "d") == [1])
        await leave(task)
        await assert_let_go(act)
        assert not any(is_release(ask) for ask in asks(act))  # the decode engine tells the producer
        assert await cancelled_legs(act, "decode") == 1

    play_pair(scene, decodes={"d": hang})


def test_a_client_that_leaves_while_the_decode_worker_is_dialled_has_its_kv_released() -> None:
    """Not a byte of the handle left, so no engine will tell the producer."""

    async def scene(act: Live) -> None:
        act.puppets["d"].hang()
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: pool(act, "decode").in_flight == 1)
        await asyncio.sleep(0.5)
        act.puppets["d"].accept()
        await leave(task)
        await assert_let_go(act)
        assert [is_release(ask) for ask in asks(act, "d")] == [True]

    play_pair(scene)


def test_a_client_that_leaves_while_it_decodes_frees_the_engine() -> None:
    async def scene(act: Live) -> None:
        visit = await act.open(CHAT, STREAM)
        await visit.read()
        await asyncio.sleep(1)
        assert pool(act, "prefill").in_flight == 0  # the first event gave the producer free
        visit.leave()
        await assert_let_go(act)
        assert await cancelled_legs(act, "decode") == 1
        assert not any(is_release(ask) for ask in asks(act))

    play_pair(scene, decodes={"d": DECODING})


def test_a_finished_answer_gives_its_slot_back_although_its_client_reads_slowly() -> None:
    async def flood(ask: Ask) -> None:
        ask.begin()
        ask.event(ROLE)
        for _ in range(10):
            ask.event(word() * 100)
        ask.event(STOP)
        ask.event(DONE)
        ask.end()

    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        client.transport.pause_reading()
        await act.until(lambda: counts(act, "d") == [1])
        await asyncio.sleep(1)
        assert pool(act, "decode").in_flight == pool(act, "prefill").in_flight == 0
        assert act.puppets["d"].asks[0].ended
        client.transport.abort()
        await assert_let_go(act)

    play_pair(scene, decodes={"d": flood}, link=LinkSettings())


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_client_that_leaves_in_the_turn_in_which_its_prefill_is_answered_strands_nothing(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is done and holds the KV; only the handle in that answer can free it."""

    async def scene(act: Live) -> None:
        client = await act.open_raw(STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        (ask,) = act.puppets["p"].asks
        server = act.server_end(client)
        params = fresh_handle()
        answer = prefilled(params)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
            answer
        )
        size = len(answer) // pieces
        for number in range(pieces - 1):
            ask.send((head if not number else b"") + answer[number * size : (number + 1) * size])
            await asyncio.sleep(0.01)
        take = Wire.data_received

        def take_and_leave(wire: Wire, data: bytes) -> None:
            take(wire, data)
            monkeypatch.undo()
            server.connection_lost(None)  # in the same turn

        monkeypatch.setattr(Wire, "data_received", take_and_leave)
        ask.send((head if pieces == 1 else b"") + answer[(pieces - 1) * size :])
        ask.ended = True
        await asyncio.sleep(SETTLED_S)
        client.transport.abort()
        (release,) = asks(act, "d")
        assert is_release(release)
        assert shown(release) == params["remote_request_id"]
        await assert_let_go(act)

    play_pair(scene, {"p": hang})


def test_a_thousand_clients_that_leave_in_all_phases_leave_nothing() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(300)]
        for number, task in enumerate(tasks):
            if number % 10 == 0:
                await asyncio.sleep(0.003)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await act.until(lambda: act.router.releases._queue.empty() and not stranded(act), 40)

    slow = refusing_releases(streaming(ROLE, word(), word(), then="hang", gap_s=0.01))
    play_pair(
        scene,
        dict.fromkeys("pq", prefill),
        dict.fromkeys("de", slow),
        decode_pool={"slots": 8, "binding": "late"},
        link=LinkSettings(latency_s=0.0005),
    )
