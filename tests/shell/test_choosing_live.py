"""How operators choose a policy and ask why: `/policies`, `/route/explain`, and a header of clients."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.policies import POLICIES
from router.telemetry.decision import DecisionRecord, read_decisions
from router.telemetry.recompute import picked_again
from router.telemetry.record import read_records
from tests.shell.live import ADMIN, ASK, CHAT, Live, play
from tests.shell.pair import decode, play_pair, prefill
from tests.shell.puppet import WHOLE, answering

SERVE = answering(200, WHOLE)
TWO: dict[str, Any] = {"a": SERVE, "b": SERVE}
KEYS: dict[str, Any] = {"auth": {"client_api_keys": [{"key": "in", "trusted": True}, "out"]}}
TRUSTED = {"authorization": "Bearer in"}
OTHER = {"authorization": "Bearer out"}
SECRET = "the launch code is 7351"
LONG = {**ASK, "messages": [{"role": "user", "content": "long " * 2000}]}


async def switch(act: Live, body: object, method: str = "PUT") -> Any:
    return await act.ask("/policies", body, method=method, origin=ADMIN)


async def explain(act: Live, body: object) -> Any:
    reply = await act.ask("/route/explain", body, origin=ADMIN)
    assert reply.status == 200, reply.body
    return reply.json()


# --- another policy while requests run -------------------------------------------------------------------


def test_the_policies_of_all_pools_are_shown_with_what_they_decided() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK)
        (state,) = (await act.ask("/policies", origin=ADMIN)).json()["pools"]
        assert state["policy"] == act.pool.policy_name
        assert (state["role"], state["binding"], state["shadows"]) == ("both", "early", [])
        known = (await act.ask("/policies", origin=ADMIN)).json()["policies"]
        assert {policy["policy"] for policy in known} == set(POLICIES)
        (decided,) = state["decisions"]
        assert (decided["policy"], decided["count"]) == (act.pool.policy_name, 1)
        assert await act.metric("pointsman_pool_policy_info", policy=act.pool.policy_name) == 1

    play(scene, TWO)


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_another_policy_decides_from_the_next_request_on(method: str) -> None:
    async def scene(act: Live) -> None:
        reply = await switch(act, {"policy": "power_of_two", "params": {"load": "tokens"}}, method)
        assert reply.status == 200
        assert reply.json()["params"] == {"load": "tokens"}
        assert (await act.ask(CHAT, ASK)).status == 200
        assert await act.metric("pointsman_policy_decisions_total", policy="power_of_two") == 1
        assert await act.metric("pointsman_pool_policy_info", policy="power_of_two") == 1
        assert await act.metric("pointsman_pool_policy_info") == 1
        assert (await act.debug_state())["pools"]["default"]["policy"] == "power_of_two"

    play(scene, TWO)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"policy": "least_request"}, "did you mean least_requests?"),
        ({"policy": "random", "params": {"load": 1}}, "has no parameter 'load'"),
        ({"policy": "power_of_two", "params": {"load": "x"}}, "allowed: requests or tokens"),
        ({"policy": "balance_route_0"}, "has no slots, but its policy balance_route_0"),
        ({"policy": "random", "pool": "other"}, "No pool is named 'other'; there are: default."),
        ({"policy": "random", "pool": ""}, "No pool is named ''; there are: default."),
        ({"shadow_policies": ["random"], "pool": ""}, "No pool is named ''; there are: default."),
        ({"policy": "random", "colour": 1}, "colour is no field of this operation."),
        ({"policy": "random", "shadow_sample": 0.2}, "Say the shadow_policies that shadow_sample is for"),
        ({"policy": "preble", "params": {"window_s": 10**400}}, "allowed: a number from 1 to 3,600"),
        ({"policy": "\ud800"}, "half of a surrogate pair"),
        ({}, "policy"),
    ],
)
def test_what_a_configuration_would_refuse_is_refused_in_its_words(body: Any, words: str) -> None:
    async def scene(act: Live) -> None:
        before = act.pool.policy
        reply = await switch(act, body)
        assert reply.status == 400
        assert words in reply.json()["error"]["message"]
        assert act.pool.policy is before

    play(scene, TWO)


def test_how_a_pool_binds_follows_its_policy() -> None:
    async def scene(act: Live) -> None:
        bindings = []
        for name in ("balance_route_0", "least_requests", "balance_route_h"):
            assert (await switch(act, {"policy": name})).status == 200
            bindings.append((await act.debug_state())["pools"]["default"]["binding"])
            assert (await act.ask(CHAT, ASK)).status == 200
        assert bindings == ["late", "early", "late"]

    play(scene, TWO, pools={"default": {"workers": ["http://a:8000", "http://b:8000"], "slots": 4}})


def test_of_two_pools_one_must_be_named_and_the_role_must_fit() -> None:
    async def scene(act: Live) -> None:
        reply = await switch(act, {"policy": "random"})
        assert "Say which pool: prefill, decode." in reply.json()["error"]["message"]
        reply = await switch(act, {"policy": "session_affinity", "pool": "decode"})
        assert "is for the roles both, prefill, not decode" in reply.json()["error"]["message"]
        assert (await switch(act, {"policy": "session_affinity", "pool": "prefill"})).status == 200
        assert (await switch(act, {"policy": "least_tokens", "pool": "decode"})).status == 200
        assert (await act.ask(CHAT, ASK)).status == 200
        for policy in ("session_affinity", "least_tokens"):
            assert await act.metric("pointsman_policy_decisions_total", policy=policy) == 1

    play_pair(scene)


# --- for one request -------------------------------------------------------------------------------------


def test_a_trusted_client_names_the_policy_of_its_request() -> None:
    async def scene(act: Live) -> None:
        asked = {**TRUSTED, "x-pointsman-policy": "random"}
        for headers, policy in ((asked, "random"), (TRUSTED, act.pool.policy_name)):
            reply = await act.ask(CHAT, ASK, headers)
            assert dict(reply.headers)["x-pointsman-policy"] == policy
        (state,) = (await act.ask("/policies", origin=ADMIN)).json()["pools"]
        assert state["asked_for"] == ["random"]

    play(scene, TWO, **KEYS)


def test_nobody_else_does() -> None:
    async def scene(act: Live) -> None:
        for name in ("round_robin", "nonsense"):
            assert (await act.ask(CHAT, ASK, {**OTHER, "x-pointsman-policy": name})).status == 200
        assert await act.metric("pointsman_policy_decisions_total", policy=act.pool.policy_name) == 2

    play(scene, TWO, **KEYS)


@pytest.mark.parametrize("name", ["nonsense", "Random"])
def test_a_policy_that_there_is_not_is_refused_with_those_that_there_are(name: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK, {**TRUSTED, "x-pointsman-policy": name})
        assert reply.status == 400
        message = reply.json()["error"]["message"]
        assert repr(name) in message
        assert "least_requests, least_tokens" in message

    play(scene, TWO, **KEYS)


def test_of_a_pair_the_side_that_it_fits_follows_it() -> None:
    async def scene(act: Live) -> None:
        asked = {**TRUSTED, "x-pointsman-policy": "session_affinity"}
        assert (await act.ask(CHAT, ASK, asked)).status == 200
        assert await act.metric("pointsman_policy_decisions_total", policy="session_affinity") == 1
        assert await act.metric("pointsman_policy_decisions_total", worker="d1") == 1

    play_pair(scene, decodes={"d1": decode}, **KEYS)


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


# --- policies without effect -----------------------------------------------------------------------------


def test_shadows_are_counted_from_the_configuration_on() -> None:
    async def scene(act: Live) -> None:
        for _ in range(4):
            assert (await act.ask(CHAT, ASK)).status == 200
        (state,) = (await act.ask("/policies", origin=ADMIN)).json()["pools"]
        shadows = {shadow["policy"]: shadow for shadow in state["shadows"]}
        assert set(shadows) == {"least_requests", "round_robin", "preble"}
        assert all(shadow["judged"] == 4 for shadow in shadows.values())
        assert shadows["round_robin"]["agreement"] == 1.0
        assert shadows["least_requests"]["regret"] == 0.0
        for name in shadows:
            judged = await act.metric("pointsman_shadow_decisions_total", shadow=name)
            assert judged == 4
            assert await act.metric("pointsman_shadow_busy_seconds_total", shadow=name) is not None
        assert await act.metric("pointsman_shadow_regret_total", shadow="least_requests") == 0

    shadowed = {"shadow_policies": ["least_requests", "round_robin", "preble"]}
    play(scene, TWO, pool=shadowed)


def test_shadows_are_changed_while_requests_run() -> None:
    async def scene(act: Live) -> None:
        reply = await switch(act, {"shadow_policies": ["random", "cache_aware"], "shadow_sample": 0.5})
        assert [shadow["policy"] for shadow in reply.json()["shadows"]] == ["random", "cache_aware"]
        assert reply.json()["shadow_sample"] == 0.5
        assert act.pool.chooser.prefixes is not None
        kept = next(iter(act.pool.chooser.shadows))
        await switch(act, {"shadow_policies": ["random"], "policy": "least_tokens"})
        assert list(act.pool.chooser.shadows) == [kept]
        assert act.pool.chooser.prefixes is None
        assert act.pool.policy_name == "least_tokens"
        assert (await switch(act, {"shadow_policies": []})).json()["shadows"] == []

    play(scene, TWO)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"shadow_policies": ["randm"]}, "did you mean random?"),
        ({"shadow_policies": ["random"] * 2}, "at most 4 different policies"),
        ({"shadow_policies": ["random"], "shadow_sample": 2}, "between 0 and 1"),
        ({"shadow_policies": ["random"], "policy": "preblle"}, "did you mean preble?"),
        ({"shadow_policies": ["random"], "policy": "balance_route_0"}, "has no slots"),
        ({"shadow_policies": ["random"], "params": {"load": "tokens"}}, "Say the policy that params are of"),
    ],
)
def test_shadows_that_cannot_be_are_refused(body: Any, words: str) -> None:
    async def scene(act: Live) -> None:
        reply = await switch(act, body)
        assert reply.status == 400
        assert words in reply.json()["error"]["message"]
        assert not len(act.pool.chooser.shadows)

    play(scene, TWO)


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
