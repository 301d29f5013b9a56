"""Both legs at once, for engines whose prefill does not run before its decode is known: the pair is chosen up
front, whichever leg fails first ends the other, and the client gets the answer of the decode leg."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import (
    ASK,
    CHAT,
    QUIET,
    STREAM,
    Live,
    assert_let_go,
    leave,
)
from tests.shell.pair import STRICT, asks, counts, partners, play_pair, pool
from tests.shell.puppet import (
    ROLE,
    TALK,
    WHOLE,
    Ask,
    Serve,
    answering,
    failure,
    failure_event,
    hang,
    in_turn,
    reset,
    streaming,
    talk,
    word,
)

SGLANG: dict[str, Any] = {"connector": "sglang"}
ROOMS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
BROKEN = answering(500, failure(500))


def play_rooms(scene: Any, prefills: str = "p", decodes: str = "d", **options: Any) -> None:
    """SGLang's workers; all talk."""
    options = {"decode_pool": SGLANG, **QUIET, **options}
    play_pair(scene, dict.fromkeys(prefills, talk), dict.fromkeys(decodes, talk), **options)


def serve(act: Live, **serves: Serve) -> None:
    """Changes what these engines do."""
    for name, each in serves.items():
        act.puppets[name].serve = each


def room(ask: Ask) -> int:
    return int(ask.json()["bootstrap_room"])


async def cancelled(act: Live, leg: str, why: str = "other_leg_failed") -> float:
    return await act.metric("pointsman_legs_cancelled_total", leg=leg, reason=why) or 0


# --- what goes well -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "answer"), [(ASK, WHOLE), (STREAM, TALK)], ids=["whole", "stream"])
def test_both_engines_get_one_body_at_once_and_the_client_the_decode_workers_answer(
    body: Any, answer: bytes
) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, body)
        assert (reply.status, reply.body) == (200, answer)
        (first,), (second,) = asks(act, "p"), asks(act, "d")
        assert first.body == second.body
        assert first.at == second.at
        assert first.header("x-request-id") == second.header("x-request-id")
        got = {**first.json()}
        assert [got.pop(name) for name in ROOMS[:2]] == ["p", 9001]
        assert 0 < got.pop("bootstrap_room") < 2**63
        usage = got.pop("stream_options", None)
        assert usage == ({"include_usage": True} if body is STREAM else None)
        assert got == body
        assert act.puppets["p"].asks[0].ended

    play_rooms(scene, prefill_pool={"bootstrap_port": 9001})


def test_every_request_has_a_room_of_its_own() -> None:
    async def scene(act: Live) -> None:
        await asyncio.gather(*(act.ask(CHAT, STREAM) for _ in range(8)))
        assert len({room(ask) for ask in asks(act, "p")}) == 8

    play_rooms(scene, decode_pool={**SGLANG, "max_transfers_per_worker": 8})


def test_several_sequences_have_a_room_each() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, {**ASK, "n": 3})
        first, second = asks(act)
        assert first.body == second.body
        assert len(set(first.json()["bootstrap_room"])) == 3
        assert first.json()["bootstrap_host"] == ["p"] * 3

    play_rooms(scene)


def test_the_producer_is_free_with_the_first_event_of_the_decode_leg() -> None:
    async def scene(act: Live) -> None:
        serve(act, d=streaming(ROLE, word(), then="hang"))
        visit = await act.open(CHAT, STREAM)
        await visit.read()
        await act.turns()
        assert (pool(act, "prefill").in_flight, pool(act, "decode").in_flight) == (0, 1)
        visit.leave()

    play_rooms(scene)


def test_one_token_needs_both_engines_all_the_same() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, {**ASK, "max_tokens": 1})).status == 200
        assert counts(act, "p", "d") == [1, 1]

    play_rooms(scene)


# --- what fails -----------------------------------------------------------------------------------------

FAULTS: dict[str, Serve] = {
    "reset": reset,
    "500": BROKEN,
    "503": answering(503, failure(503)),
    "error_event": streaming(failure_event(500)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_prefill_that_fails_ends_its_decode_at_once_and_both_begin_again_elsewhere(fault: str) -> None:
    async def scene(act: Live) -> None:
        once = in_turn(FAULTS[fault], talk)
        waiting = in_turn(hang, talk)
        serve(act, p=once, q=once, d=waiting, e=waiting)
        before = act.now
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.now - before == pytest.approx(0.04)
        assert counts(act, "p", "q") == [1, 1]
        orphan = next(ask for ask in asks(act, "d", "e"))
        assert orphan.left_at == orphan.at
        rooms = [room(ask) for ask in asks(act, "d", "e")]
        assert len(set(rooms)) == len(rooms) == 2
        assert await cancelled(act, "decode") == 1
        assert await act.metric("pointsman_handover_failures_total", leg="prefill") == 1

    play_rooms(scene, "pq", "de")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_decode_that_fails_ends_its_prefill_at_once_and_both_begin_again_elsewhere(fault: str) -> None:
    async def scene(act: Live) -> None:
        once = in_turn(FAULTS[fault], talk)
        waiting = in_turn(hang, talk)
        serve(act, p=waiting, q=waiting, d=once, e=once)
        before = act.now
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.now - before == pytest.approx(0.04)
        assert counts(act, "d", "e") == [1, 1]
        orphan = next(ask for ask in asks(act, "p", "q"))
        assert orphan.left_at == orphan.at
        assert len({room(ask) for ask in asks(act, "p", "q")}) == 2
        assert await cancelled(act, "prefill") == 1
        assert await act.metric("pointsman_handover_failures_total", leg="decode") == 1

    play_rooms(scene, "pq", "de")


def test_a_leg_that_was_over_is_not_counted_as_cancelled() -> None:
    async def scene(act: Live) -> None:
        async def late(ask: Ask) -> None:
            await asyncio.sleep(1)
            await BROKEN(ask)

        serve(act, d=late)
        assert (await act.ask(CHAT, ASK)).status == 500
        assert await cancelled(act, "prefill") == 0

    play_rooms(scene, retry={"enabled": False})


def test_a_second_failure_goes_to_the_client() -> None:
    async def scene(act: Live) -> None:
        serve(act, **dict.fromkeys("pqr", BROKEN), **dict.fromkeys("def", hang))
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["message"]) == (500, "The engine failed.")
        assert sum(counts(act, *"pqr")) == 2

    play_rooms(scene, "pqr", "def")


def test_without_another_prefill_worker_the_failure_is_the_clients_to_know() -> None:
    """A decode engine of this kind serves nothing by itself."""

    async def scene(act: Live) -> None:
        serve(act, p=BROKEN, d=hang)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["message"]) == (500, "The engine failed.")
        assert counts(act, "p", "d") == [1, 1]

    play_rooms(scene)


