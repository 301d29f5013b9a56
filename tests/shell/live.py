"""The whole live router on a virtual network: its ports, its workers, and clients that see every byte.

`play` builds it, runs a scene, and holds it to the first law: after whatever happened, every account of the
router and of its workers is zero within 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engines.mock.app import create_app
from engines.mock.bootstrap import BootstrapServer
from engines.mock.front import Front
from engines.mock.peers import Address
from engines.mock.settings import MockSettings
from router.app import Router, World
from router.lifecycle import Process
from router.settings.configuration import Settings
from router.upstream.client import Upstream, WireRequest
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from router.virtual.asgi import serve_asgi
from router.virtual.clock import VirtualLoop, run
from router.virtual.network import Listener, Network
from router.virtual.transport import LinkSettings
from tests.core.fleet_examples import assert_idle
from tests.engines.peer_network import NetworkPeers
from tests.kv_events.mock_wire import MockWire
from tests.shell.puppet import MODEL, Puppet, Serve, talk
from tests.shell.visitors import RawClient, Reply, Visit
from tests.tokenizer.threads import Threads

DATA = Origin("http", "router", 30000, "")
ADMIN = Origin("http", "router", 29001, "")
METRICS = Origin("http", "router", 29000, "")
UNIX_ORIGIN_S = 1_795_973_970.0
QUIET: dict[str, Any] = {
    "polling": {"interval_s": 3000.0, "models_interval_s": 3000.0},
    "health": {"interval_s": 3000.0},
}
"""Settings of a router that leaves its workers alone after the first look."""
SETTLED_S = 0.1
"""Time in which everything must be over once nobody wants it any more."""
CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
STREAM: dict[str, Any] = {**ASK, "stream": True}


class MockEngine:
    """A mock engine on the network, with its bootstrap server if it has one; its process's `Listener`."""

    def __init__(self, network: Network, host: str, settings: MockSettings, port: int = 8000) -> None:
        self.host, self.port = host, port
        now = asyncio.get_running_loop().time
        peers = NetworkPeers(Upstream(network.connect, now, UpstreamSettings(max_idle=0)))
        self.front: Front = create_app(settings, unix_origin_s=UNIX_ORIGIN_S, instance=host, peers=peers)
        self.process = self.front.process
        self.process.address = Address(host, port)
        self._network = network
        self._listeners: list[Listener] = [serve_asgi(network, host, port, self.front, timeout_keep_alive=5)]
        if settings.has_bootstrap:
            door, bootstrap = settings.disaggregation_bootstrap_port, BootstrapServer(self.process)
            self._listeners.append(serve_asgi(network, host, door, bootstrap, timeout_keep_alive=5))
        self.process.listener = self
        self.origin = Origin("http", host, port, "")

    @property
    def connections(self) -> int:
        return sum(len(listener.connections) for listener in self._listeners)

    def close(self) -> None:
        for listener in self._listeners:
            self._network.refuse(listener.host, listener.port)

    def reopen(self) -> None:
        for listener in self._listeners:
            self._network.accept(listener.host, listener.port)

    def reset_connections(self) -> None:
        for listener in self._listeners:
            self._network.reset_all(listener.host, listener.port)

    def end_connections(self) -> None:
        for end in [end for listener in self._listeners for end in listener.connections]:
            protocol = end.get_protocol()
            assert isinstance(protocol, HttpToolsProtocol)
            protocol.shutdown()


class _Door:
    """Stands where a listening socket would."""

    def __init__(self, network: Network, origin: Origin) -> None:
        self._network, self._origin = network, origin

    def close(self) -> None:
        self._network.stop(self._origin.host, self._origin.port)


