"""Each phase of a split request has a deadline, and the one that runs out names itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.core.health import Sign
from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live
from tests.shell.pair import (
    STRICT,
    asks,
    counts,
    decode,
    is_release,
    of_decode,
    play_pair,
    pool,
    prefill,
    refusing_releases,
    shown,
)
from tests.shell.puppet import ROLE, TALK, Ask, hang, in_turn, streaming, word
from tests.shell.visitors import Reply

ONE_SLOT = {"slots": 1, "binding": "late"}
BUSY = refusing_releases(streaming(ROLE, word(), then="hang"))


async def expired(act: Live, phase: str) -> float | None:
    return await act.metric("pointsman_deadline_exceeded_total", phase=phase)


def assert_names(reply: Reply, phase: str) -> None:
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    assert phase in reply.error["message"], reply.error


# --- prefill -------------------------------------------------------------------------------------------


async def head_then_hang(ask: Ask) -> None:
    ask.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    await ask.left.wait()


@pytest.mark.parametrize("serve", [hang, head_then_hang])
def test_a_prefill_that_hangs_is_done_once_more_elsewhere_and_then_named(serve: Any) -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert_names(reply, "prefill")
        assert act.now - before == pytest.approx(40, abs=0.01)
        assert sorted(counts(act, *"pqr")) == [0, 1, 1]
        assert await expired(act, "prefill") == 1

    play_pair(scene, dict.fromkeys("pqr", serve), timeouts={"prefill_s": 20}, **QUIET)


def test_a_prefill_that_hangs_at_one_worker_is_answered_by_another() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.now - before == pytest.approx(20.06, abs=0.01)
        assert await expired(act, "prefill") is None  # it was no error of the request

    play_pair(scene, dict.fromkeys("pq", in_turn(hang, prefill)), timeouts={"prefill_s": 20}, **QUIET)


@pytest.mark.parametrize(("stream", "phase"), [(True, "first_event"), (False, "total")])
def test_the_requests_own_deadline_ends_a_prefill_and_is_not_tried_again(stream: bool, phase: str) -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, {**ASK, "stream": stream})
        assert_names(reply, phase)
        assert act.now - before == pytest.approx(20, abs=0.01)
        assert sum(counts(act, *"pq")) == 1
        assert await expired(act, phase) == 1

    play_pair(scene, dict.fromkeys("pq", hang), timeouts={"first_event_s": 20, "total_s": 20}, **QUIET)


# --- in the prompt pool ----------------------------------------------------------------------------------


def full(act: Live) -> asyncio.Task[Reply]:
    return act.asking(CHAT, STREAM)


def test_what_is_overdue_is_dispatched_although_all_slots_are_taken() -> None:
    """A third of its lease it waits here; in the engine's own queue its KV is kept alive."""

    async def scene(act: Live) -> None:
        first = full(act)
        await act.until(lambda: counts(act, "d") == [1])
        second = act.asking(CHAT, STREAM)
        await act.until(lambda: pool(act, "decode").queued == 1)
        waits_from = act.now
        assert await act.metric("pointsman_prompt_pool_entries") == 1
        await act.until(lambda: counts(act, "d") == [2])
        assert act.now - waits_from == pytest.approx(10, abs=0.3)
        assert await act.metric("pointsman_prompt_pool_entries") == 0
        first.cancel()
        second.cancel()

    play_pair(scene, decodes={"d": BUSY}, decode_pool=ONE_SLOT, **QUIET)


def stall(act: Live, name: str) -> None:
    """The worker shows no progress: it keeps what it has and gets nothing new."""
    roster = pool(act, "decode").roster
    assert roster.sign(name, Sign.STALLED, act.loop.time(), "in this test")


ANY = {"min_in_rotation": 0.0, **QUIET["health"]}
"""Nobody has to stay in rotation."""


