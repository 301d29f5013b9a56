"""uvicorn's own protocol, an application and our Upstream: a live system without a socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from router.core.errors import DeadlineExceeded, UpstreamBroken
from router.upstream.client import Upstream, WireRequest
from router.upstream.origin import Origin
from router.virtual.asgi import lifespan, serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network
from router.virtual.transport import LinkSettings

ENGINE = Origin("http", "engine", 8000, "")


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """Streams as many events as the body asks for, one per 10 ms."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for n in range(int(body)):
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % n, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def ask(count: int) -> WireRequest:
    return WireRequest(b"POST", b"/v1/completions", (), b"%d" % count)


@pytest.mark.parametrize("link", [None, LinkSettings(latency_s=0.002), LinkSettings(piece_bytes=1)])
def test_events_come_one_by_one_as_the_engine_paces_them(link: LinkSettings | None) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = Network(link)
        serve_asgi(network, "engine", 8000, engine)
        upstream = Upstream(network.connect, loop.time)
        with await upstream.open(ENGINE, ask(100), headers_by=loop.time() + 60) as exchange:
            assert (b"content-type", b"text/event-stream") in exchange.headers
            body, last, gaps = b"", loop.time(), []
            while piece := await exchange.read(loop.time() + 1):
                body += piece
                if body.endswith(b"\n\n"):
                    gaps.append(loop.time() - last)
                    last = loop.time()
        assert body == b"".join(b"data: %d\n\n" % n for n in range(100)) + b"data: [DONE]\n\n"
        assert gaps[1:100] == [pytest.approx(0.01)] * 99
        assert repr(upstream) == "<Upstream [0 busy | 1 idle | 1 origins]>"
        await upstream.aclose()

    run(main())


def test_hours_of_traffic_pass_without_waiting() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        network = Network()
        listener = serve_asgi(network, "engine", 8000, engine)
        upstream = Upstream(network.connect, loop.time)
        for _ in range(100):
            answer = await upstream.fetch(ENGINE, ask(3), total_s=5, max_bytes=1000)
            assert answer.body.endswith(b"data: [DONE]\n\n")
            await asyncio.sleep(100)
        assert listener.accepted == 100  # each time the idle connection had grown too old
        await upstream.aclose()
        return loop.time()

    assert run(main()) > 1000 + 10_000


def test_two_hundred_streams_at_once_share_the_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        network = Network()
        serve_asgi(network, "engine", 8000, engine)
        upstream = Upstream(network.connect, loop.time)
        answers = await asyncio.gather(
            *(upstream.fetch(ENGINE, ask(20), total_s=5, max_bytes=1000) for _ in range(200))
        )
        assert {answer.status for answer in answers} == {200}
        assert repr(upstream) == "<Upstream [0 busy | 200 idle | 1 origins]>"
        await upstream.aclose()
        return loop.time()

    assert run(main()) == pytest.approx(1000.2)


def test_an_engine_that_is_killed_in_the_stream_breaks_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = Network()
        serve_asgi(network, "engine", 8000, engine)
        upstream = Upstream(network.connect, loop.time)
        with await upstream.open(ENGINE, ask(100)) as exchange:
            loop.call_later(0.055, network.reset_all, "engine", 8000)
            pieces = []
            with pytest.raises(UpstreamBroken):  # noqa: PT012 - the loop is the one statement
                while True:
                    pieces.append(await exchange.read(loop.time() + 1))
            assert len(pieces) == 5
        await upstream.aclose()

    run(main())


def test_an_engine_sees_at_once_that_nobody_reads_on() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen: list[float] = []

        async def watcher(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            assert (await receive())["type"] == "http.disconnect"
            seen.append(loop.time())

        network = Network(LinkSettings(latency_s=0.001))
        serve_asgi(network, "engine", 8000, watcher)
        upstream = Upstream(network.connect, loop.time)
        with await upstream.open(ENGINE, ask(1)) as exchange:
            assert await exchange.read() == b"x"
            with pytest.raises(DeadlineExceeded):
                await exchange.read(loop.time() + 5)
        left = loop.time()
        await asyncio.sleep(1)
        assert seen == [pytest.approx(left + 0.001)]
        await upstream.aclose()

    run(main())


def test_a_reader_that_stops_holds_the_application_back() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sent: list[int] = []

        async def flood(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for n in range(1000):
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
                sent.append(n)
            await send({"type": "http.response.body", "body": b""})

        network = Network(LinkSettings(window_bytes=50_000))
        serve_asgi(network, "engine", 8000, flood)
        upstream = Upstream(network.connect, loop.time)
        with await upstream.open(ENGINE, ask(1)) as exchange:
            await asyncio.sleep(10)
            # read ahead, window, write buffer, and a message more in each
            assert len(sent) * 10_000 < 65_536 + 50_000 + 65_536 + 80_000
            body = await exchange.read_all(max_bytes=20_000_000, until=loop.time() + 5)
            assert len(body) == 10_000_000
        await upstream.aclose()

    run(main())


def test_a_fastapi_application_with_its_lifespan_runs_as_it_is() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log: list[str] = []

        async def on(app: FastAPI) -> Any:
            log.append("up")
            yield {"secret": 42}
            log.append("down")

        app = FastAPI(lifespan=asynccontextmanager(on))

        @app.get("/state")
        async def state(request: Request) -> dict[str, int]:
            return {"secret": request.state.secret}

        @app.get("/stream")
        async def stream() -> StreamingResponse:
            async def events() -> Any:
                for n in range(3):
                    await asyncio.sleep(1)
                    yield b"data: %d\n\n" % n

            return StreamingResponse(events(), media_type="text/event-stream")

        network = Network()
        upstream = Upstream(network.connect, loop.time)
        async with lifespan(app) as shared:
            serve_asgi(network, "engine", 8000, app, state=shared)
            answer = await upstream.fetch(ENGINE, WireRequest(b"GET", b"/state"), total_s=1, max_bytes=100)
            assert answer.body == b'{"secret":42}'
            answer = await upstream.fetch(ENGINE, WireRequest(b"GET", b"/stream"), total_s=5, max_bytes=100)
            assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert log == ["up", "down"]
        await upstream.aclose()

    run(main())


def test_an_application_that_fails_to_start_says_so() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("no configuration")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="failed to start"):
            async with lifespan(broken):
                pass

    run(main())
