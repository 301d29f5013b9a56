"""Where trying again ends: the commit, the budget that all requests share, and the settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live
from tests.shell.pair import (
    asks,
    counts,
    decode,
    is_release,
    play_pair,
    prefill,
    prefilled,
    refusing_releases,
)
from tests.shell.puppet import (
    ABORT,
    DONE,
    ROLE,
    TALK,
    Ask,
    Serve,
    answering,
    failure,
    failure_event,
    in_turn,
    streaming,
    word,
)

BROKEN: dict[str, Serve] = {
    "reset": streaming(ROLE, word(), then="reset"),
    "closed": streaming(ROLE, word(), then="close"),
    "ended_early": streaming(ROLE, word()),
    "error_event": streaming(ROLE, word(), failure_event(500), DONE),
    "aborted": streaming(ROLE, word(), ABORT, DONE),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_after_the_commit_nothing_is_tried_again_and_the_client_is_told(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 200
        assert reply.broken is not None
        assert reply.body.startswith(ROLE + word())
        assert b"[DONE]" not in reply.body
        assert "error" in reply.last_event()
        assert (counts(act, "p"), sum(counts(act, "d", "e"))) == ([1], 1)
        assert await act.metric("pointsman_reprefills_total") is None
        assert await act.metric("pointsman_handover_failures_total") is None

    play_pair(scene, decodes=dict.fromkeys("de", BROKEN[fault]))


def test_a_decode_that_breaks_after_its_first_event_says_nothing_against_the_pair() -> None:
    """The KV had come over by then."""

    async def scene(act: Live) -> None:
        for _ in range(4):
            await act.ask(CHAT, STREAM)
        assert counts(act, "p", "d", "e") == [4, 2, 2]

    play_pair(scene, decodes=dict.fromkeys("de", BROKEN["reset"]), health={"failures_to_eject": 50})


NO_BUDGET = {"budget_min": 0, "budget_share": 0.0}


@pytest.mark.parametrize("retry", [NO_BUDGET, {"enabled": False}, {"max_retries": 0}], ids=repr)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_without_a_budget_or_leave_to_try_again_a_failed_leg_is_final(
    retry: dict[str, Any], side: str
) -> None:
    broken = answering(503, failure(503))

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 503
        assert reply.header("retry-after") == "1"
        assert len(asks(act)) == (1 if side == "prefill" else 2)

    serves = {"prefill": (broken, decode), "decode": (prefill, broken)}[side]
    play_pair(scene, dict.fromkeys("pq", serves[0]), dict.fromkeys("de", serves[1]), retry=retry)


def test_without_leave_to_try_again_no_handle_is_offered_twice() -> None:
    async def scene(act: Live) -> None:
        act.puppets["d"].refuse()
        replies = [await act.ask(CHAT, STREAM) for _ in range(2)]
        assert sorted(reply.status for reply in replies) == [200, 502]
        await asyncio.sleep(1)  # what was not sent is released by the other decode worker
        assert [is_release(ask) for ask in asks(act, "e")] in ([True, False], [False, True])

    play_pair(scene, decodes={"d": decode, "e": decode}, retry=NO_BUDGET)


def test_without_leave_to_try_again_a_missing_handle_still_means_a_whole_request() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert sum(counts(act, "p", "q")) == 1

    lost = answering(200, prefilled(None))
    play_pair(scene, {"p": lost, "q": lost}, retry={"enabled": False}, strands=True)


def test_the_tries_of_a_crowd_are_bounded_and_given_back() -> None:
    """What `play` asserts of the budget afterwards is the second half of it."""

    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(40)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, act.router.retries.budget.used)
            await asyncio.sleep(0.001)
        replies = await asyncio.gather(*tasks)
        assert most == 10
        assert sum(reply.status == 200 for reply in replies) == 10
        assert sum(reply.status == 503 for reply in replies) == 30
        assert sum(counts(act, "p", "q")) == 50

    async def busy(ask: Ask) -> None:
        if is_release(ask) or (ask.header("x-request-id") or "").endswith("-r1"):
            await decode(ask)
        else:
            await answering(503, failure(503))(ask)

    play_pair(
        scene,
        dict.fromkeys("pq", prefill),
        dict.fromkeys("de", busy),
        retry={"budget_min": 10, "budget_share": 0.01},
        decode_pool={"max_transfers_per_worker": 100},
    )


def test_one_request_is_worked_on_by_few_whatever_fails() -> None:
    """Prefill fails once, decode fails once: that was one new prefill in all."""

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 503
        assert sum(counts(act, *"pqr")) == 2
        assert sum(counts(act, *"def")) == 1

    broken = answering(503, failure(503))
    play_pair(
        scene,
        dict.fromkeys("pqr", in_turn(broken, prefill)),
        dict.fromkeys("def", refusing_releases(broken)),
    )
