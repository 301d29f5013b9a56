"""Routes that are asked for rarely: FastAPI path functions over the same process.

Separate from the fast routes, which do without a framework. Both dialects' common part and vLLM's own.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response

from engines.mock.errors import Refusal, bad_body, body_for
from engines.mock.fields import Fields, decode_body
from engines.mock.openai_ask import check_model, rendered
from engines.mock.process import EngineProcess
from engines.mock.sampling import check_token_ids
from engines.mock.settings import VLLM_VERSION
from engines.model.specs import MODELS
from engines.model.text import decode, encode

JSON = "application/json"


def rest_app(dialect: str) -> FastAPI:
    """Build an application that has no route yet and answers refusals in the dialect's shape."""
    app = FastAPI(openapi_url=None)

    async def refused(request: Request, refusal: Exception) -> Response:
        if not isinstance(refusal, Refusal):
            raise refusal
        body = body_for(dialect, request.url.path, refusal)
        return Response(body, refusal.status, media_type=JSON)

    app.add_exception_handler(Refusal, refused)
    return app


def reply(value: object, status: int = 200) -> Response:
    """Return a JSON answer in the compact form of the engines."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


async def body_of(request: Request) -> Fields:
    """Read a JSON body.

    Raises:
        Refusal: 400 for anything that is no JSON object.
    """
    return Fields(decode_body(await request.body()))


def common_routes(process: EngineProcess, owner: str) -> APIRouter:
    """Return the routes that both dialects have."""
    router = APIRouter()
    settings = process.settings

    @router.get("/v1/models")
    async def models() -> Response:
        return reply({"object": "list", "data": [model_card(process, owner)]})

    @router.post("/tokenize")
    @router.post("/v1/tokenize")
    async def tokenize(request: Request) -> Response:
        fields = await body_of(request)
        check_model(fields, settings.name)
        if fields.has("messages"):
            ids = list(rendered(fields.objects("messages"), fields))
        else:
            prompt = fields.text("prompt")
            if prompt is None:
                raise bad_body("1 validation error: body.prompt or body.messages is required", "body.prompt")
            ids = encode(prompt)
        texts = [decode([token]) for token in ids] if fields.flag("return_token_strs") else None
        length = process.hardware.config.max_model_len
        return reply({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": texts})

    @router.post("/detokenize")
    @router.post("/v1/detokenize")
    async def detokenize(request: Request) -> Response:
        fields = await body_of(request)
        check_model(fields, settings.name)
        fields.required("tokens")
        tokens = fields.integers("tokens")
        check_token_ids(tokens)
        return reply({"prompt": decode(tokens)})

    return router


def vllm_routes(process: EngineProcess) -> APIRouter:
    """Return vLLM's own routes."""
    router = APIRouter()

    @router.get("/version")
    async def version() -> Response:
        return reply({"version": VLLM_VERSION})

    @router.get("/ping")
    @router.post("/ping")
    async def ping() -> Response:
        return Response(b"")

    @router.get("/load")
    async def load() -> Response:
        tracked = process.settings.enable_server_load_tracking
        return reply({"server_load": process.in_progress if tracked else 0})

    @router.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return reply({"is_sleeping": False})

    @router.get("/kv_event_sources")
    async def kv_event_sources() -> Response:
        places = [] if process.kv_events is None else process.kv_events.places
        return reply({str(rank): place.told() for rank, place in enumerate(places)})

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        return reply({"success": process.reset_prefix_cache()})

    for path in ("/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"):
        router.add_api_route(path, _scale_out, methods=["POST"])
    return router


async def _scale_out() -> Response:
    """Routes that a real engine has only with `--enable-scale-out`."""
    raise Refusal(403, "PermissionDeniedError", "This route needs --enable-scale-out.")


def model_card(process: EngineProcess, owner: str) -> dict[str, object]:
    """Return the one entry of `/v1/models`."""
    settings = process.settings
    created = int(process.started_unix_s)
    permission = {
        "id": f"modelperm-{process.fingerprint[-8:] * 2}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": settings.name,
        "object": "model",
        "created": created,
        "owned_by": owner,
        "root": MODELS[settings.model].checkpoint,
        "parent": None,
        "max_model_len": process.hardware.config.max_model_len,
        "permission": [permission],
    }
