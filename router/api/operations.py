"""What probes, scrapers and curious clients ask: health, metrics, models.

FastAPI serves these: they are few, small and better typed than fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from router.api.errors import error_body, error_headers, path_not_found
from router.api.keys import Keys
from router.api.small_bodies import SmallBodies
from router.core.errors import BadRequest, MethodNotAllowed, NotFound, RouterError, shown
from router.core.request import Api
from router.explaining import Deciding
from router.fleet import Fleet, Member
from router.settings.workers import WorkerSettings
from router.telemetry.exposition import CONTENT_TYPE


class Control:
    """What the operations act on.

    Args:
        register: (pool, worker, source) adds a worker, or each rank of it; raises RouterError when it cannot.
        ready: whether the router should get traffic, with the reason when not.
        exposition: the text of /metrics.
        deciding: the policies of the pools, and why they decide as they do.
    """

    def __init__(
        self,
        fleet: Fleet,
        keys: Keys,
        register: Callable[[str, WorkerSettings, str], list[Member]],
        ready: Callable[[], str | None],
        exposition: Callable[[], bytes],
        deciding: Deciding,
    ) -> None:
        self.fleet = fleet
        self.keys = keys
        self.register = register
        self.ready = ready
        self.exposition = exposition
        self.deciding = deciding


def metrics_app(control: Control) -> FastAPI:
    """The application of the listener that serves nothing but metrics."""
    app = _bare_app()
    _add_metrics(app, control)
    return app


def operations_app(control: Control, admin: APIRouter | None = None) -> FastAPI:
    """Health, metrics and models, and the admin routes where they are served."""
    app = _bare_app()
    _add_health(app, control)
    _add_metrics(app, control)
    _add_models(app, control)
    if admin is not None:
        app.include_router(admin)
    return app


def _bare_app() -> FastAPI:
    # A redirect to the path without its slash would name the host by what the client, or the socket, says.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_middleware(SmallBodies)

    @app.exception_handler(RouterError)
    async def refuse(_request: Request, error: RouterError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(_request: Request, error: RequestValidationError) -> Response:
        return error_response(_invalid(error))

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return error_response(MethodNotAllowed(f"{request.method} is not a method of this path."))
        if error.status_code == 400:  # the framework gave up on the body
            return error_response(BadRequest("The body cannot be read."))
        return error_response(path_not_found(request.url.path))

    return app


def _invalid(error: RequestValidationError) -> BadRequest:
    """The first thing that is wrong with the body of an operation. Places begin with the word `body`; values
    are not repeated."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "extra_forbidden":
        return BadRequest(f"{shown(where)} is no field of this operation.", param=shown(where))
    return BadRequest(f"{where or 'body'}: {first['msg']}", param=where or None)


def error_response(error: RouterError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error, Api.OTHER), status_code=error.status, headers=headers)


def _add_health(app: FastAPI, control: Control) -> None:
    @app.head("/liveness")
    @app.get("/liveness")
    async def liveness() -> dict[str, str]:
        return {"status": "alive"}

    @app.head("/readiness")
    @app.head("/health")
    @app.get("/readiness")
    @app.get("/health")
    async def readiness() -> JSONResponse:
        why_not = control.ready()
        if why_not is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": why_not}, status_code=503)


def _add_metrics(app: FastAPI, control: Control) -> None:
    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(control.exposition(), media_type=None, headers={"content-type": CONTENT_TYPE})


def _add_models(app: FastAPI, control: Control) -> None:
    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        control.keys.client(dict(request.headers.raw))
        return {
            "object": "list",
            "data": [_model_card(control.fleet, m) for m in sorted(control.fleet.models())],
        }

    @app.get("/v1/models/{model:path}")
    async def model(model: str, request: Request) -> dict[str, Any]:
        control.keys.client(dict(request.headers.raw))
        if model not in control.fleet.models():
            raise NotFound(f"The model `{shown(model)}` does not exist here.", param="model")
        return _model_card(control.fleet, model)


def _model_card(fleet: Fleet, model: str) -> dict[str, Any]:
    """One entry of the merged list; the largest context of all workers that serve it."""
    lengths = [member.worker.max_model_len[model] for member in fleet if model in member.worker.max_model_len]
    card: dict[str, Any] = {"id": model, "object": "model", "created": 0, "owned_by": "pointsman"}
    if lengths:
        card["max_model_len"] = max(lengths)
    return card
