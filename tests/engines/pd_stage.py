"""Two mock engines on a virtual network, one that prefills and one that decodes, and a client of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from engines.mock.app import create_app
from engines.mock.faults import Fault
from engines.mock.peers import Address
from engines.mock.settings import MockSettings
from router.upstream.client import Upstream
from router.upstream.settings import UpstreamSettings
from router.virtual.asgi import serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network
from router.virtual.transport import LinkSettings
from tests.engines.mock_stage import PORT, UNIX_ORIGIN_S, NetworkListener, Reply, Stage
from tests.engines.peer_network import NetworkPeers

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPT = "the quick brown fox jumps over the lazy dog and runs away with the spoon " * 6
"""110 tokens: seven blocks of 16, the last one not full."""
ASK: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0}
WANTED: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a prefill leg carries."""
SIZE: dict[str, Any] = {"kv_tokens": 1600, "max_model_len": 512}
"""Engines of a hundred blocks."""


def prefill_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """A client's body as a proxy sends it to a prefill engine."""
    limit = next(
        (name for name in ("max_output_tokens", "max_completion_tokens") if name in body), "max_tokens"
    )
    kept = {name: value for name, value in body.items() if name not in {"stream_options", "min_tokens"}}
    return {**kept, limit: 1, "stream": False, "n": 1, "kv_transfer_params": WANTED}


class Pair:
    """A prefill engine, a decode engine and what a proxy does with them."""

    def __init__(self, network: Network, prefill: Stage, decode: Stage) -> None:
        self.network = network
        self.prefill = prefill
        self.decode = decode

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def handle(
        self, body: Mapping[str, Any] = ASK, path: str = COMPLETIONS, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The handle of a prefill leg."""
        reply = await self.prefill.ask(path, prefill_body(body), headers)
        assert reply.status == 200, reply.body
        params = reply.json()["kv_transfer_params"]
        assert isinstance(params, dict), reply.body
        return params

    async def decoded(
        self, handle: Mapping[str, Any], body: Mapping[str, Any] = ASK, path: str = COMPLETIONS
    ) -> Reply:
        """The answer to a decode leg."""
        return await self.decode.ask(path, {**body, "kv_transfer_params": handle})

    async def split(self, body: Mapping[str, Any] = ASK, path: str = COMPLETIONS) -> Reply:
        """The answer to both legs, one after the other."""
        return await self.decoded(await self.handle(body, path), body, path)

    async def scrape(self, which: Stage) -> dict[str, float]:
        """An engine's series without the labels that all of them have."""
        text = (await which.ask("/metrics")).body.decode()
        found = {}
        for line in text.splitlines():
            if line.startswith("vllm:"):
                head, _, value = line.removeprefix("vllm:").rpartition(" ")
                name, _, labels = head.rstrip("}").partition("{")
                own = [one for one in labels.split(",") if not one.startswith(("engine=", "model_name="))]
                found[name + ("{" + ",".join(own) + "}" if any(own) else "")] = float(value)
        return found

    def crash(self, which: Stage, back_after_s: float) -> None:
        """A process is killed; another one takes its place."""
        which.process.crash(Fault(kind="crash", delay_s=back_after_s))

    @property
    def prefill_blocks(self) -> int:
        """Blocks that the prefill engine holds."""
        return self.prefill.process.engine._scheduler.kv.used_blocks

    @property
    def decode_blocks(self) -> int:
        return self.decode.process.engine._scheduler.kv.used_blocks

    def assert_zero(self) -> None:
        """Nothing is held, queued or under way, but for a lease that is to be waited for."""
        for stage in (self.prefill, self.decode):
            assert stage.process.in_progress == 0
            for rank in stage.process.ranks:
                assert (rank.engine.running, rank.engine.waiting, rank.engine.kv_usage) == (0, 0, 0.0)
                assert rank.engine._scheduler.orphans == {}
                assert rank.connector is not None
                state = rank.connector.state()
                assert (state["kept"], state["heartbeats"], state["errands"]) == (0, 0, 0), state


def engine_on(network: Network, host: str, settings: MockSettings, upstream: Upstream) -> Stage:
    """One engine at a host of the network, reached by its peers there."""
    app = create_app(settings, unix_origin_s=UNIX_ORIGIN_S, instance=host, peers=NetworkPeers(upstream))
    listener = serve_asgi(network, host, PORT, app, timeout_keep_alive=5)
    app.process.listener = NetworkListener(network, listener)
    app.process.address = Address(host, PORT)
    return Stage(app, network, host)


@asynccontextmanager
async def pair(
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    link: LinkSettings | None = None,
    **both: Any,
) -> AsyncIterator[Pair]:
    """A pair that is up, and nothing left behind."""
    network = Network(link)
    peers = Upstream(network.connect, asyncio.get_running_loop().time, UpstreamSettings(max_idle=0))
    settings = {**SIZE, **both}
    stages = [
        engine_on(network, "p", MockSettings(**{"role": "prefill", **settings, **(prefill or {})}), peers),
        engine_on(network, "d", MockSettings(**{"role": "decode", **settings, **(decode or {})}), peers),
    ]
    try:
        yield Pair(network, *stages)
    finally:
        for stage in stages:
            await stage.upstream.aclose()
            stage.process.close()
        await peers.aclose()


def play(scene: Callable[[Pair], Awaitable[None]], **options: Any) -> None:
    """Run a scene in virtual time; when it is over and all leases are too, nothing is held."""

    async def main() -> None:
        async with pair(**options) as act:
            await scene(act)
            await asyncio.sleep(40.0)
            act.assert_zero()

    run(main())


def text_of(reply: Reply) -> str:
    """The text of a completion that was not streamed."""
    text = json.loads(reply.body)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


ERROR = b'{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}'
BLOCKS = 7
LONG = {**ASK, "prompt": "something else entirely " * 8, "max_tokens": 400, "ignore_eos": True}


async def right(act: Pair, body: Mapping[str, Any] = ASK) -> str:
    """The text of an engine that computes all of it itself; D's cache stays without it."""
    return text_of(await act.prefill.ask(COMPLETIONS, body))


def counted(act: Pair) -> dict[str, Any]:
    connector = act.prefill.process.connector
    assert connector is not None
    return connector.state()


async def busy(act: Pair, requests: int = 1) -> list[asyncio.Task[Reply]]:
    """Requests that fill the decode engine's batch."""
    tasks = [asyncio.ensure_future(act.decode.ask(COMPLETIONS, {**LONG, "seed": n})) for n in range(requests)]
    await asyncio.sleep(0.05)
    return tasks
