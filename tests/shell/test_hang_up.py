"""A refusal reaches a client that is still sending: over real sockets, since only they reset."""

from __future__ import annotations

import asyncio

from router.api.routes import ROUTES, Route
from router.api.turn import Turn
from router.listener import Listener
from tests.shell.live import CHAT, DATA, Live, play
from tests.shell.visitors import RawClient

PIECE = b"x" * 65_536


class _Refusing:
    """Refuses at the head, whatever comes."""

    def find(self, url: bytes) -> tuple[Route, bytes] | None:
        return ROUTES[CHAT], url

    async def serve(self, turn: Turn) -> None:
        await turn.answer(413, [], b"too large")


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nothing goes through ASGI here")


DECLARED = 300 * 1024 * 1024


def _head(*more: bytes) -> bytes:
    lines = (b"POST %b HTTP/1.1" % CHAT.encode(), b"host: r", b"content-length: %d" % DECLARED, *more)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def test_a_client_that_goes_on_sending_gets_its_refusal_and_an_orderly_end() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw(DATA)
        client.send(_head(b"connection: close"))
        await client.until(lambda: b"body_too_large" in client.received)
        for _ in range(50):
            client.send(PIECE)
            await asyncio.sleep(0.01)
        assert client.received.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in client.received
        client.transport.close()
        await act.turns()

    play(scene)


def test_a_client_that_never_stops_sending_is_cut_in_the_end() -> None:
    class Deaf(RawClient):
        def eof_received(self) -> bool:
            return True  # keeps its own direction open

    async def scene(act: Live) -> None:
        client = Deaf()
        await act.network.connect(DATA, lambda: client)
        client.send(_head(b"connection: close"))
        began = act.now
        while not client.lost:
            client.send(b"x")
            await asyncio.sleep(0.1)
        assert 4.9 < act.now - began < 6.0

    play(scene)


def test_nothing_that_comes_behind_a_refusal_is_served() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw(DATA)
        client.send(b"not http at all\r\n\r\n")
        await client.until(lambda: b"bad_request" in client.received)
        client.send(b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n")
        await client.until_lost()
        assert client.received.count(b"HTTP/1.1 ") == 1

    play(scene)


def test_over_real_sockets_the_refusal_is_not_lost_to_a_reset() -> None:
    async def main() -> bytes:
        listener = Listener("data", _nothing, direct=_Refusing())
        await listener.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(_head(b"connection: close"))
        # A client that writes all of it before it reads: without the pause its socket would be reset by now.
        for _ in range(40):
            writer.write(PIECE)
            await asyncio.sleep(0)
        received = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await listener.aclose()
        return received

    assert asyncio.run(main()).startswith(b"HTTP/1.1 413 ")