def test_what_finds_no_decode_worker_before_its_kv_may_be_gone_is_never_dispatched() -> None:
    async def scene(act: Live) -> None:
        asked = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        stall(act, "d")
        await act.until(lambda: pool(act, "decode").queued == 1)
        waits_from = act.now
        reply = await asked
        assert_names(reply, "transfer")
        assert act.now - waits_from == pytest.approx(25, abs=0.3)
        assert counts(act, "p", "d") == [1, 0]
        assert await expired(act, "transfer") == 1
        assert await act.metric("pointsman_prompt_pool_expired_total") == 1
        assert await act.metric("pointsman_handover_releases_total", outcome="stranded") == 1

    play_pair(scene, strands=True, health=ANY, polling=QUIET["polling"])


def test_in_strict_mode_it_is_the_same_error() -> None:
    async def scene(act: Live) -> None:
        asked = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        stall(act, "d")
        assert_names(await asked, "transfer")

    play_pair(scene, strands=True, health=ANY, polling=QUIET["polling"], decode_pool=STRICT)


def test_what_was_pooled_too_long_is_prefilled_once_more_where_it_can_be_decoded() -> None:
    async def scene(act: Live) -> None:
        asked = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        stall(act, "d")
        before = act.now
        assert (await asked).body == TALK
        assert act.now - before == pytest.approx(25.08, abs=0.3)
        assert counts(act, "p", "d", "y", "x") == [1, 0, 1, 1]
        assert await act.metric("pointsman_reprefills_total", reason="handle_expired") == 1

    each = {name: {"revision": "old"} for name in "pd"} | {name: {"revision": "new"} for name in "yx"}
    play_pair(
        scene, dict.fromkeys("py", prefill), dict.fromkeys("dx", decode), each=each, strands=True, **QUIET
    )


def test_the_requests_own_deadline_ends_its_wait_in_the_prompt_pool() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        asked = act.asking(CHAT, STREAM, {"x-stainless-read-timeout": "12"})
        await act.until(lambda: counts(act, "p") == [1])
        stall(act, "d")
        assert_names(await asked, "first_event")
        assert act.now - before == pytest.approx(12, abs=0.3)
        assert counts(act, "p", "d") == [1, 0]
        assert await expired(act, "first_event") == 1

    play_pair(scene, strands=True, health=ANY, polling=QUIET["polling"])


def test_a_slot_that_is_freed_too_late_is_not_taken_between_two_looks_of_the_reaper() -> None:
    async def scene(act: Live) -> None:
        asked = act.asking(CHAT, STREAM)
        await act.until(lambda: counts(act, "p") == [1])
        stall(act, "d")
        await act.until(lambda: pool(act, "decode").queued == 1)
        (waiting,) = pool(act, "decode")._queue
        await asyncio.sleep(waiting.request.handover.dispatch_by - act.loop.time() + 0.001)
        pool(act, "decode").roster.sign("d", Sign.PROGRESS, act.loop.time(), "in this test")
        act.router.fleet.wake()
        assert (await asked).body == TALK
        legs = [shown(ask) for ask in asks(act, "d") if not is_release(ask)]
        assert len(legs) == 1
        assert counts(act, "p") == [2]  # it was prefilled once more

    play_pair(scene, health=ANY, polling=QUIET["polling"])


@pytest.mark.parametrize("how", ["restarted", "left"])
def test_a_handle_of_a_producer_that_was_born_anew_is_shown_to_nobody(how: str) -> None:
    async def scene(act: Live) -> None:
        first = full(act)
        await act.until(lambda: counts(act, "d") == [1])
        act.puppets["d"].serve = decode
        second = act.asking(CHAT, STREAM)
        await act.until(lambda: pool(act, "decode").queued == 1)
        roster = pool(act, "prefill").roster
        if how == "restarted":
            roster._reincarnate(roster.workers["p"], act.loop.time(), "in this test")
        else:
            act.router.fleet.leave("p", act.loop.time())  # it lives on, and so does what it holds
        await act.turns()
        first.cancel()
        assert (await second).body == TALK
        await asyncio.sleep(0.1)
        assert counts(act, "p", "d") == ([3, 2] if how == "restarted" else [2, 2])
        assert not any(is_release(ask) for ask in asks(act))

    play_pair(scene, decodes={"d": BUSY}, decode_pool=ONE_SLOT, **QUIET)


