"""Request heads that say one thing to the router and another to an engine, on the whole router."""

from __future__ import annotations

import json

import pytest

from tests.shell.live import ASK, CHAT, Live, play
from tests.shell.puppet import MODEL, WHOLE, Ask

DATA = json.dumps(ASK).encode()


async def echo(ask: Ask) -> None:
    ask.answer(200, WHOLE)


def chunked(*headers: str, trailers: tuple[str, ...] = ()) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "host: r", "transfer-encoding: chunked", *headers, "", ""]
    tail = "".join(f"{line}\r\n" for line in trailers).encode()
    return "\r\n".join(lines).encode() + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(DATA), DATA, tail)


def test_trailers_are_no_headers() -> None:
    async def scene(act: Live) -> None:
        trailers = ("x-request-id: late", "content-encoding: gzip", "x-late: 1", "authorization: Bearer k")
        client = await act.raw()
        client.send(chunked("x-request-id: early", trailers=trailers))
        await client.until(lambda: WHOLE in client.received)
        assert b"x-request-id: early\r\n" in client.received
        ask = act.puppets["a"].asks[0]
        assert ask.header("x-request-id") == "early"
        assert (ask.header("x-late"), ask.header("authorization")) == (None, None)
        client.send(chunked("x-request-id: next"))  # the connection is as good as before
        await client.until(lambda: b"x-request-id: next\r\n" in client.received)
        client.transport.close()

    play(scene, {"a": echo})


def test_a_key_in_a_trailer_opens_nothing() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(chunked(trailers=("authorization: Bearer right",)))
        await client.until(lambda: b"invalid_api_key" in client.received)
        assert not act.puppets["a"].asks
        client.transport.close()

    play(scene, {"a": echo}, auth={"client_api_keys": ["right"]})


@pytest.mark.parametrize("name", ["content-type", "content-encoding", "authorization", "x-api-key"])
def test_a_header_that_contradicts_itself_is_refused(name: str) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(chunked(f"{name}: identity", f"{name}: other"))
        await client.until(lambda: b"came twice" in client.received)
        assert b"HTTP/1.1 400 " in client.received
        assert not act.puppets["a"].asks
        client.transport.close()

    play(scene, {"a": echo})


def test_a_header_that_repeats_itself_is_not() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(
            chunked("content-type: application/json", "content-type: application/json", "x-a: 1", "x-a: 2")
        )
        await client.until(lambda: WHOLE in client.received)
        client.transport.close()

    play(scene, {"a": echo})


def test_every_connection_header_names_what_ends_here() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(
            chunked("connection: x-one", "connection: X-Two , x-three", "x-one: 1", "x-two: 2", "x-four: 4")
        )
        await client.until(lambda: WHOLE in client.received)
        ask = act.puppets["a"].asks[0]
        assert [ask.header(f"x-{name}") for name in ("one", "two", "four")] == [None, None, "4"]
        client.transport.close()

    play(scene, {"a": echo})


@pytest.mark.parametrize(
    "target",
    [
        f"/{CHAT}",
        f"{CHAT}/",
        f"{CHAT}/..",
        "/v1/responses/../../sleep",
        "/v1/responses/%2e%2e/%2e%2e/sleep",
        "/v1/responses/%252e%252e",
        "/v1/responses/..;/sleep",
        "/v1/responses/a%00b",
        "/v1/responses/a%0d%0ax:y",
        "/v1/responses/a/../sleep",
        "http://r/sleep",
        "/sleep",
        "/%73leep",
        "*",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
def test_no_spelling_of_a_path_reaches_what_is_not_on_the_list(target: str, method: str) -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        lines = [f"{method} {target} HTTP/1.1", "host: r", "content-length: 0", "connection: close", "", ""]
        client.send("\r\n".join(lines).encode())
        received = await client.until_lost()
        assert received.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ", b"HTTP/1.1 405 ")), received
        assert not act.puppets["a"].asks

    play(scene, {"a": echo})


def test_a_model_named_twice_is_the_one_that_the_engine_reads() -> None:
    async def scene(act: Live) -> None:
        body = b'{"model":"other","messages":[],"model":"%b"}' % MODEL.encode()
        assert (await act.ask(CHAT, body)).status == 200
        assert act.puppets["a"].asks[0].body == body
        body = b'{"model":"%b","messages":[],"mod\\u0065l":"other"}' % MODEL.encode()
        assert (await act.ask(CHAT, body)).status == 404

    play(scene, {"a": echo})
