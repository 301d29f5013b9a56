from __future__ import annotations

import asyncio

import pytest

from router.core.errors import ConnectFailed
from router.upstream.origin import Origin
from router.virtual.clock import run
from router.virtual.network import Network
from router.virtual.transport import LinkSettings

HERE = Origin("http", "here", 80, "")


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def test_a_served_port_answers_and_counts_its_connections() -> None:
    async def main() -> None:
        network = Network()
        listener = network.serve("here", 80, Echo)
        transport, protocol = await network.connect(HERE, Client)
        assert isinstance(protocol, Client)
        transport.write(b"hello")
        await asyncio.sleep(1)
        assert protocol.data == b"hello"
        assert (listener.accepted, len(listener.connections)) == (1, 1)
        assert repr(network) == "<Network [<Listener here:80 [1 connections]>]>"
        transport.close()
        await asyncio.sleep(1)
        assert (listener.accepted, len(listener.connections)) == (1, 0)

    run(main())


def test_a_port_that_nobody_serves_refuses() -> None:
    async def main() -> None:
        network = Network()
        with pytest.raises(ConnectFailed, match="refused") as caught:
            await network.connect(HERE, Client)
        assert "here" not in str(caught.value)

    run(main())


def test_a_port_is_served_once() -> None:
    network = Network()
    network.serve("here", 80, Echo)
    with pytest.raises(OSError, match="served already"):
        network.serve("here", 80, Echo)
    network.stop("here", 80)
    network.serve("here", 80, Echo)


def test_refuse_and_hang_concern_new_connections_until_accept() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = Network(connect_s=2.0)
        network.serve("here", 80, Echo)
        transport, protocol = await network.connect(HERE, Client)
        network.refuse("here", 80)
        assert "here:80 refuse" in repr(network)
        with pytest.raises(ConnectFailed, match="refused"):
            await network.connect(HERE, Client)
        network.hang("here", 80)
        with pytest.raises(ConnectFailed, match="within 2 s"):
            await network.connect(HERE, Client)
        assert loop.time() == 1002
        transport.write(b"still")
        await asyncio.sleep(0.1)
        assert isinstance(protocol, Client)
        assert protocol.data == b"still"
        network.accept("here", 80)
        await network.connect(HERE, Client)

    run(main())


def test_stop_leaves_connections_and_reset_all_ends_them() -> None:
    async def main() -> None:
        network = Network()
        listener = network.serve("here", 80, Echo)
        _, first = await network.connect(HERE, Client)
        network.stop("here", 80)
        with pytest.raises(ConnectFailed):
            await network.connect(HERE, Client)
        assert len(listener.connections) == 1
        listener.reset_all()
        await asyncio.sleep(0.1)
        assert isinstance(first, Client)
        assert isinstance(first.lost[0], ConnectionResetError)
        network.serve("here", 80, Echo)
        _, second = await network.connect(HERE, Client)
        network.reset_all("here", 80)
        network.reset_all("nowhere", 1)  # nothing there: nothing to do
        await asyncio.sleep(0.1)
        assert isinstance(second, Client)
        assert isinstance(second.lost[0], ConnectionResetError)

    run(main())


def test_connecting_takes_a_round_trip_and_a_listener_that_leaves_meanwhile_refuses() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = Network()
        network.serve("here", 80, Echo, LinkSettings(latency_s=0.05))
        await network.connect(HERE, Client)
        assert loop.time() == pytest.approx(1000.1)
        pending = asyncio.create_task(network.connect(HERE, Client))
        await asyncio.sleep(0.01)
        network.stop("here", 80)
        with pytest.raises(ConnectFailed):
            await pending

    run(main())
