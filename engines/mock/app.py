"""Builds one mock engine: the process, its fast routes, and the FastAPI application behind them.

Separate as the composition root of the HTTP side; the only place that reads the date.
"""

from __future__ import annotations

import time

from engines.mock.apis import VLLM_APIS
from engines.mock.front import Endpoint, Front
from engines.mock.process import EngineProcess
from engines.mock.rest import rest_app
from engines.mock.serving import Api, serve
from engines.mock.settings import MockSettings
from engines.mock.wire import Request


def create_app(settings: MockSettings | None = None, *, unix_origin_s: float | None = None) -> Front:
    """Build the ASGI application of one engine.

    Args:
        settings: None takes the defaults.
        unix_origin_s: the date when the engine starts; None reads it. A virtual run gives its own.

    Raises:
        SettingsError: the settings describe an engine that cannot be.
    """
    origin = time.time() if unix_origin_s is None else unix_origin_s  # noqa: TID251 - the composition root
    process = EngineProcess(settings or MockSettings(), origin)
    rest = rest_app()
    front = Front(process, _routes(), rest)
    rest.state.front = front
    return front


def _routes() -> dict[str, dict[str, Endpoint]]:
    routes = {path: {"POST": _generation(api)} for path, api in VLLM_APIS.items()}
    routes["/health"] = {"GET": _health}
    return routes


def _generation(api: Api) -> Endpoint:
    async def endpoint(request: Request, process: EngineProcess) -> None:
        await serve(request, process, api)

    return endpoint


async def _health(request: Request, _: EngineProcess) -> None:
    await request.answer(200, b"")
