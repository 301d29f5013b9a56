"""ASGI applications on a virtual network, spoken to through uvicorn's own protocol.

Separate because it is the only part that knows a server: what runs live and what runs here differ in nothing
above the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.config import Config
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.virtual.network import Listener, Network


def serve_asgi(
    network: Network, host: str, port: int, app: Any, *, state: dict[str, Any] | None = None, **options: Any
) -> Listener:
    """Serve `app` at (host, port) over HTTP/1.1.

    Its lifespan is not run: enter `lifespan` first, and hand its state on, where the app needs that.

    Args:
        options: of `uvicorn.Config`, such as `timeout_keep_alive`.
    """
    config = _config(app, options)
    server_state = ServerState()

    def protocol() -> asyncio.Protocol:
        return HttpToolsProtocol(config, server_state, state or {})

    return network.serve(host, port, protocol)


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    """Start `app` as a server does, give its state, shut it down. RuntimeError if it fails to start."""
    cycle = LifespanOn(_config(app, {"lifespan": "on"}))
    await cycle.startup()
    if cycle.should_exit:
        raise RuntimeError("The application failed to start; its own log says why.")
    try:
        yield dict(cycle.state)
    finally:
        await cycle.shutdown()


def _config(app: Any, options: dict[str, Any]) -> Config:
    quiet = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none", "interface": "asgi3"}
    config = Config(app, http="httptools", loop="none", proxy_headers=False, **{**quiet, **options})
    config.load()
    return config