class _Bugs(logging.Handler):
    """Keeps what is logged with a stack trace: the router's own bugs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name.startswith("uvicorn"):
            self.records.append(record)


class Live:
    """A router with its workers, and clients of it."""

    def __init__(self, network: Network, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.network = network
        self.mocks: dict[str, MockEngine] = {}
        self.threads = Threads()
        self.wire = MockWire(lambda host: self.mocks[host].process)
        world = World(
            connect=network.connect,
            now=loop.time,
            wall=lambda: UNIX_ORIGIN_S + loop.time(),
            open_files=20_000,
            wire=self.wire,
            threads=self.threads,
        )
        self.router = Router(settings, world)
        self.process = Process(self.router, world)
        self.client = Upstream(network.connect, loop.time, UpstreamSettings(max_idle=0))
        self.puppets: dict[str, Puppet] = {}
        self.bugs = _Bugs()
        self.started = loop.time()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.loop.time() - self.started

    def open_doors(self) -> None:
        """What `Process.open` does, without sockets."""
        doors = [(self.process.data, DATA)]
        for listener, _, port in self.process._others:
            doors.append((listener, Origin("http", "router", port, "")))
        for listener, origin in doors:
            self.network.serve(origin.host, origin.port, listener.protocol)
            listener._server = _Door(self.network, origin)  # type: ignore[assignment]  # only closed
            listener.port = origin.port
        self.process.start()

    # --- clients ---------------------------------------------------------------------------------------

    async def open(
        self,
        path: str = CHAT,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
        origin: Origin = DATA,
    ) -> Visit:
        """Asks and waits for the head of the answer."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {"content-type": "application/json", **(headers or {})} if raw else dict(headers or {})
        request = WireRequest(
            (method or ("POST" if raw else "GET")).encode(),
            path.encode(),
            tuple((name.encode(), value.encode("latin-1")) for name, value in named.items()),
            raw,
        )
        return Visit(await self.client.open(origin, request))

    async def ask(
        self,
        path: str = CHAT,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
        origin: Origin = DATA,
    ) -> Reply:
        """Asks and reads to the end."""
        return await (await self.open(path, body, headers, method=method, origin=origin)).rest()

    def asking(self, *args: Any, **named: Any) -> asyncio.Task[Reply]:
        """The same beside what follows. Cancelled, the client leaves."""
        return self.loop.create_task(self.ask(*args, **named), name="client")

    async def raw(self, origin: Origin = DATA) -> RawClient:
        client = RawClient()
        await self.network.connect(origin, lambda: client)
        return client

    async def open_raw(self, body: object, path: str = CHAT) -> RawClient:
        """A raw client that has asked, and reads when it likes."""
        client = await self.raw()
        data = json.dumps(body).encode()
        client.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)))
        client.send(data)
        return client

    def server_end(self, client: RawClient) -> Any:
        """The router's protocol behind the connection of a raw client."""
        here = client.transport.get_extra_info("sockname")
        ends = self.process.data.state.connections
        return next(end for end in ends if end.transport.get_extra_info("peername") == here)

    async def debug_state(self) -> Any:
        return (await self.ask("/debug/state", origin=ADMIN)).json()

    async def metric(self, name: str, **labels: str) -> float | None:
        """A sum over the series of the router's own metrics with these labels; None without any."""
        text = (await self.ask("/metrics", origin=ADMIN)).body.decode()
        found = []
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                found.append(float(value))
        return sum(found) if found else None

    # --- looks inside ----------------------------------------------------------------------------------

    @property
    def pool(self) -> Any:
        return self.dispatcher.pool

    @property
    def dispatcher(self) -> Any:
        return next(iter(self.router.fleet.dispatchers.values()))

    def worker(self, name: str) -> Any:
        member = self.router.fleet.member(name)
        assert member is not None
        return member.worker

    def state(self, name: str) -> str:
        return str(self.worker(name).state.value)

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """Waits for something to become true; every turn of the loop for a while, then every 10 ms."""
        ends = self.loop.time() + within_s
        for _ in range(50):
            if condition():
                return
            await asyncio.sleep(0)
        while not condition():
            assert self.loop.time() < ends, f"not within {within_s} s"
            await asyncio.sleep(0.01)

    async def turns(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    def assert_no_lease(self) -> None:
        assert self.router.fleet.in_flight.used == 0
        assert_idle(self.pool)

    def assert_zero(self) -> None:
        """The first law, in the router's accounts and in the engines'."""
        router = self.router
        assert router.fleet.in_flight.used == 0
        assert router.bodies.used == 0
        assert router.retries.budget.used == 0
        assert self.process.data.busy == 0
        for dispatcher in router.fleet.dispatchers.values():
            assert_idle(dispatcher.pool)
            assert dispatcher.pool._budgets.queued_bytes.used == 0
            assert dispatcher._waiters == {}
            assert all(worker.mirror.transfers == 0 for worker in dispatcher.pool.roster)
        assert router.releases._queue.empty(), router.releases
        for topology in router.fleet.topologies:
            budget = topology.partners.budget
            budget.sweep(self.loop.time())
            assert budget.stranded() == 0, budget
        assert not any(router.legs._relays.values())
        for puppet in self.puppets.values():
            assert puppet.running == 0, [ask for ask in puppet.asks if not ask.ended]
        for mock in (mock for mock in self.mocks.values() if mock.process.up):
            engine = mock.process.engine
            assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
            assert mock.process.in_progress == 0

    async def aclose(self) -> None:
        """Ends everything and asserts that nothing stays."""
        await self.router.supervisor.aclose()
        await self.turns()
        assert repr(self.router.upstream).startswith("<Upstream [0 busy"), self.router.upstream
        await self.process.aclose()
        await self.client.aclose()
        await self.clear()
        await asyncio.sleep(SETTLED_S)  # the last bytes are still on their way
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        timers = [timer for timer in self.loop._scheduled if not timer.cancelled()]
        assert not timers, timers
        assert not self.bugs.records, [record.getMessage() for record in self.bugs.records]

    async def clear(self) -> None:
        for puppet in self.puppets.values():
            await puppet.aclose()
        for mock in self.mocks.values():
            mock.process.close()
            mock.reset_connections()


async def leave(task: asyncio.Task[Any]) -> None:
    """The client closes its connection."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def assert_let_go(act: Live) -> None:
    """All engines are free, and all accounts zero, within 100 ms."""
    left = act.loop.time()
    await asyncio.sleep(SETTLED_S)
    act.assert_zero()
    for puppet in act.puppets.values():
        for ask in puppet.asks:
            assert ask.ended or (ask.left_at is not None and ask.left_at - left <= SETTLED_S)


Scene = Callable[[Live], Awaitable[None]]


def settings(workers: Sequence[str] = (), **sections: Any) -> Settings:
    """Settings of a router whose one pool has these workers, named after their hosts."""
    pool = {"workers": [{"url": f"http://{name}:8000", "name": name} for name in workers]}
    pools = {"default": {"policy": "round_robin", **pool, **sections.pop("pool", {})}}
    return Settings(**{"pools": pools, **sections})


@asynccontextmanager
async def live(
    workers: Mapping[str, Serve | MockSettings],
    *,
    ready: bool = True,
    link: LinkSettings | None = None,
    **sections: Any,
) -> AsyncIterator[Live]:
    """A router with a worker for each name; `sections` of its settings."""
    network = Network(link)
    act = Live(network, settings(tuple(workers), **sections))
    for name, made in workers.items():
        if isinstance(made, MockSettings):
            act.mocks[name] = MockEngine(network, name, made)
        else:
            act.puppets[name] = Puppet(network, name, made)
    logging.getLogger("pointsman").addHandler(act.bugs)
    logging.getLogger("uvicorn.error").addHandler(act.bugs)
    try:
        act.open_doors()
        if ready:
            await act.until(lambda: all(m.worker.state.value == "ready" for m in act.router.fleet), 5)
        yield act
    finally:
        logging.getLogger("pointsman").removeHandler(act.bugs)
        logging.getLogger("uvicorn.error").removeHandler(act.bugs)
        await act.clear()


def play(scene: Scene, workers: Mapping[str, Serve | MockSettings] | None = None, **options: Any) -> None:
    """Runs a scene in virtual time and holds what is left to the first law."""

    async def main() -> None:
        async with live({"a": talk} if workers is None else workers, **options) as act:
            await scene(act)
            await asyncio.sleep(SETTLED_S)
            act.assert_zero()
            await act.aclose()

    run(main())
