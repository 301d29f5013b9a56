"""Operators ask why a request goes where it goes: beforehand, or from what was recorded."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.telemetry.decision import DecisionRecord, read_decisions
from router.telemetry.recompute import picked_again
from router.telemetry.record import read_records
from tests.shell.choosing import SERVE, TWO, switch
from tests.shell.live import ADMIN, ASK, CHAT, Live, play
from tests.shell.pair import decode, play_pair, prefill

SECRET = "the launch code is 7351"

LONG = {**ASK, "messages": [{"role": "user", "content": "long " * 2000}]}


async def explain(act: Live, body: object) -> Any:
    reply = await act.ask("/route/explain", body, origin=ADMIN)
    assert reply.status == 200, reply.body
    return reply.json()


# --- why -------------------------------------------------------------------------------------------------


def test_the_chosen_worker_is_where_the_next_request_goes() -> None:
    async def scene(act: Live) -> None:
        for _ in range(6):
            answer = await explain(act, ASK)
            await act.ask(CHAT, ASK)
            (asked,) = [name for name in "abc" if act.puppets[name].asks]
            assert answer["chosen"] == asked
            act.puppets[asked].asks.clear()

    play(scene, {"a": SERVE, "b": SERVE, "c": SERVE})


def test_every_term_of_every_candidate_is_told_and_who_was_left_out() -> None:
    async def scene(act: Live) -> None:
        await act.ask("/workers/b/drain", method="POST", origin=ADMIN)
        answer = await explain(act, {"path": CHAT, "body": ASK, "policy": "least_requests"})
        assert answer["policy"] == "least_requests"
        assert answer["chosen"] == "a"
        (row,) = answer["candidates"]
        assert (row["worker"], row["total"], row["reason"]) == ("a", 1.0, "least_requests")
        assert row["terms"] == {"in_flight_requests": 0, "warmup": 1.0, "capacity": 1.0}
        assert answer["filtered"] == [{"worker": "b", "reason": "draining"}]
        assert answer["request"]["model"] == ASK["model"]
        assert answer["request"]["prompt_tokens"] > 0

    play(scene, TWO)


@pytest.mark.parametrize("policy", [None, "cache_aware", "preble", "round_robin", "balance_route_h"])
def test_nothing_changes_by_asking(policy: str | None) -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK)
        before = await act.debug_state(), (await act.ask("/policies", origin=ADMIN)).json()
        admission = act.router.proxy._admission
        numbers, chooser = admission._sequence, act.pool.chooser
        seats = copy.copy(chooser._others), repr(chooser.prefixes), repr(chooser.policy)
        answers = [await explain(act, {"body": ASK, "policy": policy}) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0]["chosen"] in ("a", "b")
        assert admission._sequence == numbers
        assert (chooser._others, repr(chooser.prefixes), repr(chooser.policy)) == seats
        after = await act.debug_state(), (await act.ask("/policies", origin=ADMIN)).json()
        for state in (before, after):
            for worker in state[0]["workers"]:
                del worker["since_s"], worker["engine"]
        assert after == before
        assert not any(
            "explain" in ask.body.decode() for puppet in act.puppets.values() for ask in puppet.asks
        )
        assert await act.metric("pointsman_requests_total") == 1

    play(scene, TWO)


def test_no_word_of_a_question_is_logged_or_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        body = {**ASK, "messages": [{"role": "user", "content": SECRET}]}
        assert SECRET not in str(await explain(act, {"path": CHAT, "body": body}))
        for wrong in (
            {"path": CHAT, "body": SECRET},
            {"body": body, "headers": SECRET},
            {"messages": SECRET},
        ):
            reply = await act.ask("/route/explain", wrong, origin=ADMIN)
            assert reply.status in (400, 404)
            assert SECRET not in reply.body.decode()
        with caplog.at_level(logging.DEBUG):
            await explain(act, body)

    play(scene, TWO)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "m"}, 400, "Say which path the request is for"),
        ({"path": CHAT, "boddy": ASK}, 400, "Say which path the request is for"),
        ({"body": ASK, "polcy": "random"}, 400, "polcy is no field of this operation"),
        ({"body": ASK, "p" * 9_000: 1}, 400, "… is no field of this operation"),
        ({"body": "hello"}, 400, "body: Input should be"),
        ({"body": ASK, "headers": {"x-user": 1}}, 400, "headers.x-user: Input should be"),
        ({"body": ASK, "path": ""}, 400, "path: String should have at least 1 character"),
        ({"body": ASK, "policy": ""}, 400, "policy: String should have at least 1 character"),
        ({"path": "/v1/nothing", "body": ASK}, 400, "no path of this router"),
        ({"path": "/v1/audio/transcriptions", "body": ASK}, 400, "JSON body"),
        ({**ASK, "model": "unheard-of"}, 404, "unheard-of"),
        ({"body": ASK, "policy": "nonsense"}, 400, "allowed here"),
        ({"body": ASK, "policy": "\ud800"}, 400, "half of a surrogate pair"),
        ({**ASK, "user": "\udfff"}, 400, "half of a surrogate pair"),
        (b'{"model": "m", "messages": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", 400, "nested too deeply"),
    ],
)
def test_a_question_that_is_none_is_refused(body: Any, status: int, words: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/route/explain", body, origin=ADMIN)
        assert reply.status == status
        assert words in reply.json()["error"]["message"]

    play(scene, TWO)


def test_a_long_prompt_can_be_explained() -> None:
    async def scene(act: Live) -> None:
        body = {**ASK, "messages": [{"role": "user", "content": "x" * 500_000}]}
        assert (await explain(act, body))["request"]["prompt_tokens"] > 50_000
        reply = await act.ask("/route/explain", {**ASK, "x": "x" * 2_000_000}, origin=ADMIN)
        assert reply.status == 413

    play(scene, TWO)


def test_both_sides_of_a_split_request_are_told() -> None:
    async def scene(act: Live) -> None:
        answer = await explain(act, LONG)
        assert answer["split"] == {"split": True, "reason": None}
        assert answer["prefill_worker"] == answer["prefill"]["chosen"]
        assert answer["chosen"] == answer["decode"]["chosen"]
        assert {row["worker"] for row in answer["decode"]["candidates"]} == {"d1", "d2"}
        assert answer["prefill"]["candidates"]
        await act.ask(CHAT, LONG)
        assert act.puppets[answer["prefill_worker"]].asks

    play_pair(scene, decodes={"d1": decode, "d2": decode})


def test_why_a_request_is_not_split_is_told_too() -> None:
    async def scene(act: Live) -> None:
        answer = await explain(act, ASK)
        assert answer["split"] == {"split": False, "reason": "short", "served": "both_capable"}
        assert answer["chosen"] == "e"
        assert answer["filtered"] == [{"worker": "d", "reason": "cannot serve a whole request"}]

    play_pair(
        scene,
        prefills={"p": prefill},
        decodes={"d": decode, "e": decode},
        each={"e": {"may_prefill": True}},
        decode_pool={"pd_split_min_tokens": 512},
    )


# --- records ---------------------------------------------------------------------------------------------


async def inline(call: Callable[[], None]) -> None:
    """There are no threads in virtual time."""
    call()


def write_inline(act: Live) -> None:
    for log in (act.router.logs.requests, act.router.logs.decisions):
        if log is not None:
            log._offload = inline


def test_every_decision_is_recorded_and_the_request_log_names_the_best_others(tmp_path: Path) -> None:
    path, requests = tmp_path / "decisions", tmp_path / "requests"

    async def scene(act: Live) -> None:
        write_inline(act)
        await act.ask(CHAT, ASK)
        await switch(act, {"policy": "least_requests"})
        await act.ask(CHAT, ASK)
        assert act.router.logs.reopen()

    sections = {"decision_log": {"path": path, "sample": 1.0}, "request_log": {"path": requests}}
    play(scene, TWO, **sections)
    decided = list(read_decisions(path))
    assert [record.policy for record in decided] == ["round_robin", "least_requests"]
    for record in decided:
        assert isinstance(record, DecisionRecord)
        row = picked_again(record)
        assert row is not None
        assert row.worker == record.worker
    lines = list(read_records(requests))
    assert [line.placements[0].policy for line in lines] == ["round_robin", "least_requests"]
    for line in lines:
        (placed,) = line.placements
        assert [other.worker for other in placed.others] == [{"a": "b", "b": "a"}[placed.worker]]


def test_both_legs_of_a_split_request_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "decisions"

    async def scene(act: Live) -> None:
        write_inline(act)
        assert (await act.ask(CHAT, LONG)).status == 200

    play_pair(scene, decodes={"d1": decode, "d2": decode}, decision_log={"path": path, "sample": 1.0})
    decided = [record for record in read_decisions(path) if isinstance(record, DecisionRecord)]
    assert [record.pool for record in decided] == ["prefill", "decode"]
    assert len({record.id for record in decided}) == 1
    assert all(picked_again(record) is not None for record in decided)
