"""Fields and headers that steer the fleet: stripped, unless the client's key is trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from router.core.body_fields import CONTROL_FIELDS
from tests.shell.live import ASK, CHAT, Live, play
from tests.shell.puppet import WHOLE, answering

SERVE = answering(200, WHOLE)
KEYS: dict[str, Any] = {"auth": {"client_api_keys": [{"key": "in", "trusted": True}, "out"]}}
TRUSTED = {"authorization": "Bearer in"}
OTHER = {"authorization": "Bearer out"}
STEERING = {
    "x-data-parallel-rank": "1",
    "x-override-rid": "r",
    "x-override-bootstrap-host": "evil",
    "x-pointsman-policy": "random",
    "x-smg-target-worker": "0",
    "x-prefiller-host-port": "evil:1",
    "x-data-parallel-host-port": "evil:1",
    "routing-strategy": "random",
}


@pytest.mark.parametrize("name", CONTROL_FIELDS)
def test_a_control_field_is_stripped_from_the_body(name: str) -> None:
    async def scene(act: Live) -> None:
        for value in ({"do_remote_prefill": True}, None, "x", 1):
            assert (await act.ask(CHAT, {**ASK, name: value, "kept": [1.50]}, OTHER)).status == 200
            assert act.puppets["a"].asks[-1].json() == {**ASK, "kept": [1.5]}

    play(scene, {"a": SERVE}, **KEYS)


def test_control_fields_of_a_trusted_key_pass() -> None:
    body = json.dumps({**ASK, **{name: {"a": 1} for name in CONTROL_FIELDS}, "priority": -5}).encode()

    async def scene(act: Live) -> None:
        await act.ask(CHAT, body, TRUSTED)
        assert act.puppets["a"].asks[0].body == body

    play(scene, {"a": SERVE}, **KEYS)


def test_control_fields_inside_vllm_xargs_are_stripped_too() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, {**ASK, "vllm_xargs": {"kv_transfer_params": {}, "mine": 1}}, OTHER)
        assert act.puppets["a"].asks[0].json()["vllm_xargs"] == {"mine": 1}

    play(scene, {"a": SERVE}, **KEYS)


def test_a_body_without_control_fields_keeps_its_bytes() -> None:
    body = b'{ "model":"m" ,"messages" : [ ], "text":"kv_transfer_params" }'

    async def scene(act: Live) -> None:
        await act.ask(CHAT, body, OTHER)
        assert act.puppets["a"].asks[0].body == body

    play(scene, {"a": SERVE}, **KEYS)


def test_a_control_field_that_is_written_with_escapes_is_stripped() -> None:
    body = b'{"model": "m", "messages": [], "kv\\u005ftransfer_params": {"do_remote_prefill": true}}'

    async def scene(act: Live) -> None:
        await act.ask(CHAT, body, OTHER)
        assert act.puppets["a"].asks[0].json() == {"model": "m", "messages": []}

    play(scene, {"a": SERVE}, **KEYS)


def test_a_control_field_that_is_written_twice_is_stripped_twice() -> None:
    body = b'{"model": "m", "kv_transfer_params": 1, "messages": [], "kv_transfer_params": {"x": 1}}'

    async def scene(act: Live) -> None:
        await act.ask(CHAT, body, OTHER)
        assert b"kv_transfer" not in act.puppets["a"].asks[0].body

    play(scene, {"a": SERVE}, **KEYS)


def test_steering_headers_are_stripped() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {**OTHER, **STEERING})
        assert not {name for name, _ in act.puppets["a"].asks[0].headers} & set(STEERING)

    play(scene, {"a": SERVE}, **KEYS)


def test_steering_headers_of_a_trusted_key_pass() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, ASK, {**TRUSTED, **STEERING})
        assert set(STEERING.items()) <= set(act.puppets["a"].asks[0].headers)

    play(scene, {"a": SERVE}, **KEYS)


def test_where_no_keys_are_asked_nobody_is_trusted() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, {**ASK, "kv_transfer_params": {}}, STEERING)
        ask = act.puppets["a"].asks[0]
        assert ask.json() == ASK
        assert not {name for name, _ in ask.headers} & set(STEERING)

    play(scene, {"a": SERVE})


@pytest.mark.parametrize(("asked", "reaches"), [(-1, None), (0, 0), (7, 7)])
def test_a_client_may_step_back_but_not_ahead(asked: int, reaches: int | None) -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, {**ASK, "priority": asked}, OTHER)
        assert act.puppets["a"].asks[0].json().get("priority") == reaches

    play(scene, {"a": SERVE}, **KEYS)


def test_the_field_that_kills_a_real_decode_engine_never_reaches_one() -> None:
    async def scene(act: Live) -> None:
        body = {"model": "qwen2.5-3b", "messages": ASK["messages"], "max_tokens": 2}
        deadly = {**body, "kv_transfer_params": {"do_remote_prefill": True}}
        assert (await act.ask(CHAT, deadly)).status == 200
        assert act.mocks["a"].process.up

    play(scene, {"a": MockSettings()})
