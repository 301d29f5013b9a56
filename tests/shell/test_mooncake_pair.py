"""The live router in front of vLLM mock engines with the Mooncake connector: legs in turn, and at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.mock.faults import Fault
from engines.mock.settings import MockSettings
from tests.shell.answers import told
from tests.shell.live import QUIET, Live, MockEngine, play
from tests.shell.mock_connectors import assert_nothing_held, held, switch_on
from tests.shell.pair import STRICT, pool, pools, stranded

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PROMPT = "Where the tracks part, somebody has to set the points. " * 12
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}]},
    COMPLETIONS: {"prompt": PROMPT},
}
ASK: dict[str, Any] = {"model": "qwen2.5-3b", "seed": 5, "max_tokens": 30, **BODIES[CHAT]}
STREAM: dict[str, Any] = {**ASK, "stream": True}
LEASE_S = 15.0
GIVEN_UP_S = LEASE_S + 61.0
"""After so long a decode engine has given up whatever it waited for."""
CACHED = frozenset({"prompt_tokens_details"})
"""A decode engine reports its whole prompt as cached, as recorded."""
WAYS = pytest.mark.parametrize("concurrent", [False, True], ids=["in turn", "at once"])

FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"max_tokens": 1},
    {"n": 2, "temperature": 0.9},
    {"stop": [" "]},
    {"ignore_eos": True, "max_tokens": 20},
)
CASES = [
    (path, {**fields, "stream": stream}) for path in BODIES for fields in FIELDS for stream in (False, True)
]


def engine(role: Any, **settings: Any) -> MockSettings:
    return MockSettings(role=role, kv_connector="mooncake", kv_abort_timeout_s=LEASE_S, **settings)


def play_mooncake(
    scene: Any,
    prefills: str = "p",
    decodes: str = "d",
    *,
    concurrent: bool,
    slow_s: float | None = None,
    rest_s: float = 0.2,
    **options: Any,
) -> None:
    """A scene with these prefill and decode engines.

    Args:
        slow_s: what a transfer takes beside its bytes.
        rest_s: time after which engines have nothing left of it.
    """
    latency: dict[str, Any] = {} if slow_s is None else {"kv_latency_s": slow_s}
    workers = {name: engine("prefill") for name in prefills}
    workers |= {name: engine("decode", **latency) for name in decodes}
    decode_pool = {
        "connector": "mooncake",
        "kv_lease_s": LEASE_S,
        "mooncake_concurrent": concurrent,
        **options.pop("decode_pool", {}),
    }
    timeouts = {"lease_margin_s": 3.0, "decode_first_event_s": 10.0, **options.pop("timeouts", {})}

    async def whole(act: Live) -> None:
        await scene(act)
        await asyncio.sleep(rest_s)

    made = pools(tuple(prefills), tuple(decodes), **decode_pool)
    play(whole, workers, pools=made, timeouts=timeouts, **{**QUIET, **options})


@WAYS
@pytest.mark.parametrize(("path", "fields"), CASES, ids=str)
def test_two_engines_answer_as_one_does(path: str, fields: dict[str, Any], concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        body = {"model": "qwen2.5-3b", "seed": 5, "max_tokens": 12, **BODIES[path], **fields}
        for _ in range(2):  # the second time the prompt is cached, in both worlds
            expected = await act.ask(path, body, origin=alone.origin)
            assert told(await act.ask(path, body), CACHED) == told(expected, CACHED)
        whole = fields.get("max_tokens") == 1 or "n" in fields
        assert held(act, "d")["received"] == held(act, "p")["sent"] == (0 if whole else 2)
        assert_nothing_held(act, "p", "d")
        alone.process.close()

    play_mooncake(scene, concurrent=concurrent)


@WAYS
def test_many_requests_at_once_are_answered_each_for_itself(concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        bodies = [
            {**STREAM, "messages": [{"role": "user", "content": f"{number} {PROMPT}"}]}
            for number in range(12)
        ]
        replies = await asyncio.gather(*(act.ask(CHAT, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert told(reply, CACHED) == told(await act.ask(CHAT, body, origin=alone.origin), CACHED)
        assert held(act, "d")["received"] + held(act, "e")["received"] == 12
        assert_nothing_held(act, "p", "q", "d", "e")
        alone.process.close()

    play_mooncake(scene, "pq", "de", concurrent=concurrent)


# --- clients that leave -----------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.03, 0.5, 1.0])
def test_a_client_that_leaves_before_the_first_token_leaves_nothing_behind(
    body: Any, after_s: float, concurrent: bool
) -> None:
    async def scene(act: Live) -> None:
        asking = act.asking(CHAT, body)
        await asyncio.sleep(after_s)
        asking.cancel()
        await asyncio.sleep(0.1)
        assert pool(act, "prefill").in_flight == pool(act, "decode").in_flight == 0
        await asyncio.sleep(GIVEN_UP_S)
        assert stranded(act) == 0
        assert_nothing_held(act, "p", "d")

    play_mooncake(scene, concurrent=concurrent, slow_s=1.5)


def test_a_client_that_leaves_after_the_prefill_has_its_kv_released_at_once() -> None:
    async def scene(act: Live) -> None:
        busy = await act.open(CHAT, {**STREAM, "max_tokens": 2000, "ignore_eos": True})
        await busy.read()
        asking = act.asking(CHAT, STREAM)
        await act.until(lambda: held(act, "p")["kept"] == 1)
        await asyncio.sleep(0.05)
        asking.cancel()
        await act.until(lambda: held(act, "p")["kept"] == 0, 2.0)
        busy.leave()

    play_mooncake(scene, concurrent=False, decode_pool={"binding": "late", "slots": 1})


# --- legs that fail ---------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("leg", ["p", "d"])
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
def test_a_leg_that_is_refused_is_tried_again_with_another_pair(
    leg: str, body: Any, concurrent: bool
) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        switch_on(act, leg, kind="status", status=500, count=1)
        expected = await act.ask(CHAT, body, origin=alone.origin)
        assert told(await act.ask(CHAT, body), CACHED) == told(expected, CACHED)
        cut = await act.metric("pointsman_legs_cancelled_total", reason="other_leg_failed")
        assert (cut or 0) == int(concurrent)
        alone.process.close()

    play_mooncake(scene, "pq", "de", concurrent=concurrent, rest_s=GIVEN_UP_S)


@WAYS
@pytest.mark.parametrize("kind", ["transfer_failed", "lose_handle", "lease_cut"])
def test_a_hand_over_that_fails_is_done_again(kind: str, concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        for name in ("p", "d"):
            switch_on(act, name, kind=kind, count=1)
        expected = await act.ask(CHAT, ASK, origin=alone.origin)
        assert told(await act.ask(CHAT, ASK), CACHED) == told(expected, CACHED)
        alone.process.close()

    play_mooncake(scene, "pq", "de", concurrent=concurrent, rest_s=GIVEN_UP_S)


@WAYS
@pytest.mark.parametrize("leg", ["p", "d"])
def test_an_engine_that_dies_during_the_transfer_is_survived(leg: str, concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings())
        asking = act.asking(CHAT, STREAM)
        await act.until(lambda: held(act, "p")["kept"] == 1)
        act.mocks[leg].process.crash(Fault(kind="crash", delay_s=1.0))
        expected = await act.ask(CHAT, STREAM, origin=alone.origin)
        assert told(await asking, CACHED) == told(expected, CACHED)
        alone.process.close()

    play_mooncake(scene, "pq", "de", concurrent=concurrent, slow_s=1.0, rest_s=GIVEN_UP_S)


@WAYS
def test_a_prefill_engine_that_came_back_unnoticed_is_asked_for_its_name_again(concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, ASK)).status == 200
        act.mocks["p"].process.restart()
        assert (await act.ask(CHAT, ASK)).status == 200
        assert held(act, "p")["sent"] == 1

    play_mooncake(scene, concurrent=concurrent, decode_pool=STRICT, rest_s=GIVEN_UP_S)


@WAYS
def test_without_another_pair_the_client_gets_the_error(concurrent: bool) -> None:
    async def scene(act: Live) -> None:
        switch_on(act, "d", kind="transfer_failed")
        reply = await act.ask(CHAT, ASK)
        assert reply.status in (500, 502, 503)
        assert reply.error["message"]
        act.mocks["d"].front.faults.clear()

    play_mooncake(scene, concurrent=concurrent, decode_pool=STRICT, rest_s=GIVEN_UP_S)