@pytest.mark.parametrize("fallback", [{}, STRICT], ids=["aggregated", "strict"])
def test_without_a_prefill_worker_requests_are_refused(fallback: dict[str, Any]) -> None:
    async def scene(act: Live) -> None:
        act.router.fleet.leave("p", act.loop.time())
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (503, "no_worker_available")
        assert asks(act) == []
        assert await act.metric("pointsman_split_refused_total", reason="no_prefill") == 1

    play_rooms(scene, decode_pool={**SGLANG, **fallback})


def test_a_prefill_that_hangs_is_cut_with_its_decode_by_the_prefill_deadline() -> None:
    async def scene(act: Live) -> None:
        serve(act, p=hang, q=hang, d=hang, e=hang)
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert "prefill" in reply.error["message"]
        assert act.now - before == pytest.approx(20, abs=0.01)
        assert await act.metric("pointsman_deadline_exceeded_total", phase="prefill") == 1

    play_rooms(scene, "pq", "de", timeouts={"prefill_s": 10})


def test_a_worker_that_takes_no_connection_means_another_pair_and_another_room() -> None:
    async def scene(act: Live) -> None:
        for name in ("p", "d"):
            act.puppets[name].refuse()
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.state("p") == act.state("d") == "ejected"
        rooms = [room(ask) for ask in asks(act, "e")]
        assert len(set(rooms)) == len(rooms)

    play_rooms(scene, "pq", "de")


def test_after_the_commit_a_failed_prefill_is_ignored() -> None:
    async def scene(act: Live) -> None:
        async def break_late(ask: Ask) -> None:
            await asyncio.sleep(0.02)
            ask.reset()

        serve(act, p=break_late)
        reply = await act.ask(CHAT, STREAM)
        assert (reply.body, reply.broken) == (TALK, None)
        assert len(partners(act).pairs) == 0

    play_rooms(scene)


def test_after_the_commit_a_failed_decode_is_an_unclean_end() -> None:
    async def scene(act: Live) -> None:
        serve(act, d=streaming(ROLE, word(), then="reset"), e=streaming(ROLE, word(), then="reset"))
        reply = await act.ask(CHAT, STREAM)
        assert reply.broken is not None
        assert b"[DONE]" not in reply.body
        assert len(asks(act)) == 2

    play_rooms(scene, "pq", "de")


def test_a_pair_whose_transfer_failed_rests() -> None:
    async def scene(act: Live) -> None:
        serve(act, d=in_turn(BROKEN, talk), p=in_turn(hang, talk))
        for _ in range(6):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        pairs = set(partners(act).pairs.set_aside(act.loop.time()))
        assert len(pairs) == 1
        assert all(worker.state.value == "ready" for worker in pool(act, "decode").roster)

    play_rooms(scene, "pq", "de")


# --- clients that leave ----------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [("p", "d"), ("d",), ("p",)], ids=str)
def test_a_client_that_leaves_frees_both_engines(silent: tuple[str, ...]) -> None:
    async def scene(act: Live) -> None:
        serve(act, p=talk, d=streaming(ROLE, word(), then="hang"))
        serve(act, **dict.fromkeys(silent, hang))
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(0.5)
        assert counts(act, "p", "d") == [1, 1]
        await leave(task)
        await assert_let_go(act)

    play_rooms(scene)


def test_both_cancelled_legs_are_counted() -> None:
    async def scene(act: Live) -> None:
        serve(act, p=hang, d=hang)
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(0.5)
        await leave(task)
        await act.turns()
        assert [await cancelled(act, leg, "client_left") for leg in ("prefill", "decode")] == [1, 1]

    play_rooms(scene)


def test_a_crowd_that_leaves_at_any_moment_leaves_nothing() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM if number % 2 else ASK) for number in range(200)]
        for number, task in enumerate(tasks):
            if number % 10 == 0:
                await asyncio.sleep(0.003)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await assert_let_go(act)

    play_rooms(scene, "pq", "de")
