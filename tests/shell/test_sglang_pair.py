"""The live router in front of SGLang mock engines: both legs at once, meeting in a bootstrap room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.mock.faults import Fault
from engines.mock.settings import MockSettings
from tests.shell.answers import told
from tests.shell.live import QUIET, Live, MockEngine, play
from tests.shell.mock_connectors import assert_nothing_held, held, switch_on
from tests.shell.pair import STRICT, pool, pools

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PROMPT = "Where the tracks part, somebody has to set the points. " * 12
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}]},
    COMPLETIONS: {"prompt": PROMPT},
}
ASK: dict[str, Any] = {"model": "qwen2.5-3b", "seed": 5, "max_tokens": 30, **BODIES[CHAT]}
STREAM: dict[str, Any] = {**ASK, "stream": True}
TIMEOUT_S = 20.0

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
CASES += [
    (COMPLETIONS, {"prompt": [PROMPT, PROMPT[::-1]], "stream": False}),
    (COMPLETIONS, {"prompt": [PROMPT, PROMPT[::-1]], "n": 2, "stream": True}),
    (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
]


def engine(role: Any, **settings: Any) -> MockSettings:
    return MockSettings(dialect="sglang", role=role, disaggregation_timeout_s=TIMEOUT_S, **settings)


def play_rooms(
    scene: Any, prefills: str = "p", decodes: str = "d", *, slow_s: float | None = None, **options: Any
) -> None:
    """A scene with these prefill and decode engines. Everything is over within a time-out of the engines.

    Args:
        slow_s: what a transfer takes beside its bytes.
    """
    latency: dict[str, Any] = {} if slow_s is None else {"kv_latency_s": slow_s}
    workers = {name: engine("prefill") for name in prefills}
    workers |= {name: engine("decode", **latency) for name in decodes}
    decode_pool = {"connector": "sglang", **options.pop("decode_pool", {})}

    async def whole(act: Live) -> None:
        await scene(act)
        await asyncio.sleep(0.2)

    play(whole, workers, pools=pools(tuple(prefills), tuple(decodes), **decode_pool), **{**QUIET, **options})


@pytest.mark.parametrize(("path", "fields"), CASES, ids=str)
def test_two_sglang_engines_answer_as_one_does(path: str, fields: dict[str, Any]) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings(dialect="sglang"))
        body = {"model": "qwen2.5-3b", "seed": 5, "max_tokens": 12, **BODIES[path], **fields}
        for _ in range(2):  # the second time the prompt is cached, in both worlds
            expected = await act.ask(path, body, origin=alone.origin)
            assert told(await act.ask(path, body)) == told(expected)
        assert held(act, "d")["received"] == held(act, "p")["sent"] > 0
        assert_nothing_held(act, "p", "d")
        alone.process.close()

    play_rooms(scene)


def test_many_requests_at_once_are_answered_each_for_itself() -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings(dialect="sglang"))
        bodies = [
            {**STREAM, "messages": [{"role": "user", "content": f"{number} {PROMPT}"}]}
            for number in range(12)
        ]
        replies = await asyncio.gather(*(act.ask(CHAT, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert told(reply) == told(await act.ask(CHAT, body, origin=alone.origin))
        assert held(act, "d")["received"] + held(act, "e")["received"] == 12
        assert_nothing_held(act, "p", "q", "d", "e")
        alone.process.close()

    play_rooms(scene, "pq", "de")


def test_no_two_sequences_of_any_requests_meet_in_one_room() -> None:
    async def scene(act: Live) -> None:
        replies = await asyncio.gather(*(act.ask(CHAT, {**ASK, "n": 3}) for _ in range(8)))
        assert [len(reply.json()["choices"]) for reply in replies] == [3] * 8
        assert held(act, "p")["sent"] == 24
        assert await act.metric("pointsman_legs_cancelled_total") in (None, 0)

    play_rooms(scene, decode_pool={"max_transfers_per_worker": 8})


# --- clients that leave -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.03, 0.5, 1.0])
def test_a_client_that_leaves_before_the_first_token_leaves_nothing_behind(body: Any, after_s: float) -> None:
    async def scene(act: Live) -> None:
        asking = act.asking(CHAT, body)
        await asyncio.sleep(after_s)
        asking.cancel()
        await asyncio.sleep(0.1)
        assert pool(act, "prefill").in_flight == pool(act, "decode").in_flight == 0
        await asyncio.sleep(2.0)
        assert_nothing_held(act, "p", "d")

    play_rooms(scene, slow_s=1.5)


def test_a_client_that_leaves_while_it_is_answered_leaves_nothing_behind() -> None:
    async def scene(act: Live) -> None:
        visit = await act.open(CHAT, {**STREAM, "max_tokens": 400, "ignore_eos": True})
        await visit.read()
        await asyncio.sleep(0.3)
        visit.leave()
        await asyncio.sleep(0.1)
        assert_nothing_held(act, "p", "d")

    play_rooms(scene)


# --- legs that fail ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("leg", ["p", "d"])
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
def test_a_leg_that_is_refused_ends_the_other_and_another_pair_answers(leg: str, body: Any) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings(dialect="sglang"))
        switch_on(act, leg, kind="status", status=500, count=1)
        started = act.now
        assert told(await act.ask(CHAT, body)) == told(await act.ask(CHAT, body, origin=alone.origin))
        assert act.now - started < 2.0
        cut = await act.metric("pointsman_legs_cancelled_total", reason="other_leg_failed")
        assert cut == 1
        assert_nothing_held(act, "p", "q", "d", "e")
        alone.process.close()

    play_rooms(scene, "pq", "de")


@pytest.mark.parametrize("kind", ["transfer_failed", "lose_handle"])
def test_a_pair_that_does_not_come_together_is_tried_with_others(kind: str) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings(dialect="sglang"))
        for name in ("p", "d"):
            switch_on(act, name, kind=kind, count=1)
        assert told(await act.ask(CHAT, ASK)) == told(await act.ask(CHAT, ASK, origin=alone.origin))
        await asyncio.sleep(TIMEOUT_S)
        assert_nothing_held(act, "p", "q", "d", "e")
        alone.process.close()

    play_rooms(scene, "pq", "de")


@pytest.mark.parametrize("leg", ["p", "d"])
def test_an_engine_that_dies_in_the_room_ends_the_other_leg(leg: str) -> None:
    async def scene(act: Live) -> None:
        alone = MockEngine(act.network, "alone", MockSettings(dialect="sglang"))
        asking = act.asking(CHAT, STREAM)
        await act.until(lambda: held(act, "p")["kept"] == 1)
        act.mocks[leg].process.crash(Fault(kind="crash", delay_s=1.0))
        assert told(await asking) == told(await act.ask(CHAT, STREAM, origin=alone.origin))
        await asyncio.sleep(5.0)
        assert_nothing_held(act, "p", "q", "d", "e")
        alone.process.close()

    play_rooms(scene, "pq", "de", slow_s=1.0)


def test_without_another_pair_the_client_gets_the_error() -> None:
    async def scene(act: Live) -> None:
        switch_on(act, "d", kind="transfer_failed")
        reply = await act.ask(CHAT, ASK)
        assert reply.status in (500, 502)
        assert "the transfer failed" in reply.json()["message"]  # in the words of the engine
        act.mocks["d"].front.faults.clear()
        await asyncio.sleep(6.0)  # uvicorn does not end the idle timer of a connection that is reset
        assert_nothing_held(act, "p", "d")

    play_rooms(scene, decode_pool=STRICT)
