"""Usage is asked for where the client did not, and that one event is dropped; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from engines.mock.settings import MockSettings
from router.virtual.transport import LinkSettings
from tests.shell.live import ASK, CHAT, STREAM, Live, MockEngine, play
from tests.shell.puppet import DONE, ROLE, STOP, TALK, USAGE, streaming, talk, word

MOCK = MockSettings(output_tokens=12)
USAGE_MARK = b'"choices":[],"usage"'
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "qwen2.5-3b", "messages": ASK["messages"], "stream": True, "n": 2},
    "/v1/completions": {"model": "qwen2.5-3b", "prompt": ["a", "b"], "stream": True, "max_tokens": 5},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_did_not_ask_gets_everything_but_the_usage_event(path: str) -> None:
    async def scene(act: Live) -> None:
        twin = act.mocks["twin"] = MockEngine(act.network, "twin", MOCK)
        named = {"x-request-id": "same"}
        asked = {**BODIES[path], "stream_options": {"include_usage": True}}
        through = act.asking(path, BODIES[path], named)
        direct = await act.ask(path, asked, named, origin=twin.origin)
        events = direct.body.split(b"\n\n")
        usage = [event for event in events if USAGE_MARK in event]
        assert len(usage) == 1
        events.remove(usage[0])
        # Beside the usage event, asking for it adds a null to every other event of vLLM.
        assert (await through).body == b"\n\n".join(events)

    play(scene, {"a": MOCK})


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_asked_gets_the_usage_event(path: str) -> None:
    async def scene(act: Live) -> None:
        asked = {**BODIES[path], "stream_options": {"include_usage": True}}
        assert (await act.ask(path, asked)).body.count(USAGE_MARK) == 1

    play(scene, {"a": MOCK})


@pytest.mark.parametrize("path", BODIES)
def test_without_injection_the_body_and_the_stream_are_untouched(path: str) -> None:
    async def scene(act: Live) -> None:
        twin = act.mocks["twin"] = MockEngine(act.network, "twin", MOCK)
        through, direct = (
            act.asking(path, BODIES[path], {"x-request-id": "same"}),
            act.asking(path, BODIES[path], {"x-request-id": "same"}, origin=twin.origin),
        )
        assert (await through).body == (await direct).body
        sent, received = (act.mocks[name].front.seen[-1] for name in ("twin", "a"))
        assert sent.body_sha256 == received.body_sha256

    play(scene, {"a": MOCK}, usage={"inject": False})


@pytest.mark.parametrize(
    ("options", "reaches"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None, "x": 1}, {"include_usage": True, "x": 1}),
        ({"include_usage": True}, {"include_usage": True}),
        (
            {"continuous_usage_stats": True, "include_usage": True},
            {"continuous_usage_stats": True, "include_usage": True},
        ),
    ],
    ids=str,
)
def test_what_the_client_said_about_its_stream_is_kept(options: Any, reaches: Any) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, {**STREAM, "stream_options": options})
        assert act.puppets["a"].asks[0].json()["stream_options"] == reaches
        shown = bool(options and options.get("include_usage"))
        assert (USAGE in reply.body) == shown

    play(scene)


def test_every_other_byte_of_the_body_stays() -> None:
    body = b'{ "messages":[],\t"model" : "m","stream":true , "x": 1.50 }\n'

    async def scene(act: Live) -> None:
        await act.ask(CHAT, body)
        received = act.puppets["a"].asks[0].body
        assert received == body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'

    play(scene)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream": False}),
        (CHAT, {"stream": True, "stream_options": "yes"}),
        ("/v1/messages", {"stream": True}),
        ("/v1/responses", {"stream": True}),
        ("/v1/embeddings", {"stream": True}),
    ],
    ids=str,
)
def test_where_usage_comes_anyway_or_makes_no_sense_nothing_is_added(
    path: str, fields: dict[str, Any]
) -> None:
    async def scene(act: Live) -> None:
        await act.ask(path, {**ASK, **fields})
        assert act.puppets["a"].asks[0].json() == {**ASK, **fields}

    play(scene, {"a": streaming(ROLE, STOP, DONE)} if path != "/v1/embeddings" else {"a": talk})


@pytest.mark.parametrize("piece", [1, 3, 50])
def test_the_usage_event_is_hidden_however_it_is_cut(piece: int) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.body, reply.broken) == (TALK, None)

    play(scene, link=LinkSettings(piece_bytes=piece))


def test_usage_beside_the_last_choice_is_not_dropped() -> None:
    last = STOP.replace(b"}\n\n", b',"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n')

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.body == ROLE + word() + last + DONE

    play(scene, {"a": streaming(ROLE, word(), last, DONE)})


def test_a_hidden_usage_still_teaches_and_counts() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        assert await act.metric("pointsman_output_tokens_total") == 4
        assert await act.metric("pointsman_prompt_tokens_total") == 7

    play(scene)


def test_the_stream_of_an_engine_that_ignores_the_wish_is_whole() -> None:
    events = (ROLE, word(), STOP, DONE)

    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.body, reply.broken) == (b"".join(events), None)

    play(scene, {"a": streaming(*events, gap_s=0.01)})