def test_a_decode_worker_that_takes_the_request_too_slowly_is_cut_before_the_kv_may_be_gone() -> None:
    async def stuck(ask: Ask) -> None:
        ask.transport.pause_reading()
        await ask.left.wait()

    async def scene(act: Live) -> None:
        slow = act.puppets["d"]
        slow.serve, slow.at_head = stuck, True
        before = act.now
        long = {**STREAM, "messages": [{"role": "user", "content": "long " * 200_000}]}
        assert (await act.ask(CHAT, long)).body == TALK
        assert act.now - before == pytest.approx(5.08, abs=0.01)
        (cut,) = slow.asks
        cut.transport.resume_reading()
        await act.turns()
        assert cut.left_at is not None
        assert not of_decode(cut)  # what came of it is no request
        assert counts(act, "p", "d", "e") == [2, 1, 1]
        assert await act.metric("pointsman_reprefills_total", reason="timeout") == 1

    play_pair(
        scene,
        decodes={"d": decode, "e": decode},
        decode_pool={"kv_lease_s": 6},
        timeouts={"lease_margin_s": 1},
        strands=True,
        **QUIET,
    )


# --- decode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serve", [hang, streaming(then="hang")], ids=["silent", "head_only"])
def test_a_decode_without_a_first_event_is_done_again_elsewhere_and_then_named(serve: Any) -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert_names(reply, "decode_first_event")
        assert act.now - before == pytest.approx(40.04, abs=0.01)
        assert (sum(counts(act, *"pq")), sorted(counts(act, *"def"))) == (2, [0, 1, 1])
        assert await expired(act, "decode_first_event") == 1

    play_pair(
        scene,
        dict.fromkeys("pq", prefill),
        dict.fromkeys("def", refusing_releases(serve)),
        timeouts={"decode_first_event_s": 20},
        strands=True,
        **QUIET,
    )


def test_what_is_left_of_the_requests_own_time_bounds_the_second_decode() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM, {"x-stainless-read-timeout": "30"})
        assert_names(reply, "first_event")
        assert act.now - before == pytest.approx(30, abs=0.01)
        assert sum(counts(act, *"de")) == 2

    play_pair(
        scene,
        decodes=dict.fromkeys("de", refusing_releases(hang)),
        timeouts={"decode_first_event_s": 20},
        strands=True,
        **QUIET,
    )


def test_when_the_requests_own_time_is_over_there_is_no_other_try() -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM, {"x-stainless-read-timeout": "15"})
        assert_names(reply, "first_event")
        assert act.now - before == pytest.approx(15, abs=0.01)
        assert (counts(act, "p"), sum(counts(act, *"de"))) == ([1], 1)

    play_pair(scene, decodes=dict.fromkeys("de", refusing_releases(hang)), strands=True, **QUIET)


@pytest.mark.parametrize("serve", [hang, head_then_hang], ids=["silent", "head_only"])
def test_a_whole_answer_has_one_deadline_for_all_of_it(serve: Any) -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, ASK)
        assert_names(reply, "total")
        assert act.now - before == pytest.approx(90, abs=0.01)
        assert (counts(act, "p"), sum(counts(act, *"de"))) == ([1], 1)
        assert await expired(act, "total") == 1

    decodes = dict.fromkeys("de", refusing_releases(serve))
    options = {"timeouts": {"total_s": 90}, **QUIET}
    # By then the lease of the producer is over as well, so nothing stays stranded.
    play_pair(scene, decodes=decodes, **options)


def test_silence_after_the_commit_ends_the_stream_by_the_idle_deadline() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.broken is not None
        assert b"idle" in reply.body
        assert await expired(act, "idle") == 1

    play_pair(scene, decodes={"d": BUSY}, timeouts={"idle_s": 20}, **QUIET)
