"""Over real sockets of the loopback device: what memory cannot show."""

from __future__ import annotations

import asyncio
import errno
import socket
import time

import pytest

from router.core.errors import ConnectFailed, Overloaded, UpstreamBroken
from router.upstream.client import WireRequest
from router.upstream.connect import TcpConnect, TcpSettings
from router.upstream.origin import Origin
from tests.upstream.loopback import GET, Run, get, hello, served, upstream
from tests.upstream.stage import HELLO


def test_requests_share_a_socket_and_it_is_tuned(run: Run) -> None:
    async def main() -> None:
        clients = set()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.add(writer.get_extra_info("peername"))
            await hello(reader, writer)

        async with served(talk) as origin:
            up = upstream()
            assert [await get(up, origin) for _ in range(5)] == [b"hello"] * 5
            assert len(clients) == 1
            (wire,) = up._wires
            sock = wire._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            await up.aclose()
            assert repr(up) == "<Upstream [0 busy | 0 idle | 0 origins]>"

    run(main())


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_server_that_closes_the_idle_connection_as_we_reuse_it_costs_nothing(run: Run, how: str) -> None:
    async def main() -> None:
        accepted = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HELLO)
            await reader.readuntil(b"\r\n\r\n")  # the next request is under way: close in its face
            if how == "reset":
                writer.transport.abort()
            else:
                writer.close()

        async with served(talk) as origin:
            up = upstream()
            assert await get(up, origin) == b"hello"
            assert await get(up, origin) == b"hello"
            assert len(accepted) == 2
            await up.aclose()

    run(main())


def test_a_server_that_closed_while_idle_is_noticed_before_the_next_request(
    run: Run,
) -> None:
    async def main() -> None:
        requests = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(HELLO)
            writer.close()

        async with served(talk) as origin:
            up = upstream()
            for _ in range(5):
                assert await get(up, origin) == b"hello"
                while up._wires:
                    await asyncio.sleep(0)
            assert len(requests) == 5
            await up.aclose()

    run(main())


def test_a_body_until_close_is_read_to_its_end(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\nServer: BaseHTTP/0.6\r\n\r\n")
            for n in range(1000):
                writer.write(b"data: %d\n\n" % n)
                await writer.drain()
            writer.close()

        async with served(talk) as origin:
            up = upstream()
            assert await get(up, origin) == b"".join(b"data: %d\n\n" % n for n in range(1000))
            await up.aclose()

    run(main())


def test_an_early_refusal_of_a_large_body_is_delivered(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
            await reader.read()  # a server that does not wait would reset the answer away
            writer.close()

        async with served(talk) as origin:
            up = upstream()
            request = WireRequest(b"POST", b"/", (), b"x" * 30_000_000)
            answer = await up.fetch(origin, request, total_s=5, max_bytes=100)
            assert (answer.status, answer.body) == (413, b"no")
            assert repr(up).startswith("<Upstream [0 busy | 0 idle")
            await up.aclose()

    run(main())


def test_large_bodies_pass_whole_both_ways(run: Run) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 40_000

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            echo = await reader.readexactly(len(body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            writer.write(echo)
            await reader.read()
            writer.close()

        async with served(talk) as origin:
            up = upstream()
            answer = await up.fetch(
                origin, WireRequest(b"POST", b"/", (), body), total_s=20, max_bytes=20_000_000
            )
            assert answer.body == body
            await up.aclose()

    run(main())


def test_a_killed_worker_breaks_the_stream(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            await writer.drain()
            await reader.read(1)
            writer.transport.abort()

        async with served(talk) as origin:
            up = upstream()
            with await up.open(origin, GET) as exchange:
                assert await exchange.read(time.monotonic() + 5) == b"x"
                next(iter(up._wires))._transport.write(b"!")
                with pytest.raises(UpstreamBroken):
                    await exchange.read(time.monotonic() + 5)
            await up.aclose()

    run(main())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("host", "sentence"),
    [("127.0.0.1", "refused the connection"), ("no-such-host.invalid", "cannot be resolved")],
)
def test_no_connection_is_explained_without_the_address(run: Run, host: str, sentence: str) -> None:
    async def main() -> None:
        origin = Origin("http", host, free_port(), "")
        up = upstream(TcpConnect(TcpSettings(connect_s=30)))
        with pytest.raises(ConnectFailed, match=sentence) as caught:
            await get(up, origin)
        assert host not in str(caught.value)
        assert str(origin.port) not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        assert repr(up) == "<Upstream [0 busy | 0 idle | 0 origins]>"

    run(main())


def test_a_worker_that_does_not_accept_is_given_up_after_the_deadline(
    run: Run,
) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            held = []
            for _ in range(3):  # fills the queue of connections that nobody accepts
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
                held.append(sock)
            up = upstream(TcpConnect(TcpSettings(connect_s=0.05)))
            with pytest.raises(ConnectFailed, match=r"within 0\.05 s"):
                await get(up, Origin("http", "127.0.0.1", port, ""))
            for sock in held:
                sock.close()

    run(main())


@pytest.mark.parametrize(
    ("number", "error", "sentence"),
    [
        (errno.EMFILE, Overloaded, "no file descriptor"),
        (errno.EADDRNOTAVAIL, Overloaded, "no local port"),
        (errno.EHOSTUNREACH, ConnectFailed, "no route"),
        (errno.EPERM, ConnectFailed, "No connection"),
    ],
)
def test_it_is_said_whose_fault_it_is(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[Exception],
    sentence: str,
) -> None:
    def fail(*args: object) -> None:
        raise OSError(number, "as the system says it")

    async def main() -> None:
        monkeypatch.setattr("router.upstream.connect.socket.socket", fail)
        with pytest.raises(error, match=sentence):
            await get(upstream(), Origin("http", "127.0.0.1", 1, ""))
        monkeypatch.undo()

    run(main())


def test_a_second_address_is_tried_when_the_first_refuses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(hello) as origin:
            dead = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", free_port()))
            alive = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", origin.port))

            async def two(origin: Origin) -> list[object]:
                return [dead, alive]

            monkeypatch.setattr("router.upstream.connect._resolve", two)
            up = upstream()
            assert await get(up, origin) == b"hello"
            await up.aclose()

    run(main())
