"""How operators choose a policy and ask why: `/policies`, `/route/explain`, and a header of clients."""

from __future__ import annotations

from typing import Any

import pytest

from router.policies import POLICIES
from tests.shell.choosing import TWO, switch
from tests.shell.live import ADMIN, ASK, CHAT, Live, play
from tests.shell.pair import decode, play_pair

KEYS: dict[str, Any] = {"auth": {"client_api_keys": [{"key": "in", "trusted": True}, "out"]}}

TRUSTED = {"authorization": "Bearer in"}

OTHER = {"authorization": "Bearer out"}


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
