"""Mock engines whose KV is pushed (Mooncake, SGLang), on a virtual network, and their clients."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from engines.mock.bootstrap import BootstrapServer
from engines.mock.faults import Fault
from engines.mock.settings import MockSettings
from router.upstream.client import Upstream
from router.upstream.origin import Origin
from router.upstream.settings import UpstreamSettings
from router.virtual.asgi import serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network
from tests.engines.mock_stage import Reply, Stage
from tests.engines.pd_stage import SIZE, engine_on

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BOOTSTRAP = 8998
PROMPT = "the quick brown fox jumps over the lazy dog and runs away with the spoon " * 6
"""110 tokens: seven blocks of 16, the last one not full."""
ASK: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0}
_names = itertools.count(1)


class Act:
    """Prefill engines `p…`, decode engines `d…`, and one that does both: `alone`."""

    def __init__(self, network: Network, stages: Mapping[str, Stage], upstream: Upstream) -> None:
        self.network = network
        self.stages = stages
        self.upstream = upstream

    def __getitem__(self, name: str) -> Stage:
        return self.stages[name]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def asking(self, name: str, path: str, body: Mapping[str, Any]) -> asyncio.Task[Reply]:
        """A client of one engine, beside what follows. Cancelled, it leaves."""
        return asyncio.get_running_loop().create_task(self[name].ask(path, body))

    async def alone(self, body: Mapping[str, Any] = ASK, path: str = COMPLETIONS) -> Reply:
        """What one engine answers."""
        return await self["alone"].ask(path, body)

    async def bootstrap(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """What the bootstrap server of `p` answers."""
        door = Stage(self["p"].app, self.network, "p")
        door.origin = Origin("http", "p", BOOTSTRAP, "")
        try:
            return await door.ask(path, body, method=method)
        finally:
            await door.upstream.aclose()

    def blocks(self, name: str) -> int:
        """KV blocks that an engine holds."""
        return self[name].process.engine._scheduler.kv.used_blocks

    def state(self, name: str) -> dict[str, Any]:
        """What its connector holds."""
        connector = self[name].process.connector
        assert connector is not None
        return dict(connector.state())

    def fault(self, name: str, **fields: Any) -> None:
        self[name].app.faults.add(Fault(**fields))

    def crash(self, name: str, back_after_s: float) -> None:
        """A process is killed; another one takes its place."""
        self[name].process.crash(Fault(kind="crash", delay_s=back_after_s))

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        ends = self.now + within_s
        while not condition():
            assert self.now < ends, f"not within {within_s} s"
            await asyncio.sleep(0.001)

    def assert_zero(self) -> None:
        """Nothing is held, queued or under way."""
        for name, stage in self.stages.items():
            process = stage.process
            engine = process.engine
            assert (engine.running, engine.waiting, process.in_progress) == (0, 0, 0), name
            assert engine.kv_usage == 0.0, (name, engine)
            assert engine._scheduler.orphans == {}, name
            if process.connector is not None:
                state = process.connector.state()
                held = [state[key] for key in ("kept", "offers", "pulls", "errands")]
                assert held == [0, 0, 0, 0], (name, state)


def room() -> int:
    """One that nobody else has."""
    return 1000 + next(_names)


def in_room(body: Mapping[str, Any], number: int | list[int], host: str = "p") -> dict[str, Any]:
    """A request as a router sends it to both engines."""
    return {**body, "bootstrap_host": host, "bootstrap_port": BOOTSTRAP, "bootstrap_room": number}


def text_of(reply: Reply) -> list[str]:
    """The texts of an answer that was not streamed."""
    assert reply.status == 200, reply.body
    choices = json.loads(reply.body)["choices"]
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


@asynccontextmanager
async def engines(
    names: tuple[str, ...] = ("p", "d"),
    each: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> AsyncIterator[Act]:
    """Engines that are up, and nothing left behind."""
    network = Network()
    peers = Upstream(network.connect, asyncio.get_running_loop().time, UpstreamSettings(max_idle=0))
    stages = {}
    for name in names:
        role = "prefill" if name.startswith("p") else "decode"
        made = {**SIZE, **settings, "role": role, **(each or {}).get(name, {})}
        stages[name] = engine_on(network, name, MockSettings(**made), peers)
        app = BootstrapServer(stages[name].process)
        if stages[name].process.settings.has_bootstrap:
            serve_asgi(network, name, BOOTSTRAP, app, timeout_keep_alive=5)
    one = {**SIZE, **{key: value for key, value in settings.items() if key == "dialect"}}
    stages["alone"] = engine_on(network, "alone", MockSettings(**one), peers)
    try:
        yield Act(network, stages, peers)
    finally:
        for stage in stages.values():
            await stage.upstream.aclose()
            stage.process.close()
        await peers.aclose()


def play(scene: Callable[[Act], Awaitable[None]], *, settled_s: float = 5.0, **options: Any) -> None:
    """Run a scene in virtual time; so long after it nothing is held."""

    async def main() -> None:
        async with engines(**options) as act:
            await scene(act)
            await asyncio.sleep(settled_s)
            act.assert_zero()

    run(main())
