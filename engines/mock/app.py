"""Builds one mock engine: the process, its fast routes, and the FastAPI application behind them.

Separate as the composition root of the HTTP side; the only place that reads the date.
"""

from __future__ import annotations

import time

from engines.mock.admin import admin_routes
from engines.mock.front import Endpoint, Front
from engines.mock.peers import PeerLink
from engines.mock.process import EngineProcess
from engines.mock.rest import rest_app
from engines.mock.settings import MockSettings
from engines.mock.sglang_dialect import sglang_dialect
from engines.mock.vllm_dialect import vllm_dialect


def create_app(
    settings: MockSettings | None = None,
    *,
    unix_origin_s: float | None = None,
    instance: str = "",
    peers: PeerLink | None = None,
) -> Front:
    """Build the ASGI application of one engine.

    Args:
        settings: None takes the defaults.
        unix_origin_s: the date when the engine starts; None reads it. A virtual run gives its own.
        instance: tells engines with the same settings apart, so that their ids differ.
        peers: the way to other engines that hand KV over; None takes sockets.

    Raises:
        SettingsError: the settings describe an engine that cannot be.
    """
    settings = settings or MockSettings()
    origin = time.time() if unix_origin_s is None else unix_origin_s  # noqa: TID251 - the composition root
    process = EngineProcess(settings, origin, instance, peers)
    routes: dict[str, dict[str, Endpoint]] = {}
    front = Front(process, routes)
    rest = rest_app(settings.dialect)
    dialect = vllm_dialect if settings.dialect == "vllm" else sglang_dialect
    dialect(front, routes, rest)
    rest.include_router(admin_routes(front))
    front.rest = rest
    return front
